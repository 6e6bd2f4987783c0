"""What clients ask for."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from extproc.ir.conversation import Turn


class Operation(Enum):
    """What a client can ask for."""

    GENERATE = "generate"  # continue a conversation
    COMPLETE = "complete"  # continue a text
    EMBED = "embed"
    COUNT_TOKENS = "count_tokens"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    LIST_MODELS = "list_models"
    GET_MODEL = "get_model"


class ToolDef(Struct, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON Schema; None: no arguments
    strict: bool | None = None
    custom: bool = False  # takes any text in place of arguments
    grammar: tuple[Literal["lark", "regex"], str] | None = None  # of a custom tool's input


class ToolChoice(Struct, frozen=True):
    """Which tools may, must or must not be called."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()  # `named`: exactly the one; `auto` and `required`: the only allowed ones, () all


class ReasoningRequest(Struct, frozen=True, kw_only=True):
    """How to think. UNSET everywhere: as the model does by itself."""

    enabled: bool | UnsetType = UNSET
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | UnsetType = UNSET
    budget_tokens: int | UnsetType = UNSET
    visibility: Literal["full", "summary", "omitted"] | UnsetType = UNSET  # of the reasoning in the answer

    @property
    def wanted(self) -> bool | None:
        """Whether to think; None where the client leaves it to the model."""
        if self.enabled is not UNSET:
            return self.enabled
        if self.effort is not UNSET:
            return self.effort not in ("none", "minimal")
        return None if self.budget_tokens is UNSET else self.budget_tokens != 0


class OutputFormat(Struct, frozen=True, kw_only=True):
    """What form the answer's text must have."""

    kind: Literal["json_object", "json_schema", "regex", "grammar", "choice", "structural_tag"]
    schema: Any = None  # `json_schema`: the JSON Schema; `structural_tag`: its description
    text: str = ""  # `regex`: the expression; `grammar`: in EBNF
    choices: tuple[str, ...] = ()
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    path: str = "response_format"  # what asked for it in the client's body, for errors


class Sampling(Struct, frozen=True, kw_only=True):
    """How to sample. UNSET means that the engine's or the model's own default holds."""

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET  # 0 or -1: off
    min_p: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    n: int = 1
    max_tokens: int | UnsetType = UNSET  # completion tokens
    min_tokens: int | UnsetType = UNSET
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # keep the matched stop string in the text
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    top_logprobs: int | None = None  # None: no logprobs; 0: of the chosen token only


class Loss(Struct, frozen=True):
    """Something that the client asked for and that does not reach the engine."""

    field: str
    reason: str


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A conversation to continue."""

    model: str  # as the client wrote it
    turns: tuple[Turn, ...]
    sampling: Sampling = Sampling()
    stream: bool = False
    include_usage: bool = False  # in a stream: a last chunk with the usage
    tools: tuple[ToolDef, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | UnsetType = UNSET
    reasoning: ReasoningRequest = ReasoningRequest()
    output: OutputFormat | None = None  # None: any text
    documents: tuple[dict[str, Any], ...] = ()  # for templates that take them
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)  # for the chat template
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    user: str | None = None
    losses: tuple[Loss, ...] = ()
    own: Any = None  # what the client's dialect needs again to render the answer; nobody else looks at it


class TextRequest(Struct, frozen=True, kw_only=True):
    """Texts to continue, each by itself, without a chat template."""

    model: str
    prompts: tuple[str | tuple[int, ...], ...]  # text, or token ids
    sampling: Sampling = Sampling()
    suffix: str | None = None  # what follows the gap
    echo: bool = False  # the prompt stands before its continuation
    best_of: int | None = None  # so many are generated for each prompt, and the likeliest `n` given
    prompt_logprobs: bool = False
    add_special_tokens: bool = True  # what the tokenizer puts around a text; ids are taken as they are
    stream: bool = False
    include_usage: bool = False
    output: OutputFormat | None = None
    user: str | None = None
    losses: tuple[Loss, ...] = ()
    own: Any = None


class EmbedRequest(Struct, frozen=True, kw_only=True):
    """Texts to embed, each by itself."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]  # text, or token ids
    dimensions: int | None = None
    truncate: bool = False  # an input that is too long
    add_special_tokens: bool = True  # what the tokenizer puts around a text; ids are taken as they are
    user: str | None = None
    losses: tuple[Loss, ...] = ()
    own: Any = None
