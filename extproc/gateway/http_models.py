"""What engines over HTTP say of their models, by `GET /v1/models`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from extproc.config.address import parse_listen
from extproc.engines.http_get import HttpGetError, http_get
from extproc.gateway.http_target import HttpTarget

MODELS_PATH = "/v1/models"

_TIMEOUT_S = 10.0
_MOST_BYTES = 4 << 20
_UNKNOWN = (404, 405, 501)


class ModelsError(Exception):
    """A worker did not answer as it should; the text says what to look at."""


class _Meta(Struct):
    n_ctx: int | None = None  # llama.cpp
    n_ctx_train: int | None = None


class ServedModel(Struct):
    """One model of an engine."""

    id: str
    max_model_len: int | None = None  # vLLM, SGLang
    meta: _Meta | None = None

    @property
    def context_tokens(self) -> int:
        """0: unknown."""
        meta = self.meta
        return self.max_model_len or (meta is not None and meta.n_ctx) or 0


class _List(Struct):
    data: list[ServedModel]


_LIST = msgspec.json.Decoder(_List)


async def served_models(target: HttpTarget, address: str) -> list[ServedModel]:
    """The models of the worker at `address`; none where it does not tell. Raises ModelsError."""
    path = target.path_prefix + MODELS_PATH
    try:
        status, body = await http_get(
            parse_listen(address), path, timeout_s=_TIMEOUT_S, limit_bytes=_MOST_BYTES, access=target.access()
        )
    except HttpGetError as error:
        raise ModelsError(str(error)) from error
    if status in _UNKNOWN:
        return []
    if status in (401, 403):
        raise ModelsError(f"worker {address} refused the gateway's key ({status}): look at `http.api_key` of the pool")
    if status != 200:
        raise ModelsError(f"worker {address} answered {path} with status {status}")
    try:
        return _LIST.decode(body).data
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ModelsError(
            f"worker {address} answered {path} with no list of models ({error}); is it a server of OpenAI's dialect?"
        ) from None
