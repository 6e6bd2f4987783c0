"""What a simulated engine can be told to do wrong. Plain data; `generate` and `engine` act on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Break(Enum):
    """How an answer goes wrong in the middle."""

    ERROR = "error"
    """Ends with `status` and `details`."""
    HEADERS = "headers"
    """As `error`, but the response headers leave before it, so that the status can only follow in trailers."""
    STALL = "stall"
    """No further message; the stream stays open until the client leaves."""
    RESET = "reset"
    """RST_STREAM, without a status."""
    CUT = "cut"
    """RST_STREAM in the middle of a message: its length and half of it were sent."""
    DIE = "die"
    """The engine closes its listener and every connection, as a killed process does."""
    RESTART = "restart"
    """As `die`, and soon afterwards it serves again at the same address, with an empty cache."""
    GARBAGE = "garbage"
    """One message that is no GenerateResponse, then the answer goes on."""
    FOREIGN = "foreign"
    """One message of another engine's protocol (SGLang's), then the answer goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The default does everything right. What it says of Generate applies to calls that start after it was set."""

    refuse_status: int = field(
        default=0,
        metadata={"help": "answer every Generate with this gRPC status, such as 14 (unavailable); 0 = serve it"},
    )
    break_kind: Break | None = field(
        default=None,
        metadata={
            "help": "how answers break: `error` ends them with --fault-status, `headers` too, but after response "
            "headers, `stall` sends nothing more and leaves the stream open, `reset` resets the stream "
            "without a status, `cut` in the middle of a message, `die` closes the listener and every connection as a "
            "killed process does, `restart` serves again soon after that with an empty cache, `garbage` sends one "
            "message that is no answer and goes on, `foreign` one of SGLang's protocol"
        },
    )
    break_after: int = field(default=0, metadata={"help": "messages that an answer carries before it breaks"})
    status: int = field(default=13, metadata={"help": "gRPC status of the break `error`, 1 to 16"})
    details: str = field(
        default="injected fault", metadata={"help": "text beside --fault-status and --fault-refuse-status"}
    )
    times: int | None = field(
        default=None,
        metadata={"help": "refuse or break this many Generate calls and serve those after them; without it, all"},
    )
    ignore_stop_strings: bool = field(default=False, metadata={"help": "go on after a stop string"})
    finish_reason: str = field(default="", metadata={"help": "finish reason to send in place of the true one"})
    unhealthy: bool = field(
        default=False, metadata={"help": "say `not serving` in both health services; Generate is served all the same"}
    )
    kv_lose_every: int = field(
        default=0, metadata={"help": "of so many batches of KV events the last one is lost on the way; 0 = none is"}
    )
    kv_copies: int = field(default=1, metadata={"help": "copies of each block that KV events report, and their end"})
    kv_data_loss_after: int = field(
        default=0,
        metadata={"help": "end each gRPC stream of KV events with DATA_LOSS after so many batches; 0 = never"},
    )

    def __post_init__(self) -> None:
        for name, least in (("kv_lose_every", 0), ("kv_copies", 1), ("kv_data_loss_after", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.refuse_status <= 16:
            raise ValueError(f"refuse_status: {self.refuse_status} is no gRPC status (0 to 16)")
        if not 1 <= self.status <= 16:
            raise ValueError(f"status: {self.status} is no gRPC error status (1 to 16)")
        if self.break_after < 0:
            raise ValueError(f"break_after must not be negative, got {self.break_after}")
        if self.times is not None and self.times < 1:
            raise ValueError(f"times must be at least 1, got {self.times}")
