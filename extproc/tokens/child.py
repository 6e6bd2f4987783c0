"""The child processes in which tokenizers run that the serving process must not load, started by `remote`.

`inspect FILE`: inspects the tokenizer, writes to standard output what it found (`inspection_wire`) and ends.

`serve FILE DIGEST LIBRARY`: encodes texts until standard input ends, so that it never outlives its parent.
 request: id (u64), what (u8: 0 encode, 1 name), length (u32), then UTF-8 text or ids as uint32.
 reply: id (u64), status (u8: 0 done, 1 error, 2 a text that this library cannot encode), length (u32), then ids as
 uint32, or a msgpack array of names, or an error's text.
 All little-endian. The first reply has id 0 and says that the tokenizer is loaded.
 Replies come in the order in which they are ready.
"""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import sys
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

import msgspec

from extproc.tokens.fast_library import THREADS, load_fast, warm_fast

REQUEST = struct.Struct("<QBI")
REPLY = struct.Struct("<QBI")
OK, FAILED, REFUSED = 0, 1, 2
ENCODE, NAME = 0, 1


class Library(StrEnum):
    """What encodes."""

    TOKENIZERS = "tokenizers"
    FASTOKENS = "fastokens"


def main(arguments: list[str]) -> None:
    """Entry point; `arguments` as in the module's text."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a text; the pool below gives the parallelism
    # Replies have a descriptor of their own, so that nothing which a library prints can be taken for one.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if arguments[0] == "inspect":
        threading.Thread(target=_end_with_parent, daemon=True).start()
        from extproc.tokens.inspection import inspect_tokenizer
        from extproc.tokens.inspection_wire import encode_inspection

        replies.write(encode_inspection(inspect_tokenizer(Path(arguments[1]))))
        replies.flush()
    else:
        _Server(replies.fileno()).run(Path(arguments[1]), arguments[2], Library(arguments[3]))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


class _RefusedTextError(Exception):
    pass


class _Reference:
    """The library `tokenizers`."""

    def __init__(self, path: Path, digest: str, _: ThreadPoolExecutor) -> None:
        from tokenizers import Tokenizer

        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != digest:
            raise ValueError(f"{path} was changed after it was loaded; restart to use the new file")
        self._tokenizer = Tokenizer.from_str(raw.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.id_to_token = self._tokenizer.id_to_token

    def encode(self, text: bytes) -> bytes:
        # The batch call releases the interpreter lock, the single one does not.
        (encoding,) = self._tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)
        ids = array("I", encoding.ids)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids.tobytes()


class _Fast:
    """The library `fastokens`."""

    def __init__(self, path: Path, digest: str, pool: ThreadPoolExecutor) -> None:
        tokenizer = load_fast(path, digest)
        warm_fast(tokenizer, pool)
        self._encode = tokenizer.encode_batch_flat
        self.id_to_token = tokenizer.id_to_token

    def encode(self, text: bytes) -> bytes:
        try:
            packed, _ = self._encode([text.decode()])
        except ValueError as error:
            raise _RefusedTextError from error
        return bytes(packed)


class _Server:
    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._lock = threading.Lock()

    def run(self, path: Path, digest: str, library: Library) -> None:
        pool = ThreadPoolExecutor(THREADS)
        try:
            load = _Reference if library is Library.TOKENIZERS else _Fast
            self._encoder = load(path, digest, pool)
        except BaseException as error:  # a panic of the library is no Exception
            self._reply(0, FAILED, str(error).encode())
            os._exit(0)
        self._reply(0, OK, b"")
        while header := _read(REQUEST.size):
            request_id, what, length = REQUEST.unpack(header)
            work = self._encoder.encode if what == ENCODE else self._name
            pool.submit(self._answer, request_id, work, _read(length))
        # Not waiting for the pool: nobody is left to read what it still encodes.
        os._exit(0)

    def _answer(self, request_id: int, work: Callable[[bytes], bytes], data: bytes) -> None:
        try:
            status, payload = OK, work(data)
        except _RefusedTextError:
            status, payload = REFUSED, b""
        except BaseException as error:  # a panic of the library is no Exception
            status, payload = FAILED, f"{type(error).__name__}: {error}".encode()
        self._reply(request_id, status, payload)

    def _name(self, packed: bytes) -> bytes:
        ids = array("I", packed)
        if sys.byteorder == "big":
            ids.byteswap()
        return msgspec.msgpack.encode([self._encoder.id_to_token(at) for at in ids])

    def _reply(self, request_id: int, status: int, payload: bytes) -> None:
        data = memoryview(REPLY.pack(request_id, status, len(payload)) + payload)
        with self._lock:
            while data:
                try:
                    data = data[os.write(self._replies, data) :]
                except BrokenPipeError:
                    os._exit(0)


def _read(length: int) -> bytes:
    """Exactly so many bytes of standard input, or none at its end."""
    data = bytearray()
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
