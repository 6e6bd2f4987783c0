"""Messages in channels, as gpt-oss writes them: reasoning, calls and the answer's text are told apart by one parser.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`, where a header may name a
recipient: `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`.
"""

from __future__ import annotations

import re

from extproc.output.sink import Sink
from extproc.output.source import Source, Steps

__all__ = ["HARMONY_TOKENS", "harmony"]

HARMONY_TOKENS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>")

_BEGINNINGS = ("<|start|>", "<|channel|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_MOST_HEADER = 512
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


def harmony(source: Source, sink: Sink) -> Steps[None]:
    """The answer begins within a message's header, behind the role, or with text where the prompt ended the header."""
    marker = yield from source.until((*_BEGINNINGS, "<|message|>", "<|end|>", "<|call|>", "<|return|>"), sink.text)
    while marker is not None:
        if marker not in _BEGINNINGS:
            marker = yield from source.until(_ENDS, sink.text)
            continue
        source.keep(marker)
        header = yield from source.line("<|message|>", _MOST_HEADER)
        if header is None:
            sink.text(source.kept())
            marker = yield from source.until(_ENDS, sink.text)
            continue
        source.kept()
        recipient = _RECIPIENT.search(header)
        if recipient and recipient[1] in sink.tools:
            sink.start(recipient[1])
            marker = yield from source.until(_ENDS, sink.arguments)
            sink.end()
        elif recipient or "analysis" in header:
            marker = yield from source.until(_ENDS, sink.reasoning)
        else:
            sink.in_text = True
            marker = yield from source.until(_ENDS, sink.text)
