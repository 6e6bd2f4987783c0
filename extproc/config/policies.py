"""Sections about how a worker is chosen: the parameters of policies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from extproc.config.fields import FilePath, Int, Number, Section, written
from extproc.config.fleet import HeaderName

PolicyName = Literal[
    "ttft",
    "least_load",
    "power_of_two",
    "round_robin",
    "random",
    "consistent_hashing",
    "prefix_hash",
    "session",
    "bucket",
    "cache_aware",
    "passthrough",
]


class TtftOptions(Section):
    """The worker that is expected to give the first token first.

    The estimate is the prompts that wait there, the part of this prompt that its KV cache does not hold, and how fast
    it was seen to compute. A price is added for blocks of other prompts that the worker would have to evict.
    """

    eviction_price: Number = Field(
        default=1.0,
        ge=0,
        le=100,
        description="What evicting a block costs, as a share of computing one again, where every prompt is found in "
        "caches; less in the measure that less is found, nothing while caches have room. Higher values keep prompts "
        "together on fewer workers.",
    )
    near_percent: Number = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Workers this much worse than the best are as good, and chance decides between them, so that "
        "several processes do not all choose the same one.",
    )


class ConsistentHashingOptions(Section):
    """The same key, the same worker, for as long as it can serve; when workers come or go, few keys move.

    Requests without a key go to the least loaded worker.
    """

    header: HeaderName | None = Field(default="x-routing-key", description="The request header with the key.")
    body_key: Literal["user"] | None = Field(
        default=None, description="The field of the request's body with the key, for requests without the header."
    )


class PrefixHashOptions(Section):
    """Prompts with the same beginning go to the same worker, unless it has too much to do."""

    prefix_tokens: Int = Field(default=256, ge=1, le=1_000_000, description="How much of the beginning counts.")
    load_factor: Number = Field(
        default=1.25,
        ge=1,
        le=100,
        description="A worker is passed over when it runs more requests than the mean times this, and than the mean "
        "plus `load_margin`.",
    )
    load_margin: Int = Field(default=10, ge=0, le=1_000_000, description="See `load_factor`.")


class SessionOptions(Section):
    """A client's requests go to the worker that served it before, by a signed token that the answer brings it.

    The token names no address, ends after a time, and is of use to its own tenant only. A worker that cannot serve is
    replaced, and the answer brings a new token. Requests without a good token go to the least loaded worker.
    """

    key: FilePath | None = Field(
        default=None,
        description="File with the key that signs tokens, at least 16 bytes, the same for all gateways that share "
        "clients. Needed for this policy.",
    )
    carrier: Literal["header", "cookie"] = Field(
        default="header", description="Whether the token is in a header of request and answer, or in a cookie."
    )
    name: HeaderName = Field(default="x-session-token", description="The name of the header or the cookie.")
    ttl_s: Int = Field(
        default=14_400, ge=1, le=31_536_000, description="How long a token is good, in seconds; every answer renews it."
    )


class BucketOptions(Section):
    """Prompts of similar length share a worker, so that short ones do not wait for long ones.

    Each worker has a range of lengths. The ranges follow the traffic, so that all have as many tokens.
    """

    window: Int = Field(default=1000, ge=10, le=100_000, description="So many latest prompts set the ranges.")
    interval_s: Number = Field(default=5.0, gt=0, le=3600, description="How often they are set anew, in seconds.")
    balance_factor: Number = Field(
        default=2.0,
        ge=1,
        le=100,
        description="A worker is passed over for the least loaded one when more prompt tokens wait there than the mean "
        "times this, and than the mean plus `balance_tokens`.",
    )
    balance_tokens: Int = Field(default=16_384, ge=0, le=1_000_000_000, description="See `balance_factor`.")


class CacheAwareOptions(Section):
    """The rules of Shepherd Model Gateway 1.13 (its `cache_aware`), for those who come from it."""

    cache_threshold: Number = Field(
        default=0.3,
        ge=0,
        le=1,
        description="Without KV events: the share of a prompt that a worker must have been sent before to be "
        "preferred (more than this).",
    )
    balance_abs: Int = Field(
        default=64,
        ge=0,
        le=1_000_000,
        description="A preferred worker is skipped when it runs more requests than the mean times `balance_rel`, and "
        "so many more than the mean, or twice the mean's square root if that is less, but at least 4.",
    )
    balance_rel: Number = Field(default=1.5, ge=1, le=100, description="See `balance_abs`.")
    overload_waiting: Int = Field(
        default=8, ge=1, le=1_000_000, description="A worker that reports so many waiting requests is left out."
    )
    overload_kv: Number = Field(
        default=0.8, gt=0, le=1, description="A worker that reports this share of its KV cache in use is left out."
    )


class PolicyOptions(Section):
    """Parameters of policies; those of the pool's `policy` are used."""

    ttft: TtftOptions = Field(default=written({}), description="Of `ttft`.")
    consistent_hashing: ConsistentHashingOptions = Field(default=written({}), description="Of `consistent_hashing`.")
    prefix_hash: PrefixHashOptions = Field(default=written({}), description="Of `prefix_hash`.")
    session: SessionOptions = Field(default=written({}), description="Of `session`.")
    bucket: BucketOptions = Field(default=written({}), description="Of `bucket`.")
    cache_aware: CacheAwareOptions = Field(default=written({}), description="Of `cache_aware`.")
