"""Text to token ids, and ids to text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from extproc.dialects.base import Rendered
from extproc.dialects.routes import Route
from extproc.dialects.vllm_tokenize import parse_detokenize, parse_tokenize, render_text, render_tokens
from extproc.gateway.backend import Backend
from extproc.ir import ErrorInfo, ErrorKind, RequestError
from extproc.observe.metrics import RequestAccount
from extproc.tokens.model import Prompt

if TYPE_CHECKING:
    from extproc.gateway.gateway import Gateway

_INLINE_TOKENS = 20_000  # more are decoded in a thread, 10 to 60 ns each


async def tokenize(gateway: Gateway, account: RequestAccount, route: Route, body: bytes) -> Rendered:
    """The answer to `/tokenize`. Raises RequestError."""
    request = parse_tokenize(body, gateway.body_limits)
    backend = backend_of(gateway, account, request.model)
    tokens = backend.ready_tokens()
    if request.conversation is not None:
        prompt = tokens.prompt(request.conversation)
        ids = (prompt if isinstance(prompt, Prompt) else await prompt).ids
        if request.add_special_tokens:
            ids = tokens.with_special_tokens(ids)
    else:
        ids = await tokens.encode(request.prompt or "", add_special_tokens=request.add_special_tokens)
    values = ids.array()
    names = await tokens.token_names(values) if request.wants_names else None
    return render_tokens(values, names, backend.context_tokens)


async def detokenize(gateway: Gateway, account: RequestAccount, route: Route, body: bytes) -> Rendered:
    """The answer to `/detokenize`: special tokens are kept, unknown ids leave nothing. Raises RequestError."""
    request = parse_detokenize(body, gateway.body_limits)
    tokens = backend_of(gateway, account, request.model).ready_tokens()
    ids = request.ids
    detokenizer = tokens.detokenizer(skip_special_tokens=False)
    if len(ids) <= _INLINE_TOKENS:
        text = detokenizer.feed(ids)
    else:
        text = await asyncio.to_thread(detokenizer.feed, ids)
    return render_text(text + detokenizer.finish())


def backend_of(gateway: Gateway, account: RequestAccount, model: str | None) -> Backend:
    """The pool of a request. Without a model's name, the only one. Raises RequestError."""
    if model is None:
        backend = gateway.only_backend()
        if backend is None:
            raise RequestError(
                ErrorInfo(
                    kind=ErrorKind.INVALID_REQUEST,
                    message="Missing required parameter: 'model', since several models are served here.",
                    param="model",
                    code="missing_required_parameter",
                )
            )
        return backend
    account.names_model(model)
    return gateway.backend_for(model)
