"""From a pool's configuration to its policy."""

from __future__ import annotations

from collections.abc import Callable

from extproc.config.policies import PolicyName, PolicyOptions
from extproc.config.resolve import ResolveError
from extproc.config.schema import Pool as PoolSection
from extproc.routing.policies import (
    Bucket,
    CacheAware,
    ConsistentHashing,
    LeastLoad,
    Passthrough,
    Policy,
    PowerOfTwo,
    PrefixHash,
    Random,
    RoundRobin,
    Session,
    SessionTokens,
    Ttft,
)


class PolicyError(ResolveError):
    """What a policy needs is not there; the text says what to change."""


def build_policy(section: PoolSection) -> Policy:
    """Raises PolicyError for a session key that cannot be read or is too short."""
    return _POLICIES[section.policy](section.options)


def _ttft(options: PolicyOptions) -> Policy:
    return Ttft(eviction_price=options.ttft.eviction_price, near=options.ttft.near_percent / 100.0)


def _consistent_hashing(options: PolicyOptions) -> Policy:
    return ConsistentHashing(options.consistent_hashing.header, options.consistent_hashing.body_key)


def _prefix_hash(options: PolicyOptions) -> Policy:
    given = options.prefix_hash
    return PrefixHash(prefix_tokens=given.prefix_tokens, load_factor=given.load_factor, load_margin=given.load_margin)


def _session(options: PolicyOptions) -> Policy:
    given = options.session
    if given.key is None:
        raise PolicyError("the policy `session` needs `options.session.key`")
    try:
        tokens = SessionTokens(given.key.read_bytes().strip(), given.ttl_s)
    except (OSError, ValueError) as error:
        raise PolicyError(f"the key of sessions, {given.key}: {error}") from error
    return Session(tokens, given.name, given.ttl_s, cookie=given.carrier == "cookie")


def _bucket(options: PolicyOptions) -> Policy:
    given = options.bucket
    return Bucket(
        window=given.window,
        interval_s=given.interval_s,
        balance_factor=given.balance_factor,
        balance_tokens=given.balance_tokens,
    )


def _cache_aware(options: PolicyOptions) -> Policy:
    given = options.cache_aware
    return CacheAware(
        cache_threshold=given.cache_threshold,
        balance_abs=given.balance_abs,
        balance_rel=given.balance_rel,
        overload_waiting=given.overload_waiting,
        overload_kv=given.overload_kv,
    )


_POLICIES: dict[PolicyName, Callable[[PolicyOptions], Policy]] = {
    "ttft": _ttft,
    "least_load": lambda options: LeastLoad(),
    "power_of_two": lambda options: PowerOfTwo(),
    "round_robin": lambda options: RoundRobin(),
    "random": lambda options: Random(),
    "consistent_hashing": _consistent_hashing,
    "prefix_hash": _prefix_hash,
    "session": _session,
    "bucket": _bucket,
    "cache_aware": _cache_aware,
    "passthrough": lambda options: Passthrough(),
}
