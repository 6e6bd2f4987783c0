"""Requests for engines over HTTP: the client's own bytes where it speaks their dialect, else a translation."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from extproc.dialects.base import AnswerIdentity, ChatCodec, Inbound
from extproc.dialects.json_body import invalid, unsupported
from extproc.engines.json_members import Members, MembersError, members_of
from extproc.engines.openai_answer import OpenAIDecoder
from extproc.engines.openai_request import CHAT_PATH, chat_body
from extproc.engines.openai_tap import NameChange
from extproc.gateway.backend import Backend
from extproc.gateway.http_carriers import Carrier, EchoStream, EchoWhole, TranslatedStream, TranslatedWhole
from extproc.gateway.plan import call_id, check_tools
from extproc.ir import ChatRequest, Loss, RequestError
from extproc.routing.facts import RouteFacts
from extproc.token_ids import WIDTH, TokenIds
from extproc.tokens.model import Prompt

_CONTROL = frozenset(
    (
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "chat_template",
        "custom_logit_processor",
        "data_parallel_rank",
        "kv_transfer_params",
        "priority",
        "rid",
        "routed_dp_rank",
        "session_params",
    )
)
"""Fields with which a client would command the engine and not its own answer."""

_MOST_CHOICES = 128
_UNKNOWN_CHOICES = 1 << 31


class OwnForm(Struct, frozen=True):
    """An API of OpenAI's that engines have, too."""

    path: str
    prompt: tuple[str, ...]  # fields that the prompt is made from


OWN_FORMS: Mapping[str, OwnForm] = {
    "openai_chat": OwnForm(CHAT_PATH, ("tools", "messages")),
    "openai_completions": OwnForm("/v1/completions", ("prompt",)),
    "openai_embeddings": OwnForm("/v1/embeddings", ("input",)),
}
"""By the dialect's name."""


class FactsOf(Protocol):
    """What policies see of a request, from the ids that its prompt is known by."""

    def __call__(self, ids: TokenIds, user: str | None, *, streams: bool) -> RouteFacts: ...


class HttpRequest(Struct, frozen=True):
    """A request for an HTTP engine, before its worker is chosen."""

    backend: Backend
    facts: RouteFacts
    losses: tuple[Loss, ...]
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    carrier: Carrier


class _Options(Struct):
    include_usage: bool | None = None


class Known(Struct):
    """What of a body in the engines' own dialect matters here."""

    model: str
    stream: bool | None = None
    stream_options: _Options | None = None
    n: int | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, msgspec.Raw] | None = None


class OwnBody(Struct, frozen=True):
    """A client's body in the engines' own dialect."""

    form: OwnForm
    known: Known
    members: Members


_KNOWN = msgspec.json.Decoder(Known)


def known_of(body: bytes) -> Known | None:
    """None for a body that the dialect's own parser has to refuse."""
    try:
        return _KNOWN.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def read_own(known: Known, form: OwnForm, body: bytes) -> OwnBody:
    """Raises RequestError for what a client may not send to an engine."""
    try:
        members = members_of(body)
    except MembersError as error:
        raise invalid(f"The request body cannot be passed on: {error}.", None, "invalid_json") from None
    for name in _CONTROL & members.spans.keys():
        if members.value(name) != b"null":
            raise unsupported(f"Unsupported parameter: '{name}' is not supported.", name)
    if known.chat_template_kwargs and "chat_template" in known.chat_template_kwargs:
        raise unsupported(
            "Unsupported parameter: the chat template is the model's.", "chat_template_kwargs.chat_template"
        )
    if known.n is not None and not 1 <= known.n <= _MOST_CHOICES:
        raise invalid(f"Invalid value for 'n': expected an integer from 1 to {_MOST_CHOICES}.", "n", "invalid_value")
    return OwnBody(form, known, members)


def own_request(own: OwnBody, backend: Backend, facts_of: FactsOf, prompt: Prompt | None) -> HttpRequest:
    """The client's bytes with what must be another: the model's name, and that usage is told."""
    target = backend.http
    assert target is not None
    form, known, members = own.form, own.known, own.members
    changes: dict[str, bytes] = {}
    engine_name = target.engine_name(known.model)
    name = None
    if engine_name != known.model:
        changes["model"] = msgspec.json.encode(engine_name)
        name = NameChange(engine_name, known.model)
    streams = bool(known.stream)
    asked = known.stream_options is not None and known.stream_options.include_usage
    hides_usage = streams and not asked and target.asks_usage
    if hides_usage:
        changes["stream_options"] = _with_usage(members.value("stream_options"))
    # Of Chat alone it is known how many choices there are.
    choices = (known.n or 1) if form.path == CHAT_PATH else _UNKNOWN_CHOICES
    carrier: Carrier = EchoStream(choices, hides_usage=hides_usage, name=name) if streams else EchoWhole(name)
    text = b"".join([members.value(field) or b"" for field in form.prompt])
    return HttpRequest(
        backend,
        _facts(text, prompt, known.user, facts_of, streams=streams),
        (),
        target.path_prefix + form.path,
        (("content-type", "application/json"), *target.headers()),
        members.with_values(changes) if changes else members.text,
        carrier,
    )


def translated_request(
    chat: ChatRequest, codec: ChatCodec, backend: Backend, facts_of: FactsOf, prompt: Prompt | None
) -> HttpRequest:
    """For a client of another dialect. Raises RequestError for what the engines' dialect has no place for."""
    target = backend.http
    assert target is not None
    check_tools(chat, backend)
    body = chat_body(chat, target.engine_name(chat.model))
    answer_id = codec.id_prefix + os.urandom(16).hex()
    identity = AnswerIdentity(answer_id, int(time.time()), chat.model, 0 if prompt is None else len(prompt.ids))
    sampling = chat.sampling
    decoder = OpenAIDecoder(
        sampling.n,
        lambda choice, index: call_id(answer_id, choice, index, codec.call_id_prefix, short=False),
        stops=sampling.stop,
        custom=frozenset([tool.name for tool in chat.tools if tool.custom]),
        scores=sampling.top_logprobs is not None,
    )
    carrier: Carrier
    if chat.stream:
        carrier = TranslatedStream(decoder, codec.stream(chat, identity))
    else:
        carrier = TranslatedWhole(decoder, codec.whole(chat, identity))
    return HttpRequest(
        backend,
        _facts(body.prompt, prompt, chat.user, facts_of, streams=chat.stream),
        body.losses,
        target.path_prefix + CHAT_PATH,
        (("content-type", "application/json"), *target.headers()),
        body.body,
        carrier,
    )


def own_prompt(
    codec: ChatCodec | None, inbound: Inbound, body: bytes, backend: Backend
) -> Prompt | Awaitable[Prompt | None] | None:
    """The prompt's tokens of a body that goes through as it is. What only the engine understands has none.

    Raises RequestError (CONTEXT_LENGTH), at once or when awaited.
    """
    if backend.tokens is None or codec is None:
        return None
    try:
        chat = codec.parse(inbound, body)
    except RequestError:
        return None
    return prompt_of(chat, backend)


def prompt_of(chat: ChatRequest, backend: Backend) -> Prompt | Awaitable[Prompt | None] | None:
    """The prompt's tokens where the pool has a tokenizer and can use it; only routing wants them.

    Raises RequestError (CONTEXT_LENGTH), at once or when awaited.
    """
    tokens = backend.tokens
    if tokens is None:
        return None
    backend.check_size(chat)
    try:
        prompt = tokens.prompt(chat)
    except RequestError:
        return None  # the engine may take it, and else says why not
    if isinstance(prompt, Prompt):
        backend.check_length(len(prompt.ids))
        return prompt
    return _checked(prompt, backend)


async def _checked(prompt: Awaitable[Prompt], backend: Backend) -> Prompt | None:
    try:
        found = await prompt
    except RequestError:
        return None
    backend.check_length(len(found.ids))
    return found


def _facts(text: bytes, prompt: Prompt | None, user: str | None, facts_of: FactsOf, *, streams: bool) -> RouteFacts:
    """Without tokens every four bytes of the prompt's text stand for one: about as long, and equal for equal text."""
    if prompt is not None:
        return facts_of(prompt.ids, user, streams=streams)
    facts = facts_of(TokenIds(text[: len(text) // WIDTH * WIDTH]), user, streams=streams)
    facts.namespace = "text"
    return facts


def _with_usage(options: bytes | None) -> bytes:
    if options is None or options == b"null":
        return b'{"include_usage":true}'
    try:
        return members_of(options).with_values({"include_usage": b"true"})
    except MembersError as error:
        raise invalid(f"Invalid 'stream_options': {error}.", "stream_options", "invalid_value") from None
