"""One request's way from its head to a worker."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from extproc.dialects.base import AnswerIdentity, Rendered
from extproc.dialects.routes import Operation, find_route
from extproc.exchange.application import Forward, Outcome, ReadBody, Reply, RequestHead
from extproc.gateway.answer import AnswerParts, EngineAnswer
from extproc.gateway.backend import Backend
from extproc.gateway.tokenization import detokenize, tokenize
from extproc.ir import ChatRequest, ErrorInfo, ErrorKind, RequestError
from extproc.observe.metrics import RequestAccount
from extproc.output.answer_text import AnswerText
from extproc.tokens.model import Prompt

if TYPE_CHECKING:
    from extproc.gateway.gateway import Gateway

DESTINATION = "x-gateway-destination-endpoint"
POOL = "x-gateway-pool"
DEBUG = "x-gateway-debug"
DECISION = "x-gateway-decision"
LOSSES = "x-gateway-losses"

_REMOVED = (
    # They describe the client's body.
    "content-length",
    "content-encoding",
    "accept-encoding",
    "expect",
    # A gRPC server would obey them.
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-status",
    # Secrets between the client and Envoy.
    "authorization",
    "proxy-authorization",
    "cookie",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    DEBUG,
)
"""Request headers that do not reach an engine."""

_MOST_LOSSES_BYTES = 8192

_RETRY_AFTER_S = 1.0

_OPERATION_NAMES = {operation: operation.value for operation in Operation} | {Operation.CHAT_COMPLETIONS: "chat"}
"""As metrics call them; `chat` is OpenTelemetry's name."""


class GatewayRequest:
    """The `Request` of an exchange."""

    __slots__ = ("_account", "_explain", "_forwarded", "_gateway", "_operation", "_request_id")

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._account = RequestAccount(gateway.metrics)
        self._forwarded = False
        self._operation = Operation.CHAT_COMPLETIONS
        self._request_id = ""
        self._explain = False

    def head(self, head: RequestHead) -> ReadBody | Outcome:
        """Which operation it is; a whole reply where that is all."""
        gateway = self._gateway
        headers = head.headers
        self._request_id = headers.get("x-request-id", "")
        try:
            route = find_route(head.method, head.path)
            self._operation = route.operation
            self._account.operation = _OPERATION_NAMES[route.operation]
            if route.operation is Operation.LIST_MODELS:
                return self._reply(gateway.models.list())
            if route.operation is Operation.GET_MODEL:
                return self._reply(gateway.models.get(route.argument))
            encoding = headers.get("content-encoding", "")
            if encoding.lower() not in ("", "identity"):
                raise RequestError(
                    ErrorInfo(
                        kind=ErrorKind.INVALID_REQUEST,
                        message=f"Content-Encoding {encoding[:64]!r} is not supported; send the body as it is.",
                        code="unsupported_content_encoding",
                    )
                )
        except RequestError as error:
            return self._error(error.info)
        self._explain = headers.get(DEBUG) == "1" and gateway.may_debug(_source(head))
        return ReadBody(gateway.body_limit_bytes)

    def body(self, data: bytes) -> Outcome | Awaitable[Outcome]:
        """Parse, tokenize, choose, encode."""
        if self._operation is not Operation.CHAT_COMPLETIONS:
            return self._answer_alone(data)
        gateway = self._gateway
        try:
            chat = gateway.chat.parse(data)
            self._account.names_model(chat.model)
            backend = gateway.backend_for(chat.model)
            backend.check_size(chat)
            prompt = backend.ready_tokens().prompt(chat)
            if isinstance(prompt, Prompt):
                return self._dispatch(chat, backend, prompt)
        except RequestError as error:
            return self._error(error.info)
        return self._dispatch_later(chat, backend, prompt)

    async def _dispatch_later(self, chat: ChatRequest, backend: Backend, prompt: Awaitable[Prompt]) -> Outcome:
        try:
            return self._dispatch(chat, backend, await prompt)
        except RequestError as error:
            return self._error(error.info)

    async def _answer_alone(self, data: bytes) -> Outcome:
        answer = tokenize if self._operation is Operation.TOKENIZE else detokenize
        try:
            return self._reply(await answer(self._gateway, self._account, data))
        except RequestError as error:
            return self._error(error.info)

    def _dispatch(self, chat: ChatRequest, backend: Backend, prompt: Prompt) -> Forward:
        """Everything that may refuse comes before the reservation, so that nothing has to be taken back."""
        ids = prompt.ids
        length = len(ids)
        backend.check_length(length)
        gateway = self._gateway
        sampling = backend.check_sampling(chat.sampling)
        identity = AnswerIdentity("chatcmpl-" + os.urandom(16).hex(), int(time.time()), chat.model)
        engine_request = backend.engine.generate(identity.id, ids, sampling, stream=chat.stream)
        decoder = backend.engine.decoder(sampling.n)
        tokens = backend.ready_tokens()
        text = AnswerText(sampling, tokens)
        dialect = gateway.chat
        renderer = dialect.stream(chat, identity) if chat.stream else None
        whole = None if chat.stream else dialect.whole(chat, identity)
        headers = [("x-request-id", self._request_id)] if self._request_id else []
        pool = backend.pool
        if self._explain:
            reservation, decision = pool.reserve_explained(length)
            headers.append((DECISION, msgspec.json.encode(decision).decode("ascii", "replace")))
            if chat.losses:
                # Envoy refuses an answer whose headers are too large.
                losses = msgspec.json.encode(chat.losses).decode("ascii", "replace")
                headers.append((LOSSES, losses[:_MOST_LOSSES_BYTES]))
        else:
            reservation = pool.reserve(length)
        if chat.stream:
            headers.append(("cache-control", "no-cache"))
        account = self._account
        account.pool = pool.name
        parts = AnswerParts(dialect, account, reservation, decoder, text, renderer, whole, tuple(headers))
        answer = EngineAnswer(parts)
        self._forwarded = True
        destinations = reservation.destinations
        return Forward(
            (
                (":path", engine_request.path),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                (POOL, pool.name),
                (DESTINATION, destinations),
            ),
            _REMOVED,
            engine_request.body,
            {"envoy.lb": {DESTINATION: destinations}},
            answer,
        )

    def too_large(self) -> Reply:
        """413."""
        limit = self._gateway.body_limit_bytes
        return self._error(ErrorInfo(kind=ErrorKind.TOO_LARGE, message=f"The request's body is over {limit} bytes."))

    def no_room(self) -> Reply:
        """503."""
        return self._error(
            ErrorInfo(
                kind=ErrorKind.UNAVAILABLE,
                message="The gateway holds as many request bodies as it may. Try again shortly.",
                code="overloaded",
                retry_after_s=_RETRY_AFTER_S,
            )
        )

    def expire(self) -> Reply:
        """504."""
        self._account.exceeds_deadline()
        return self._error(
            ErrorInfo(kind=ErrorKind.TIMEOUT, message="The request took longer than this gateway allows.")
        )

    def fail(self) -> Reply:
        """500."""
        return self._error(ErrorInfo(kind=ErrorKind.SERVER, message="An internal error stopped the request."))

    def close(self) -> None:
        """Nothing is held before an answer has it, and then the account is the answer's."""
        if not self._forwarded:
            self._account.closes()

    def _error(self, error: ErrorInfo) -> Reply:
        rendered = self._gateway.chat.error(error)
        return self._reply(rendered, error.code or error.kind.value, error.kind.value)

    def _reply(self, rendered: Rendered, details: str = "", error_type: str = "") -> Reply:
        self._account.replies(rendered.status, error_type)
        headers = rendered.headers
        if self._request_id:
            headers = (*headers, ("x-request-id", self._request_id))
        return Reply(rendered.status, headers, rendered.body, details)


def _source(head: RequestHead) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The client's address as Envoy saw it, where the configuration asks for the attribute."""
    address = head.attributes.get("source.address")
    if not isinstance(address, str):
        return None
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
