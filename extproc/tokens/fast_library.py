"""The fast library (fastokens): loaded, and warmed so that no request pays for a first time.

Loading holds the interpreter lock while the library reads the file's JSON: 0.5 us a token of the vocabulary, whichever
thread loads it. A thread's first encoding makes state for that thread: 40 to 160 ms in fresh memory, 2 ms in memory
that the state of an ended thread has left. So a few short-lived threads encode first.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any

from extproc.tokens.source import TokenizerError

__all__ = ["THREADS", "WARM_TEXT", "load_fast", "seconds_of_lock", "warm_fast"]

THREADS = 2  # each keeps 17 to 34 MB for the library
_WARMING_THREADS = 4  # that leave their memory to the event loop's
_WARM_TIMEOUT_S = 30.0  # only ever reached when the load was given up between its threads
WARM_TEXT = "Warm up: 1234 tokens, café, 你好, 😀!\n"
_WARM_LONG_TEXT = WARM_TEXT * 4096  # long enough for the library to use threads of its own


def load_fast(path: Path, digest: str) -> Any:
    """The library's tokenizer of a tokenizer.json with this SHA-256. Raises TokenizerError, ValueError."""
    from fastokens import Tokenizer as FastTokenizer

    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise TokenizerError(f"{path} was changed while it was loaded; load it again")
    tokenizer = FastTokenizer.from_json_str(raw.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def seconds_of_lock(text: str) -> float:
    """For how long loading this tokenizer.json holds the interpreter lock, in CPU time."""
    from fastokens import Tokenizer as FastTokenizer

    started = thread_time()
    with suppress(ValueError):
        # Without its end, the text is read as far as the lock is held, and refused.
        FastTokenizer.from_json_str(text.rstrip()[:-1])
    return thread_time() - started


def warm_fast(tokenizer: Any, pool: ThreadPoolExecutor) -> None:
    """Leave memory for the state of further threads, and encode on each of the pool's THREADS."""
    for _ in range(_WARMING_THREADS):
        thread = threading.Thread(target=tokenizer.encode_batch_flat, args=([WARM_TEXT],))
        thread.start()
        thread.join()
    # A barrier, so that each thread takes one of the warming texts.
    barrier = threading.Barrier(THREADS)
    runs = [pool.submit(_warm, tokenizer, barrier) for _ in range(THREADS)]
    wait(runs)
    for run in runs:
        run.result()


def _warm(tokenizer: Any, barrier: threading.Barrier) -> None:
    barrier.wait(_WARM_TIMEOUT_S)
    for at in range(4):
        tokenizer.encode_batch_flat([WARM_TEXT + str(at)])
    tokenizer.encode_batch_flat([_WARM_LONG_TEXT])
