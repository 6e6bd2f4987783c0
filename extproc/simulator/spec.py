"""What one simulated engine is, as plain data. The command line's options are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from extproc.simulator import constants
from extproc.simulator.faults import Faults

OWN_MODEL = Path(__file__).parent / "model"
"""A small tokenizer with ChatML markers that comes with the package, so that nothing has to be downloaded."""


class Answers(StrEnum):
    """What an engine says."""

    ECHO = "echo"
    """The last turn of the prompt."""
    NATURAL = "natural"
    """Made-up sentences of `answer_tokens` tokens, some of their characters split over tokens."""
    SCRIPT = "script"
    """`texts`, one after the other, from the beginning again after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine. `help` of a field is the text of its command-line option, `metavar` what its value is called there,
    and `default` how the default is called, where its value says little."""

    listen: str = field(
        default="127.0.0.1:0",
        metadata={"help": "host:port (port 0 = any free one) or unix:/path to serve on", "metavar": "ADDRESS"},
    )
    model: str = field(default="simulated", metadata={"help": "the served model's name", "metavar": "NAME"})
    tokenizer: Path = field(
        default=OWN_MODEL,
        metadata={
            "help": "folder with tokenizer.json; config.json and generation_config.json are read if present",
            "metavar": "FOLDER",
            "default": "a small one of the package",
        },
    )
    context_tokens: int = field(
        default=0, metadata={"help": "longest prompt and answer together; 0 = config.json's max_position_embeddings"}
    )
    block_tokens: int = field(default=constants.BLOCK_TOKENS, metadata={"help": "tokens of one KV-cache block"})
    kv_cache_tokens: int = field(
        default=constants.KV_CACHE_TOKENS, metadata={"help": "tokens that the KV cache holds; 0 = nothing is reused"}
    )
    max_running: int = field(
        default=constants.MAX_RUNNING_SEQUENCES, metadata={"help": "sequences in a batch at once; further ones wait"}
    )
    chunk_tokens: int = field(
        default=constants.PREFILL_CHUNK_TOKENS,
        metadata={"help": "tokens computed in one step: one for each decoding sequence, the rest of prompts"},
    )
    prefill_tokens_per_s: float = field(
        default=constants.PREFILL_TOKENS_PER_S,
        metadata={"help": "uncached prompt tokens computed per second; 0 = prefill takes no time"},
    )
    decode_step_s: float = field(
        default=constants.DECODE_STEP_S,
        metadata={"help": "least seconds of a step, which generates a token of each answer; 0 = whole answers at once"},
    )
    decode_sequence_s: float = field(
        default=constants.DECODE_SEQUENCE_S, metadata={"help": "seconds that each decoding sequence adds to a step"}
    )
    speed: float = field(default=1.0, metadata={"help": "of the whole engine: 0.8 takes 1 / 0.8 of the time"})
    speed_up: float = field(
        default=1.0,
        metadata={
            "help": f"let the engine's time run so much faster than the clock, at most {constants.MAX_SPEED_UP:g}"
        },
    )
    tokens_per_chunk: int = field(
        default=1, metadata={"help": "tokens of one streamed message after the first, which has one (stream-interval)"}
    )
    no_kv_events: bool = field(default=False, metadata={"help": "publish no KV events"})
    kv_zmq: str = field(
        default="",
        metadata={
            "help": "publish KV events also over ZeroMQ, as vLLM and SGLang do, at this address, such as "
            "tcp://127.0.0.1:5557; each further engine on the next port",
            "metavar": "ENDPOINT",
        },
    )
    kv_zmq_replay: str = field(
        default="",
        metadata={
            "help": "send batches of KV events again to those who ask at this address; needs --kv-zmq, ports likewise",
            "metavar": "ENDPOINT",
        },
    )
    kv_zmq_topic: str = field(default="", metadata={"help": "what ZMQ subscribers can select by", "metavar": "TOPIC"})
    answers: Answers = field(
        default=Answers.ECHO,
        metadata={"help": "`echo` the last turn, made-up `natural` text, or the texts of a `script`"},
    )
    texts: tuple[str, ...] = field(default=(), metadata={"help": "the texts of the script"})
    answer_tokens: int = field(default=constants.ANSWER_TOKENS, metadata={"help": "length of natural text in tokens"})
    embedding_dimensions: int = field(
        default=0, metadata={"help": "length of the vectors that Embed gives; 0 = the model gives none"}
    )
    seed: int = field(default=0, metadata={"help": "start of the engine's own random numbers"})
    start_delay_s: float = field(default=0.0, metadata={"help": "seconds before a started engine says that it serves"})
    faults: Faults = field(default=Faults(), metadata={"help": "what it does wrong from the start"})
    recorded_requests: int = field(
        default=constants.RECORDED_REQUESTS, metadata={"help": "how many of the last requests are kept to look at"}
    )

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_running", "chunk_tokens", "tokens_per_chunk", "answer_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "context_tokens",
            "kv_cache_tokens",
            "prefill_tokens_per_s",
            "decode_step_s",
            "decode_sequence_s",
            "start_delay_s",
            "embedding_dimensions",
            "recorded_requests",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.kv_zmq_replay and not self.kv_zmq:
            raise ValueError("kv_zmq_replay needs kv_zmq")
        if self.kv_zmq and self.no_kv_events:
            raise ValueError("kv_zmq publishes what no_kv_events forbids")
        if not self.speed > 0:
            raise ValueError(f"speed must be positive, got {self.speed:g}")
        if not 0 < self.speed_up <= constants.MAX_SPEED_UP:
            raise ValueError(f"speed_up must be above 0 and at most {constants.MAX_SPEED_UP:g}, got {self.speed_up:g}")
        if self.answers is Answers.SCRIPT and not self.texts:
            raise ValueError("answers=script needs texts")
        if 0 < self.kv_cache_tokens < self.block_tokens:
            raise ValueError(f"kv_cache_tokens must be 0 or at least one block of {self.block_tokens} tokens")
