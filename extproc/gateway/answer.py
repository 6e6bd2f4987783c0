"""An engine's gRPC answer, turned into the client's dialect while it comes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct

from extproc.dialects.base import StreamRenderer, WholeRenderer
from extproc.dialects.routes import Route
from extproc.engines.base import Decoder, EngineEvent, ProtocolError, Tokens
from extproc.exchange.application import AnswerHead, Begin, Piece
from extproc.gateway import local_reply
from extproc.ir import ABORTED, TRUNCATED, ErrorInfo, ErrorKind, Usage
from extproc.observe.metrics import RequestAccount
from extproc.output.answer_text import AnswerText
from extproc.routing.reservation import Reservation

_log = logging.getLogger(__name__)

_KEPT = frozenset(("date", "server", "x-envoy-upstream-service-time"))
"""The upstream's headers that pass. All others describe a body that the client does not get, or the engine's inside."""

_KEPT_OF_LOCAL = ("x-ratelimit-", "ratelimit-", "x-envoy-", "www-authenticate")
"""Beginnings of headers that also pass when the answer is Envoy's own: its filters tell clients something with them."""

DEADLINE = ErrorInfo(kind=ErrorKind.TIMEOUT, message="The answer took longer than this gateway allows.")
INTERNAL = ErrorInfo(kind=ErrorKind.SERVER, message="An internal error broke the answer off.")
UNREADABLE = ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="The engine sent an answer that cannot be read.")

FAULTS = frozenset((ErrorKind.SERVER, ErrorKind.BAD_GATEWAY, ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT))
"""Errors of an engine that are its own and not the request's: those that are 5xx."""


def note_server(head: AnswerHead, reservation: Reservation, account: RequestAccount) -> None:
    """The load goes to the worker that really answers, which after a retry is another one."""
    served_by = head.served_by
    if served_by is not None and served_by != reservation.worker.address:
        if reservation.served_by(served_by):
            account.retried()
        else:
            account.destination_ignored()
            _log.warning("the answer came from %s, which is not a worker of the pool", served_by)


def removed_headers(headers: Mapping[str, str], *, local: bool) -> tuple[str, ...]:
    """Which of the upstream's headers the client does not get. `local`: they are Envoy's own."""
    removed = [name for name in headers if name not in _KEPT and name[0] != ":"]
    return tuple([name for name in removed if not name.startswith(_KEPT_OF_LOCAL)] if local else removed)


class AnswerParts(Struct, frozen=True):
    """What an answer is put together from; made when its request is dispatched."""

    route: Route  # its dialect renders errors
    account: RequestAccount
    reservation: Reservation
    decoder: Decoder
    text: AnswerText
    stream: StreamRenderer | None  # exactly one of `stream` and `whole`
    whole: WholeRenderer | None
    headers: tuple[tuple[str, str], ...]  # for the client, whatever the answer will be


class EngineAnswer:
    """The `Answer` of a forwarded request.

    The status that the client gets is known with the engine's first message or its end, so the answer begins then: an
    engine that refuses after it sent headers still gives the right HTTP status.
    """

    __slots__ = (
        "_account",
        "_begun",
        "_decoder",
        "_foreign",
        "_generated",
        "_headers",
        "_heard_tokens",
        "_removed",
        "_reservation",
        "_route",
        "_stream",
        "_text",
        "_unheard_tokens",
        "_waiting",
        "_whole",
        "_worker_fault",
    )

    def __init__(self, parts: AnswerParts) -> None:
        self._route = parts.route
        self._account = parts.account
        self._reservation = parts.reservation
        self._generated = parts.reservation.generated
        self._decoder = parts.decoder
        self._text = parts.text
        self._stream = parts.stream
        self._whole = parts.whole
        self._headers = parts.headers
        self._removed: tuple[str, ...] = ()
        self._foreign: ErrorInfo | None = None
        self._worker_fault = False  # of what answers in the engine's place
        self._waiting = True  # for the engine's first message
        self._begun = False
        self._heard_tokens = 0  # when it was last asked for a sign of life
        self._unheard_tokens = 0  # of which the client got nothing yet, or never will

    def head(self, head: AnswerHead) -> Begin | None:
        """Nothing can be said yet; what is not the engine's answer is told apart here."""
        note_server(head, self._reservation, self._account)
        headers = head.headers
        self._removed = removed_headers(headers, local=head.local)
        if head.local:
            self._foreign = local_reply.error_of(head.status, headers, head.details)
            self._worker_fault = local_reply.blames_worker(head.details)
        elif head.status != 200 or not _is_grpc(headers.get("content-type", "")):
            self._foreign = local_reply.error_of_upstream(head.status, headers)
            self._worker_fault = head.status >= 500
        return None

    def body(self, data: bytes) -> Begin | Piece | None:
        """Engine frames, cut anywhere."""
        if self._foreign is not None:
            return None
        try:
            engine_events = self._decoder.feed(data)
            return self._events(engine_events) if engine_events else None
        except ProtocolError as error:
            _log.error("worker %s broke its protocol: %s", self._reservation.worker.label, error)
            self._account.protocol_error()
            self._reservation.failed()
            return self._broken(UNREADABLE)

    def _events(self, engine_events: list[EngineEvent]) -> Begin | Piece | None:
        if self._waiting:
            self._waiting = False
            self._reservation.first_token(self._decoder.cached_tokens)
        generated = self._generated
        if generated is not None:
            for event in engine_events:
                if type(event) is Tokens and not event.choice:
                    generated.extend(event.ids)
        text = self._text
        events = text.feed(engine_events)
        if text.aborted:
            self._reservation.failed()
            return self._broken(ABORTED)
        # Our own stop string ended the last choice: the engine need not go on.
        early = text.finished and not self._decoder.finished
        stream = self._stream
        if stream is None:
            whole = self._whole
            assert whole is not None
            whole.events(events)
            return self._begin(whole.content_type, whole.end(self._complete()), end=True) if early else None
        begun = self._begun
        if begun:
            body = stream.events(events)
        else:
            self._account.begins()
            body = stream.start() + stream.events(events)
        if early:
            body += stream.end(self._complete())
        if begun:
            if body or early:
                return Piece(body, early)
            self._unheard_tokens += sum([len(event.ids) for event in engine_events if type(event) is Tokens])
            return None
        return self._begin(stream.content_type, body, end=early)

    def end(self, trailers: Mapping[str, str]) -> Begin | Piece | None:
        """The engine's end, or Envoy's reply in its place."""
        error = self._foreign or self._decoder.end(trailers)
        if error is None and not self._text.finished:
            error = TRUNCATED
        if error is not None:
            if error is self._foreign:
                if self._worker_fault:
                    self._reservation.failed()
            elif error.kind in FAULTS:
                self._reservation.failed()
            else:
                self._reservation.succeeded()  # it has answered, if only with what is wrong or that it is full
            return self._broken(error)
        stream = self._stream
        if stream is not None:
            if self._begun:
                return Piece(stream.end(self._complete()))
            return self._begin(stream.content_type, stream.start() + stream.end(self._complete()))
        whole = self._whole
        assert whole is not None
        return self._begin(whole.content_type, whole.end(self._complete()))

    def keep_alive(self) -> Piece | None:
        """A sign of life where the client has got nothing since this was last called.

        The engine's count of tokens tells, so that nothing is kept for it with each token.
        """
        stream = self._stream
        if stream is None or not self._begun:
            return None
        heard = self._decoder.completion_tokens - self._unheard_tokens
        if heard != self._heard_tokens:
            self._heard_tokens = heard
            return None
        sign = stream.keep_alive
        return Piece(sign) if sign else None

    def expire(self) -> Begin | Piece:
        """The deadline has passed."""
        self._account.exceeds_deadline()
        if self._waiting:
            self._reservation.failed()  # not a word in all that time
        return self._broken(DEADLINE)

    def fail(self) -> Begin | Piece:
        """An internal error, which the exchange has logged."""
        return self._broken(INTERNAL)

    def close(self) -> None:
        """Release the reservation."""
        self._reservation.settle()
        self._account.closes()

    def _begin(self, content_type: str, body: bytes, *, end: bool = False) -> Begin:
        self._begun = True
        headers = (("content-type", content_type), *self._headers, *self._reservation.answer_headers())
        return Begin(200, headers, self._removed, body, end)

    def _broken(self, error: ErrorInfo) -> Begin | Piece:
        """The answer's last words. Nothing of the upstream is waited for."""
        stream = self._stream
        if self._begun:
            # An answer given whole has ended with its beginning.
            self._account.replies(200, error.kind.value)
            return Piece(stream.error(error) if stream is not None else b"", end=True)
        route = self._route
        rendered = route.dialect.error(error, route.inbound)
        self._begun = True
        self._account.replies(rendered.status, error.kind.value)
        return Begin(rendered.status, (*rendered.headers, *self._headers), self._removed, rendered.body, end=True)

    def _complete(self) -> Usage:
        """The answer has come whole: what it took."""
        decoder = self._decoder
        usage = Usage(
            decoder.prompt_tokens, decoder.completion_tokens, decoder.cached_tokens, self._text.reasoning_tokens
        )
        self._reservation.succeeded()
        self._account.completes(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        return usage


def _is_grpc(content_type: str) -> bool:
    return content_type == "application/grpc" or content_type.startswith(("application/grpc+", "application/grpc;"))
