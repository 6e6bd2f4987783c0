"""The answer of an engine over HTTP, on its way to the client."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct

from extproc.dialects.routes import Route
from extproc.engines.base import ProtocolError
from extproc.engines.openai_errors import error_of_status
from extproc.exchange.application import AnswerHead, Begin, Piece
from extproc.gateway import local_reply
from extproc.gateway.answer import DEADLINE, FAULTS, INTERNAL, UNREADABLE, note_server, removed_headers
from extproc.gateway.http_carriers import Carrier
from extproc.ir import ErrorInfo, ErrorKind, RequestError
from extproc.observe.metrics import RequestAccount
from extproc.routing.reservation import Reservation

_log = logging.getLogger(__name__)

_MOST_ERROR_BYTES = 64 << 10
_NO_ANSWER = ErrorInfo(
    kind=ErrorKind.BAD_GATEWAY, message="The engine's answer is in a form that was not asked for.", code="wrong_form"
)


class HttpAnswerParts(Struct, frozen=True):
    """What an answer is put together from; made when its request is dispatched."""

    route: Route  # its dialect renders errors
    account: RequestAccount
    reservation: Reservation
    carrier: Carrier
    headers: tuple[tuple[str, str], ...]  # for the client, whatever the answer will be


class HttpAnswer:
    """The `Answer` of a request that went to an HTTP engine.

    It begins with the engine's first event, or where it is not streamed with its end, so that an engine that fails
    before gives the right HTTP status.
    """

    __slots__ = (
        "_account",
        "_begun",
        "_carrier",
        "_headers",
        "_held",
        "_last",
        "_local",
        "_refusal",
        "_refused",
        "_removed",
        "_reservation",
        "_route",
        "_seen",
        "_status",
        "_upstream_headers",
        "_waiting",
        "_worker_fault",
    )

    def __init__(self, parts: HttpAnswerParts) -> None:
        self._route = parts.route
        self._account = parts.account
        self._reservation = parts.reservation
        self._carrier = parts.carrier
        self._headers = parts.headers
        self._removed: tuple[str, ...] = ()
        self._upstream_headers: Mapping[str, str] = {}
        self._status = 0
        self._local: ErrorInfo | None = None  # of what answers in the engine's place
        self._worker_fault = False
        self._refused = False  # by the engine, whose body says why
        self._refusal = b""
        self._waiting = True  # for the engine's first token
        self._held = b""
        self._begun = False
        self._last = b""  # what was sent last
        self._seen: bytes | None = None  # when it was last asked for a sign of life

    def head(self, head: AnswerHead) -> Begin | None:
        """Nothing can be said yet."""
        note_server(head, self._reservation, self._account)
        headers = head.headers
        self._removed = removed_headers(headers, local=head.local)
        if head.local:
            self._local = local_reply.error_of(head.status, headers, head.details)
            self._worker_fault = local_reply.blames_worker(head.details)
        elif head.status != 200:
            self._refused = True
            self._status = head.status
            self._upstream_headers = headers
        elif headers.get("content-encoding", "identity") != "identity" or not self._carrier.head(
            headers.get("content-type", "").partition(";")[0].strip().lower()
        ):
            self._local = _NO_ANSWER
            self._worker_fault = True
        return None

    def body(self, data: bytes) -> Begin | Piece | None:
        """The engine's bytes, cut anywhere."""
        if self._local is not None:
            return None
        if self._refused:
            if len(self._refusal) < _MOST_ERROR_BYTES:
                self._refusal += data
            return None
        carrier = self._carrier
        try:
            out = carrier.feed(data)
        except ProtocolError as error:
            return self._unreadable(error)
        if self._waiting and carrier.begun:
            self._waiting = False
            self._reservation.first_token()
        if carrier.error is not None:
            return self._failed(carrier.error, out)
        if self._begun:
            if not out:
                return None
            self._last = out
            return Piece(out)
        if not out or not carrier.begun:
            self._held += out
            return None
        self._account.begins()
        return self._begin(out)

    def end(self, trailers: Mapping[str, str]) -> Begin | Piece | None:
        """The engine's end, or Envoy's reply in its place."""
        if self._local is not None:
            if self._worker_fault:
                self._reservation.failed()
            return self._broken(self._local)
        if self._refused:
            return self._failed(error_of_status(self._status, self._upstream_headers, self._refusal))
        carrier = self._carrier
        try:
            out = carrier.end()
        except ProtocolError as error:
            return self._unreadable(error)
        except RequestError as error:
            return self._failed(error.info)
        if carrier.error is not None:
            return self._failed(carrier.error, out)
        usage = carrier.usage
        self._reservation.succeeded()
        self._account.completes(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        return Piece(out) if self._begun else self._begin(out)

    def keep_alive(self) -> Piece | None:
        """A sign of life where the client has got nothing since this was last called."""
        last = self._last
        if last is not self._seen:
            self._seen = last
            return None
        # Carriers pass whole events alone, so this is never within one.
        sign = self._carrier.keep_alive
        return Piece(sign) if sign and self._begun else None

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

    def _begin(self, out: bytes) -> Begin:
        self._begun = True
        body, self._held = self._held + out, b""
        self._last = body
        headers = (("content-type", self._carrier.content_type), *self._headers, *self._reservation.answer_headers())
        return Begin(200, headers, self._removed, body)

    def _unreadable(self, error: ProtocolError) -> Begin | Piece:
        _log.error("worker %s broke its protocol: %s", self._reservation.worker.label, error)
        self._account.protocol_error()
        self._reservation.failed()
        return self._broken(UNREADABLE)

    def _failed(self, error: ErrorInfo, out: bytes = b"") -> Begin | Piece:
        """The engine says what is wrong, or broke off. `out`: what it said before, and for the client."""
        if error.kind in FAULTS:
            self._reservation.failed()
        else:
            self._reservation.succeeded()  # it has answered, if only with what is wrong or that it is full
        return self._broken(error, out)

    def _broken(self, error: ErrorInfo, out: bytes = b"") -> Begin | Piece:
        """The answer's last words. Nothing of the upstream is waited for."""
        if self._begun:
            self._account.replies(200, error.kind.value)
            return Piece(out + self._carrier.broken(error), end=True)
        route = self._route
        rendered = route.dialect.error(error, route.inbound)
        self._begun = True
        self._account.replies(rendered.status, error.kind.value)
        return Begin(rendered.status, (*rendered.headers, *self._headers), self._removed, rendered.body, end=True)
