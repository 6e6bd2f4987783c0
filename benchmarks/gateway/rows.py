"""What is measured: one row of the table for each kind of request, with the bars that it should meet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from benchmarks.gateway.model import Model


class SetUpName(StrEnum):
    """What stands between the client and the engines."""

    OURS = "ours"
    OURS_GRPCIO = "ours-grpcio"
    OURS_TWO = "ours-two"
    """With two processes; each request goes to the one with fewer in flight."""
    OURS_TWO_SESSIONS = "ours-two-sessions"
    """With two processes; a conversation stays with one."""
    SMG = "smg"
    ENVOY_SMG = "envoy-smg"
    SMG_L0 = "smg-l0"
    ENVOY_SMG_L0 = "envoy-smg-l0"
    SMG_CACHES = "smg-caches"
    ENVOY_SMG_CACHES = "envoy-smg-caches"


class Prompt(StrEnum):
    """How prompts of one row differ."""

    NEW = "new"
    SAME = "same"
    CONVERSATION = "conversation"
    """Each is its predecessor, an answer and a question more; many conversations go on side by side."""
    SHARED_SYSTEM = "shared-system"
    """One of a few long system prompts, the same in all runs, and a question that nobody asked before."""


THREE = (SetUpName.OURS, SetUpName.SMG, SetUpName.ENVOY_SMG)
THREE_L0 = (SetUpName.OURS, SetUpName.SMG_L0, SetUpName.ENVOY_SMG_L0)
FIVE = (*THREE, SetUpName.SMG_CACHES, SetUpName.ENVOY_SMG_CACHES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of request."""

    name: str
    words: int = 0  # of the prompt; 0: as many as `body_bytes` takes
    body_bytes: int = 0
    prompt: Prompt = Prompt.NEW
    model: Model = Model.PLAIN
    tokens: int  # of the answer
    stream: bool = False
    step_s: float = 0.0  # the engines' time per token of each answer; 0: whole answers at once
    connections: int
    requests: int  # of one run
    set_ups: tuple[SetUpName, ...] = THREE
    processor_only: bool = False  # Envoy's CPU is not counted
    only_asked: bool = False  # left out unless it is named
    beside: str = ""  # the row whose runs take turns with this one's; rows of such a group stand together
    all_requests: bool = False  # those of a run differ in size, so that one which ends early is no measurement
    min_distinct_words: int = 0  # over one run
    bar_smg: float | None = None  # at most this ratio
    bar_envoy_smg: float | None = None

    @property
    def units_per_request(self) -> int:
        """A figure is CPU per request, or per token where tokens are streamed."""
        return self.tokens if self.stream else 1

    @property
    def unit(self) -> str:
        """What a figure counts."""
        return "us/token" if self.stream else "us/request"


ROWS = (
    Row(name="unary-300-c8", words=300, tokens=16, connections=8, requests=12_000, bar_envoy_smg=1.0),
    Row(name="unary-300-c64", words=300, tokens=16, connections=64, requests=15_000, bar_smg=0.95, bar_envoy_smg=0.85),
    Row(
        name="stream-100-c8",
        words=300,
        tokens=100,
        stream=True,
        step_s=0.001,
        connections=8,
        requests=320,
        bar_envoy_smg=1.0,
    ),
    Row(
        name="stream-100-c64",
        words=300,
        tokens=100,
        stream=True,
        step_s=0.005,
        connections=64,
        requests=512,
        bar_smg=1.4,
        bar_envoy_smg=0.85,
    ),
    Row(
        name="unary-3000-new-c64",
        words=3000,
        tokens=4,
        connections=64,
        requests=2500,
        min_distinct_words=50_000,
        bar_smg=0.7,
        bar_envoy_smg=0.85,
    ),
    Row(
        name="unary-6000-same-c64",
        words=6000,
        prompt=Prompt.SAME,
        tokens=4,
        connections=64,
        requests=4000,
        set_ups=THREE_L0,
        bar_smg=1.3,
        bar_envoy_smg=1.0,
    ),
    Row(
        name="unary-220kb-new",
        body_bytes=220_000,
        tokens=4,
        connections=8,
        requests=500,
        bar_smg=0.7,
        bar_envoy_smg=0.85,
    ),
    Row(
        name="stream-ngh2",
        words=300,
        tokens=100,
        stream=True,
        step_s=0.005,
        connections=32,
        requests=256,
        set_ups=(SetUpName.OURS,),
        processor_only=True,
    ),
    Row(
        name="stream-grpcio",
        words=300,
        tokens=100,
        stream=True,
        step_s=0.005,
        connections=32,
        requests=256,
        set_ups=(SetUpName.OURS_GRPCIO,),
        processor_only=True,
        beside="stream-ngh2",
    ),
)

NGH2_ROW, GRPCIO_ROW = "stream-ngh2", "stream-grpcio"
NGH2_CHEAPER_BY = 4.0
"""Bar of the transports: so many times cheaper per streamed token."""
