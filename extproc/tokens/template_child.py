"""The child process that inspects and renders chat templates, started by `template_process`.

A template is a program of its author: it may be endless, quadratic in the conversation, or write gigabytes. Here the
kernel ends it: the timer of used CPU time kills this process, the limit of its address space fails allocations.

Each message is a length (u32, little-endian) and JSON. The first holds `templates` (name → text), `special_tokens`,
`max_characters` and `cpu_s`, or `tekken`, a file; every further one is `inspect` (a name, or null) with `template`,
`engine` and `variables` to render. The answer is a status (u8), a length (u32) and UTF-8 text, or the ids that
Mistral's encoder makes. Ends when standard input does.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec

from extproc.tokens.conversation import TemplateError
from extproc.tokens.mistral import MistralEncoder
from extproc.tokens.source import TokenizerError
from extproc.tokens.template import ChatTemplate, Engine, OutputError
from extproc.tokens.template_inspection import inspect_template

LENGTH = struct.Struct("<I")
REPLY = struct.Struct("<BI")
OK, REFUSED, TOO_LARGE, NOT_UNICODE, NO_TEMPLATE = range(5)

_MEMORY_PER_CHARACTER = 16  # bytes: four as a string, several copies while it grows
_MEMORY_AT_LEAST = 256 << 20


class _Templates:
    def __init__(self, setup: dict[str, Any]) -> None:
        self._texts: dict[str, str] = setup["templates"]
        self._special_tokens: dict[str, Any] = setup["special_tokens"]
        self._max_characters: int = setup["max_characters"]
        self._compiled: dict[tuple[str, Engine], ChatTemplate] = {}

    def answer(self, request: dict[str, Any]) -> tuple[int, bytes]:
        """Status and text."""
        if (name := request["inspect"]) is not None:
            return OK, msgspec.json.encode(inspect_template(self._texts[name], self._special_tokens))
        return OK, self._render(request).encode()

    def _render(self, request: dict[str, Any]) -> str:
        name, variables = request["template"], request["variables"]
        if request["engine"] == "minijinja":
            try:
                return self._get(name, "minijinja").fill(variables)
            except OutputError:
                raise
            except TemplateError:
                pass  # jinja2 decides
        return self._get(name, "jinja2").fill(variables)

    def _get(self, name: str, engine: Engine) -> ChatTemplate:
        compiled = self._compiled.get((name, engine))
        if compiled is None:
            compiled = ChatTemplate(
                self._texts[name], self._special_tokens, engine, max_characters=self._max_characters
            )
            self._compiled[name, engine] = compiled
        return compiled


class _Mistral:
    def __init__(self, tekken: Path) -> None:
        self._encoder: MistralEncoder | TokenizerError
        try:
            self._encoder = MistralEncoder(tekken)
        except TokenizerError as error:
            self._encoder = error

    def answer(self, request: dict[str, Any]) -> tuple[int, bytes]:
        """Status and ids; no ids for an inspection."""
        if isinstance(self._encoder, TokenizerError):
            raise self._encoder
        return OK, b"" if request["inspect"] is not None else self._encoder.encode(request["variables"])


def _answer(to: _Templates | _Mistral, request: dict[str, Any]) -> tuple[int, bytes]:
    try:
        return to.answer(request)
    except OutputError as error:
        return TOO_LARGE, str(error).encode(errors="replace")
    except MemoryError:
        return TOO_LARGE, b"the chat template needs too much memory for this conversation"
    except UnicodeEncodeError:
        return NOT_UNICODE, b""
    except TemplateError as error:
        return REFUSED, str(error).encode(errors="replace")
    except TokenizerError as error:
        return NO_TEMPLATE, str(error).encode(errors="replace")


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Answers have a descriptor of their own, so that nothing which a library prints can be taken for one.
    answers = os.dup(1)
    os.dup2(2, 1)
    setup = json.loads(_read())
    tekken = setup.get("tekken")
    prompts = _Templates(setup) if tekken is None else _Mistral(Path(tekken))
    _limit_memory(max(_MEMORY_AT_LEAST, setup["max_characters"] * _MEMORY_PER_CHARACTER))
    while message := _read():
        # Reading the request counts, too: it is the conversation's size that makes it slow.
        signal.setitimer(signal.ITIMER_PROF, setup["cpu_s"])
        status, text = _answer(prompts, json.loads(message))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, REPLY.pack(status, len(text)) + text)


def _limit_memory(more: int) -> None:
    """So many bytes more than now. Where the kernel does not tell or limit it (macOS), only time is bounded."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (OSError, ValueError):
        pass


def _read() -> bytes:
    """One message of standard input, or none at its end."""
    header = sys.stdin.buffer.read(LENGTH.size)
    return sys.stdin.buffer.read(LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    main()
