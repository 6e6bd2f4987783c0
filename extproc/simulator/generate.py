"""One Generate call: from its request to its messages.

The closing message of a stream repeats the last chunk's ids and count, as the real servicer does. Without streaming
there is one message per sequence, when all of them are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from smg_grpc_proto.generated import sglang_scheduler_pb2, vllm_engine_pb2

from extproc.simulator import logprobs
from extproc.simulator.answer import Answer
from extproc.simulator.constants import ABRUPT_END_DELAY_S
from extproc.simulator.faults import Break, Faults
from extproc.simulator.kv_cache import KvCache, Lease
from extproc.simulator.validation import Sampling
from extproc.simulator.wire import ChunkWriter, varint
from extproc.transport.service import Call

_GARBAGE = b"\xff\xff\xff\xff"  # an endless field number
_FOREIGN: bytes = sglang_scheduler_pb2.GenerateResponse(
    request_id="of another engine", chunk=sglang_scheduler_pb2.GenerateStreamChunk(token_ids=[1], prompt_tokens=1)
).SerializeToString()
_OUTPUT_LOGPROBS = b"\x2a"
_INPUT_LOGPROBS = b"\x32"


class _Breakable(Protocol):
    """What the transport's calls can do beside `service.Call`."""

    def open(self) -> None: ...

    def send_half(self, message: bytes) -> None: ...

    def reset(self) -> None: ...


class _Sequence:
    """One of the n answers."""

    __slots__ = ("answer", "chunk_start", "computed", "done", "fill_at", "index", "lease", "position", "sent", "writer")

    def __init__(self, index: int, answer: Answer, lease: Lease, block_tokens: int, writer: ChunkWriter) -> None:
        self.index = index
        self.answer = answer
        self.lease = lease
        self.writer = writer
        self.position = 0  # tokens generated
        self.sent = 0  # of them, in chunks
        self.chunk_start = 0  # where the last chunk begins
        self.computed = 0  # of them, in the KV cache; the newest never is
        self.fill_at = block_tokens - len(lease.pending) + 1  # position at which the next block is full
        self.done = False


class Generation:
    """A Generate call that was accepted. Implements `batching.Job`."""

    def __init__(
        self,
        call: Call,
        request: vllm_engine_pb2.GenerateRequest,
        prompt: list[int],
        sampling: Sampling,
        answers: Sequence[Answer],
        *,
        cache: KvCache,
        vocabulary: int,
        tokens_per_chunk: int,
        faults: Faults,
        ended: Callable[[Generation], None],
        die: Callable[[], None],
        restart: Callable[[], None],
    ) -> None:
        self.request_id = request.request_id
        self.prompt = prompt
        self.sequences = sampling.n
        self.idle = False
        self.done = False
        self.cached_tokens = 0
        self._call = call
        self._stream = request.stream
        self._sampling = sampling
        self._cache = cache
        self._vocabulary = vocabulary
        self._tokens_per_chunk = tokens_per_chunk
        self._faults = faults
        self._break_after = faults.break_after if faults.break_kind is not None else -1
        self._messages = 0
        self._answers = answers
        self._blocks = -(-len(prompt) // cache.block_tokens)
        self._ended = ended
        self._die = die
        self._restart = restart
        self._lease: Lease | None = None  # until the sequences have theirs
        self._uncomputed: list[int] = []  # tokens of the prompt behind what was cached
        self._computed_at = 0  # how far into them
        self._sequences: list[_Sequence] = []

    @property
    def generated_tokens(self) -> int:
        """Over all its sequences, so far."""
        return sum(sequence.position for sequence in self._sequences)

    # What the batch calls.

    def fits(self) -> bool:
        """Every block of the prompt could be held, those included that are shared: on the safe side."""
        cache = self._cache
        return not cache.capacity_blocks or cache.held_blocks + self._blocks <= cache.capacity_blocks

    def start(self) -> int:
        """Take the blocks that are there; what is left must be computed."""
        self._lease = lease = self._cache.lease(self.prompt)
        self.cached_tokens = lease.cached_tokens
        self._uncomputed, lease.pending = lease.pending, []
        return len(self.prompt) - lease.cached_tokens

    def computed(self, tokens: int) -> None:
        """The blocks that these tokens fill are stored."""
        lease = self._lease
        assert lease is not None
        start = self._computed_at
        self._computed_at = end = start + tokens
        self._cache.extend(lease, self._uncomputed[start:end])

    def prefilled(self) -> None:
        """The sequences begin on the prompt's blocks."""
        cache = self._cache
        lease = self._lease
        assert lease is not None
        self._lease = None
        self._uncomputed = []
        for index, answer in enumerate(self._answers):
            self._sequences.append(
                _Sequence(
                    index,
                    answer,
                    # Forks before the first sequence can end: its blocks would be free for eviction.
                    cache.fork(lease) if index else lease,
                    cache.block_tokens,
                    ChunkWriter(len(self.prompt), self.cached_tokens, index),
                )
            )

    def step(self) -> None:
        """A token for every sequence that is not done."""
        tokens_per_chunk = self._tokens_per_chunk
        for sequence in self._sequences:
            if sequence.done:
                continue
            sequence.position = position = sequence.position + 1
            if position >= sequence.fill_at:
                self._fill(sequence)
            length = len(sequence.answer.ids)
            if position >= length or position == 1 or position - sequence.sent >= tokens_per_chunk:
                if self._stream:
                    self._send_chunk(sequence)
                    if self.idle:
                        return
                if position >= length:
                    self._end_sequence(sequence)
                    if self.idle:
                        return

    # What the engine calls.

    def abort(self) -> None:
        """Abort was called: the stream ends at once, with a message that has no ids."""
        for index in range(self.sequences):
            if not self._stream or not self._sequences or not self._sequences[index].done:
                self._send(_response(self._complete(index, "abort")))
        self._call.finish()
        self._close()

    def cancel(self) -> None:
        """The client is gone, or the engine ends."""
        self._close()

    # Messages.

    def _send_chunk(self, sequence: _Sequence) -> None:
        sequence.chunk_start = sent = sequence.sent
        sequence.sent = position = sequence.position
        ids = sequence.answer.ids[sent:position]
        more = b""
        sampling = self._sampling
        if sampling.logprobs is not None:
            more = _field(_OUTPUT_LOGPROBS, self._output_logprobs(ids).SerializeToString())
        if sampling.prompt_logprobs is not None and not sent:
            more += _field(_INPUT_LOGPROBS, self._input_logprobs().SerializeToString())
        message = sequence.writer.chunk(ids, more)
        if self._break_after < 0:
            self._call.send(message)
        else:
            self._send(message)

    def _end_sequence(self, sequence: _Sequence) -> None:
        sequence.done = True
        self._cache.release(sequence.lease)
        if self._stream:
            self._send(_response(self._complete_of(sequence, sequence.chunk_start)))
        if self.idle or not all(each.done for each in self._sequences):
            return
        if not self._stream:
            for each in self._sequences:
                self._send(_response(self._complete_of(each, 0)))
                if self.idle:
                    return
        self._call.finish()
        self._close()

    def _complete_of(self, sequence: _Sequence, first: int) -> vllm_engine_pb2.GenerateComplete:
        answer = sequence.answer
        ids = answer.ids[first:]
        complete = self._complete(sequence.index, self._faults.finish_reason or answer.finish_reason)
        complete.output_ids.extend(ids)
        complete.completion_tokens = len(ids)
        if answer.matched_token_id is not None:
            complete.matched_token_id = answer.matched_token_id
        elif answer.matched_stop_str is not None:
            complete.matched_stop_str = answer.matched_stop_str
        if self._sampling.logprobs is not None:
            complete.output_logprobs.CopyFrom(self._output_logprobs(ids))
        if self._sampling.prompt_logprobs is not None and not self._stream:
            complete.input_logprobs.CopyFrom(self._input_logprobs())
        return complete

    def _complete(self, index: int, finish_reason: str) -> vllm_engine_pb2.GenerateComplete:
        return vllm_engine_pb2.GenerateComplete(
            finish_reason=finish_reason,
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            index=index,
        )

    def _output_logprobs(self, ids: Sequence[int]) -> vllm_engine_pb2.OutputLogProbs:
        return logprobs.of_output(ids, self._sampling.logprobs or 0, self._vocabulary)

    def _input_logprobs(self) -> vllm_engine_pb2.InputLogProbs:
        return logprobs.of_prompt(self.prompt, self._sampling.prompt_logprobs or 0, self._vocabulary)

    def _send(self, message: bytes) -> None:
        if self._messages == self._break_after:
            self._break(message)
            if self.idle:
                return
        self._messages += 1
        self._call.send(message)

    def _break(self, message: bytes) -> None:
        """In place of the message, or before it."""
        faults = self._faults
        call = cast(_Breakable, self._call)
        self._break_after = -1
        match faults.break_kind:
            case Break.ERROR:
                self._call.finish(faults.status, faults.details)
                self._close()
            case Break.STALL:
                self.idle = True
            case Break.RESET:
                self._end_abruptly(call.reset)
            case Break.CUT:
                call.send_half(message)
                self._end_abruptly(call.reset)
            case Break.HEADERS:
                call.open()
                self._end_abruptly(lambda: self._call.finish(faults.status, faults.details))
            case Break.DIE:
                self._end_abruptly(self._die)
            case Break.RESTART:
                self._end_abruptly(self._restart)
            case Break.GARBAGE:
                self._call.send(_GARBAGE)
            case Break.FOREIGN:
                self._call.send(_FOREIGN)

    def _end_abruptly(self, action: Callable[[], None]) -> None:
        # A reset overtakes what was sent with it, and clients drop what they read together with it.
        asyncio.get_running_loop().call_later(ABRUPT_END_DELAY_S, action)
        self._close()

    # The KV cache.

    def _fill(self, sequence: _Sequence) -> None:
        """The tokens before the newest are computed, and fill a block."""
        computed = sequence.position - 1
        self._cache.extend(sequence.lease, sequence.answer.ids[sequence.computed : computed])
        sequence.computed = computed
        sequence.fill_at = computed + self._cache.block_tokens - len(sequence.lease.pending) + 1

    def _close(self) -> None:
        """Give everything back, exactly once."""
        if self.done:
            return
        self.done = self.idle = True
        if self._lease is not None:
            self._cache.release(self._lease)
            self._lease = None
        for sequence in self._sequences:
            if not sequence.done:
                sequence.done = True
                self._cache.release(sequence.lease)
        self._ended(self)


def _response(complete: vllm_engine_pb2.GenerateComplete) -> bytes:
    message: bytes = vllm_engine_pb2.GenerateResponse(complete=complete).SerializeToString()
    return message


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content
