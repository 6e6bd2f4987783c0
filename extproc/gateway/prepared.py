"""A request that is ready for a worker, whichever it will be."""

from __future__ import annotations

from msgspec import Struct

from extproc.dialects.base import StreamRenderer, WholeRenderer
from extproc.engines.base import Decoder, EngineRequest
from extproc.gateway.backend import Backend
from extproc.ir import Loss
from extproc.output.answer_text import AnswerText
from extproc.routing.facts import RouteFacts


class Prepared(Struct, frozen=True):
    """All of a request that does not depend on its worker."""

    backend: Backend
    facts: RouteFacts
    losses: tuple[Loss, ...]
    engine_request: EngineRequest
    decoder: Decoder
    text: AnswerText
    stream: StreamRenderer | None  # exactly one of `stream` and `whole`
    whole: WholeRenderer | None
