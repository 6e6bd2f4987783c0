"""One request's way from its head to a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from extproc.dialects.base import AnswerIdentity, ChatCodec, Rendered
from extproc.dialects.routes import Route
from extproc.exchange.application import Answer, Forward, Outcome, ReadBody, Reply, RequestHead
from extproc.gateway.alone import HANDLERS, Handler, models_now
from extproc.gateway.answer import AnswerParts, EngineAnswer
from extproc.gateway.backend import Backend
from extproc.gateway.headers import (
    DEBUG,
    DECISION,
    DESTINATION,
    POOL,
    REMOVED,
    REMOVED_BUT_KEY,
    losses_header,
    source_of,
)
from extproc.gateway.http_answer import HttpAnswer, HttpAnswerParts
from extproc.gateway.http_request import (
    OWN_FORMS,
    HttpRequest,
    known_of,
    own_prompt,
    own_request,
    prompt_of,
    read_own,
    translated_request,
)
from extproc.gateway.plan import check_tools, plan_answer
from extproc.gateway.prepared import Prepared
from extproc.gateway.texts import answer_texts, embed, prepare_text, read_texts
from extproc.ir import ChatRequest, ErrorInfo, ErrorKind, Loss, Operation, RequestError, Usage
from extproc.observe.metrics import RequestAccount
from extproc.output.answer_text import AnswerText
from extproc.routing.facts import RouteFacts
from extproc.routing.reservation import Decision, Reservation
from extproc.token_ids import TokenIds
from extproc.tokens.model import Prompt

if TYPE_CHECKING:
    from extproc.gateway.gateway import Gateway

_GRPC_HEADERS = (("content-type", "application/grpc"), ("te", "trailers"))

_OF_MODELS = frozenset((Operation.LIST_MODELS, Operation.GET_MODEL))


_RETRY_AFTER_S = 1.0

_OPERATION_NAMES = {operation: operation.value for operation in Operation} | {
    Operation.GENERATE: "chat",
    Operation.COMPLETE: "text_completion",
    Operation.EMBED: "embeddings",
}
"""As metrics call them; those that differ are OpenTelemetry's names."""


class GatewayRequest:
    """The `Request` of an exchange."""

    __slots__ = (
        "_account",
        "_backend",
        "_decision",
        "_explain",
        "_forwarded",
        "_gateway",
        "_priority",
        "_request_id",
        "_route",
        "_route_headers",
        "_tenant",
    )

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._account = RequestAccount(gateway.metrics)
        self._forwarded = False
        self._route: Route = gateway.no_route
        self._request_id = ""
        self._backend: Backend | None = None  # as chosen before the body was read whole
        self._explain = False
        self._decision: Decision | None = None
        self._route_headers: Mapping[str, str] = {}  # that policies look at
        self._tenant = ""
        self._priority = 0

    def head(self, head: RequestHead) -> ReadBody | Outcome:
        """Which operation it is; a whole reply where that is all."""
        gateway = self._gateway
        headers = head.headers
        self._request_id = headers.get("x-request-id", "")
        route = self._route = gateway.routes.find(head.method, head.path, headers)
        operation = route.operation
        if operation is None:
            assert route.error is not None
            return self._error(route.error)
        self._account.operation = _OPERATION_NAMES[operation]
        try:
            if operation in _OF_MODELS and head.method == "GET":
                return self._reply(models_now(gateway, route, b""))
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
        self._explain = headers.get(DEBUG) == "1" and gateway.may_debug(source_of(head))
        if gateway.route_headers:
            self._route_headers = {name: headers[name] for name in gateway.route_headers if name in headers}
        tenants = gateway.tenants
        if tenants is not None:
            self._tenant = tenants.tenant(headers)
            self._priority = tenants.priority(headers)
        return ReadBody(gateway.body_limit_bytes)

    def body(self, data: bytes) -> Outcome | Awaitable[Outcome]:
        """Parse, tokenize, choose, encode."""
        route, gateway = self._route, self._gateway
        if gateway.has_http and route.dialect.name in OWN_FORMS:
            outcome = self._pass_on(data)
            if outcome is not None:
                return outcome
        if route.operation is Operation.COMPLETE:
            return self._continue_texts(data)
        if route.operation is Operation.EMBED:
            return self._embed(data)
        codec = route.dialect.chat
        if codec is None or route.operation is not Operation.GENERATE:
            assert route.operation is not None
            return self._answer_alone(HANDLERS[route.operation], data)
        try:
            chat = codec.parse(route.inbound, data)
            backend = self._backend_for(chat.model)
            if backend.http is not None:
                make = partial(translated_request, chat, codec, backend, self._facts)
                return self._over_http(make, prompt_of(chat, backend))
            backend.check_size(chat)
            check_tools(chat, backend)
            prompt = backend.ready_tokens().prompt(chat)
            if isinstance(prompt, Prompt):
                return self._dispatch(codec, chat, backend, prompt)
        except RequestError as error:
            return self._error(error.info)
        return self._dispatch_later(codec, chat, backend, prompt)

    async def _dispatch_later(
        self, codec: ChatCodec, chat: ChatRequest, backend: Backend, prompt: Awaitable[Prompt]
    ) -> Outcome:
        try:
            outcome = self._dispatch(codec, chat, backend, await prompt)
            return outcome if isinstance(outcome, Forward) else await outcome
        except RequestError as error:
            return self._error(error.info)

    def _backend_for(self, model: str) -> Backend:
        """Raises RequestError. The choice between several pools is made once."""
        self._account.names_model(model)
        backend = self._backend
        if backend is None:
            backend = self._backend = self._gateway.backend_for(model)
        return backend

    def _pass_on(self, data: bytes) -> Outcome | Awaitable[Outcome] | None:
        """The client's own bytes, where the model's engines speak its dialect; None for all else."""
        route = self._route
        known = known_of(data)
        if known is None:
            return None
        try:
            backend = self._backend_for(known.model)
            if backend.http is None:
                return None
            form = OWN_FORMS[route.dialect.name]
            make = partial(own_request, read_own(known, form, data), backend, self._facts)
            return self._over_http(make, own_prompt(route.dialect.chat, route.inbound, data, backend))
        except RequestError as error:
            return self._error(error.info)

    def _over_http(
        self, make: Callable[[Prompt | None], HttpRequest], prompt: Prompt | Awaitable[Prompt | None] | None
    ) -> Forward | Awaitable[Outcome]:
        """`make`: from the prompt, where it is tokenized. Raises RequestError."""
        if prompt is None or isinstance(prompt, Prompt):
            return self._admit(make(prompt))
        return self._over_http_later(make, prompt)

    async def _over_http_later(
        self, make: Callable[[Prompt | None], HttpRequest], prompt: Awaitable[Prompt | None]
    ) -> Outcome:
        try:
            outcome = self._admit(make(await prompt))
            return outcome if isinstance(outcome, Forward) else await outcome
        except RequestError as error:
            return self._error(error.info)

    async def _continue_texts(self, data: bytes) -> Outcome:
        route, gateway = self._route, self._gateway
        codec = route.dialect.text
        assert codec is not None
        try:
            request = codec.parse(route.inbound, data)
            job = await read_texts(codec, request, self._backend_for(request.model))

            def facts_of(ids: TokenIds) -> RouteFacts:
                return self._facts(ids, request.user, streams=request.stream)

            if len(job.ids) == 1:
                outcome = self._admit(prepare_text(job, facts_of))
                return outcome if isinstance(outcome, Forward) else await outcome
            return self._whole(job.backend, request.losses, *await answer_texts(job, gateway.calls, facts_of))
        except RequestError as error:
            return self._error(error.info)

    async def _embed(self, data: bytes) -> Outcome:
        route, gateway = self._route, self._gateway
        codec = route.dialect.embed
        assert codec is not None
        try:
            request = codec.parse(route.inbound, data)
            backend = self._backend_for(request.model)
            answer = await embed(
                codec, request, backend, gateway.calls, lambda ids: self._facts(ids, request.user, streams=False)
            )
            return self._whole(backend, request.losses, *answer)
        except RequestError as error:
            return self._error(error.info)

    def _whole(self, backend: Backend, losses: tuple[Loss, ...], rendered: Rendered, usage: Usage) -> Reply:
        """The answer to calls that the processor has made itself: with too many decisions behind it to tell them."""
        account = self._account
        account.pool = backend.pool.name
        if losses:
            account.loses([loss.field for loss in losses])
            if self._explain:
                rendered = msgspec.structs.replace(rendered, headers=(*rendered.headers, losses_header(losses)))
        account.completes(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        return self._reply(rendered)

    async def _answer_alone(self, handler: Handler, data: bytes) -> Outcome:
        try:
            return self._reply(await handler(self._gateway, self._account, self._route, data))
        except RequestError as error:
            return self._error(error.info)

    def _dispatch(
        self, codec: ChatCodec, chat: ChatRequest, backend: Backend, prompt: Prompt
    ) -> Forward | Awaitable[Outcome]:
        """Everything that may refuse comes before the reservation, so that nothing has to be taken back."""
        ids = prompt.ids
        length = len(ids)
        backend.check_length(length)
        sampling = backend.check_sampling(chat.sampling)
        identity = AnswerIdentity(codec.id_prefix + os.urandom(16).hex(), int(time.time()), chat.model, length)
        plan = plan_answer(chat, backend, prompt.end, identity.id, codec.call_id_prefix)
        engine_request = backend.engine.generate(identity.id, ids, sampling, stream=chat.stream, output=plan.output)
        decoder = backend.engine.decoder(sampling.n)
        tokens = backend.ready_tokens()
        text = AnswerText(sampling, tokens, plan.reading)
        renderer = codec.stream(chat, identity) if chat.stream else None
        whole = None if chat.stream else codec.whole(chat, identity)
        facts = self._facts(ids, chat.user, streams=chat.stream)
        prepared = Prepared(backend, facts, plan.losses, engine_request, decoder, text, renderer, whole)
        return self._admit(prepared)

    def _facts(self, ids: TokenIds, user: str | None, *, streams: bool) -> RouteFacts:
        return RouteFacts(
            len(ids),
            ids,
            headers=self._route_headers,
            keys={"user": user} if user else {},
            tenant=self._tenant,
            priority=self._priority,
            streams=streams,
        )

    def _admit(self, prepared: Prepared | HttpRequest) -> Forward | Awaitable[Outcome]:
        """Raises RequestError."""
        admission = prepared.backend.pool.admission
        if admission is None:
            return self._forward(prepared, self._reserve(prepared))
        length = prepared.facts.prompt_tokens
        admitted = admission.admit(length, self._tenant, self._priority, lambda: self._reserve(prepared))
        if isinstance(admitted, Reservation):
            return self._forward(prepared, admitted)
        return self._forward_later(prepared, admitted)

    def _reserve(self, prepared: Prepared | HttpRequest) -> Reservation:
        """Choose the worker. Raises RequestError."""
        pool = prepared.backend.pool
        if not self._explain:
            return pool.reserve(prepared.facts)
        reservation, self._decision = pool.reserve_explained(prepared.facts)
        return reservation

    async def _forward_later(self, prepared: Prepared | HttpRequest, admitted: Awaitable[Reservation]) -> Outcome:
        try:
            return self._forward(prepared, await admitted)
        except RequestError as error:
            return self._error(error.info)

    def _forward(self, prepared: Prepared | HttpRequest, reservation: Reservation) -> Forward:
        """Hand over to the answer, which owns the reservation from now on."""
        route, account = self._route, self._account
        backend = prepared.backend
        answer: Answer
        if isinstance(prepared, HttpRequest):
            client_headers = self._client_headers(prepared.losses, streams=prepared.carrier.streams)
            answer = HttpAnswer(HttpAnswerParts(route, account, reservation, prepared.carrier, client_headers))
            path, body, headers = prepared.path, prepared.body, prepared.headers
            removed = REMOVED_BUT_KEY if any(name == "authorization" for name, _ in headers) else REMOVED
        else:
            engine_request = prepared.engine_request
            rank = reservation.worker.rank
            if rank is not None:
                engine_request = backend.engine.with_rank(engine_request, rank)
            client_headers = self._client_headers(prepared.losses, streams=prepared.stream is not None)
            answer = EngineAnswer(
                AnswerParts(
                    route,
                    account,
                    reservation,
                    prepared.decoder,
                    prepared.text,
                    prepared.stream,
                    prepared.whole,
                    client_headers,
                )
            )
            path, body, headers, removed = engine_request.path, engine_request.body, _GRPC_HEADERS, REMOVED
        self._forwarded = True
        account.pool = pool = backend.pool.name
        destinations = reservation.destinations
        return Forward(
            ((":path", path), *headers, (POOL, pool), (DESTINATION, destinations)),
            removed,
            body,
            {"envoy.lb": {DESTINATION: destinations}},
            answer,
        )

    def _client_headers(self, losses: tuple[Loss, ...], *, streams: bool) -> tuple[tuple[str, str], ...]:
        """What the client gets whatever the answer will be. Losses are counted with it."""
        headers = [(self._route.dialect.request_id_header, self._request_id)] if self._request_id else []
        if losses:
            self._account.loses([loss.field for loss in losses])
        if self._decision is not None:
            headers.append((DECISION, msgspec.json.encode(self._decision).decode("ascii", "replace")))
            if losses:
                headers.append(losses_header(losses))
        if streams:
            headers.append(("cache-control", "no-cache"))
        return tuple(headers)

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
        route = self._route
        rendered = route.dialect.error(error, route.inbound)
        return self._reply(rendered, error.code or error.kind.value, error.kind.value)

    def _reply(self, rendered: Rendered, details: str = "", error_type: str = "") -> Reply:
        self._account.replies(rendered.status, error_type)
        headers = rendered.headers
        if self._request_id:
            headers = (*headers, (self._route.dialect.request_id_header, self._request_id))
        return Reply(rendered.status, headers, rendered.body, details)
