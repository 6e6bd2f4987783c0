"""Operations that the processor answers by itself, as a table; all others go to a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from extproc.dialects.base import Rendered
from extproc.dialects.routes import Route
from extproc.gateway.plan import check_tools
from extproc.gateway.tokenization import detokenize, tokenize
from extproc.ir import ErrorInfo, ErrorKind, Operation, RequestError
from extproc.observe.metrics import RequestAccount
from extproc.tokens.model import Prompt

if TYPE_CHECKING:
    from extproc.gateway.gateway import Gateway

Handler: TypeAlias = "Callable[[Gateway, RequestAccount, Route, bytes], Awaitable[Rendered]]"
"""Given the whole body. Raises RequestError."""


async def count_tokens(gateway: Gateway, account: RequestAccount, route: Route, body: bytes) -> Rendered:
    """How many tokens the prompt of a conversation has: exactly those that a worker would get. Raises RequestError."""
    codec = route.dialect.count
    assert codec is not None
    chat = codec.parse(route.inbound, body)
    account.names_model(chat.model)
    backend = gateway.backend_for(chat.model)
    check_tools(chat, backend)
    prompt = backend.ready_tokens().prompt(chat)
    return codec.render(chat, len((prompt if isinstance(prompt, Prompt) else await prompt).ids))


async def list_models(gateway: Gateway, account: RequestAccount, route: Route, body: bytes) -> Rendered:
    """All models. Raises RequestError."""
    return models_now(gateway, route, body)


def models_now(gateway: Gateway, route: Route, body: bytes) -> Rendered:
    """All models, or the one that is asked for. Raises RequestError."""
    codec = route.dialect.models
    assert codec is not None
    if route.operation is Operation.LIST_MODELS:
        return codec.list(route.inbound, list(gateway.cards.values()))
    name = codec.name(route.inbound, body)
    card = gateway.cards.get(name)
    if card is None:
        raise RequestError(
            ErrorInfo(kind=ErrorKind.MODEL_NOT_FOUND, message=f"The model '{name[:256]}' does not exist.")
        )
    return codec.get(route.inbound, card)


HANDLERS: Mapping[Operation, Handler] = {
    Operation.COUNT_TOKENS: count_tokens,
    Operation.TOKENIZE: tokenize,
    Operation.DETOKENIZE: detokenize,
    Operation.LIST_MODELS: list_models,
    Operation.GET_MODEL: list_models,
}
