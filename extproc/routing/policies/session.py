"""Clients come back to the worker that served them, by a signed token that names no address.

A token is base64url of: a format byte, the end of its validity (4 bytes, seconds of Unix time), the worker's tag (8
bytes of an HMAC of its address and rank) and the signature (16 bytes of an HMAC of all that and of the tenant). All are
HMAC-SHA256 with keys derived from the configured one, so processes and gateways that share the key know each other's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import random
import time
from collections.abc import Callable, Sequence

from extproc.routing.facts import RouteFacts
from extproc.routing.policies.base import Policy, Ranking
from extproc.routing.policies.loaded import by_load, in_words
from extproc.routing.worker import Worker

_FORMAT = 1
_SIGNED_BYTES = 1 + 4 + 8
_MAC_BYTES = 16
_TOKEN_CHARACTERS = 40  # of base64url without padding: 29 bytes and 3 characters to spare
_KEY_BYTES = 16


class SessionTokens:
    """Makes tokens and reads them."""

    def __init__(self, key: bytes, ttl_s: int, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix time. Raises ValueError for a key that is too short."""
        if len(key) < _KEY_BYTES:
            raise ValueError(f"a session key has at least {_KEY_BYTES} bytes, and this one {len(key)}")
        self._ttl_s = ttl_s
        self._clock = clock
        self._signing = hmac.digest(key, b"session token", hashlib.sha256)
        self._tagging = hmac.digest(key, b"worker tag", hashlib.sha256)

    def tag(self, worker: Worker) -> bytes:
        """What stands for a worker."""
        return hmac.digest(self._tagging, f"{worker.address} {worker.rank}".encode(), hashlib.sha256)[:8]

    def make(self, tag: bytes, tenant: str) -> str:
        """A token that is good from now on for its time."""
        signed = bytes((_FORMAT,)) + int(self._clock() + self._ttl_s).to_bytes(4, "big") + tag
        return base64.urlsafe_b64encode(signed + self._mac(signed, tenant)).rstrip(b"=").decode()

    def read(self, token: str, tenant: str) -> bytes | None:
        """The worker's tag; None for a token that is not ours, not this tenant's, or no longer good."""
        if len(token) > _TOKEN_CHARACTERS:
            return None
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (ValueError, binascii.Error):
            return None
        if len(raw) != _SIGNED_BYTES + _MAC_BYTES or raw[0] != _FORMAT:
            return None
        signed = raw[:_SIGNED_BYTES]
        if not hmac.compare_digest(raw[_SIGNED_BYTES:], self._mac(signed, tenant)):
            return None
        return None if int.from_bytes(signed[1:5], "big") < self._clock() else signed[5:]

    def _mac(self, signed: bytes, tenant: str) -> bytes:
        text = signed + tenant.encode("utf-8", "surrogatepass")
        return hmac.digest(self._signing, text, hashlib.sha256)[:_MAC_BYTES]


class Session(Policy):
    """The worker of the client's token; without a good token, or when that worker cannot serve, the least loaded."""

    name = "session"
    reasons = ("session", "no_session", "failover")

    def __init__(
        self, tokens: SessionTokens, name: str, ttl_s: int, *, cookie: bool = False, rng: random.Random | None = None
    ) -> None:
        """`name` of the header, or of the cookie. `ttl_s`: how long a client keeps the cookie."""
        self._tokens = tokens
        self._name = name
        self._ttl_s = ttl_s
        self._cookie = cookie
        self.headers = ("cookie",) if cookie else (name,)
        self._tags: dict[Worker, bytes] = {}
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def _tag(self, worker: Worker) -> bytes:
        tag = self._tags.get(worker)
        if tag is None:
            if len(self._tags) > 4096:
                self._tags.clear()  # of workers that have left
            tag = self._tags[worker] = self._tokens.tag(worker)
        return tag

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """The session's worker first, the others by load."""
        ranked = by_load(candidates, self._rng)
        tag = self._tokens.read(self._token(facts), facts.tenant)
        if tag is None:
            return Ranking(ranked, "no_session")
        for at, worker in enumerate(ranked):
            if self._tag(worker) == tag:
                ranked.insert(0, ranked.pop(at))
                return Ranking(ranked, "session")
        return Ranking(ranked, "failover")

    def _token(self, facts: RouteFacts) -> str:
        value = facts.headers.get(self.headers[0], "")
        if not self._cookie:
            return value
        for pair in value.split(";"):
            name, _, token = pair.strip().partition("=")
            if name == self._name:
                return token.strip('"')
        return ""

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """Whether there is a session."""
        if ranking.reason == "session":
            return "the session's worker"
        why = "no good session token" if ranking.reason == "no_session" else "the session's worker cannot serve now"
        return f"{why}; least load of {len(ranking.workers)}: {in_words(ranking.workers[0])}"

    def answer_headers(self, worker: Worker, facts: RouteFacts) -> tuple[tuple[str, str], ...]:
        """A new token for the worker that serves."""
        token = self._tokens.make(self._tag(worker), facts.tenant)
        if self._cookie:
            return (("set-cookie", f"{self._name}={token}; Max-Age={self._ttl_s}; Path=/; HttpOnly; SameSite=Lax"),)
        return ((self._name, token),)
