"""Where requests come in: what all of them share."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

import msgspec

from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.exchange.application import Request
from extproc.gateway.backend import Backend
from extproc.gateway.engine_calls import EngineCalls
from extproc.gateway.request import GatewayRequest
from extproc.gateway.tenants import TenantHeaders
from extproc.observe.metrics import Metrics
from extproc.routing.pool import ModelTable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Gateway:
    """The `Application` of the exchanges. Immutable but for its backends' state."""

    def __init__(
        self,
        *,
        table: ModelTable,
        backends: Mapping[str, Backend],
        metrics: Metrics,
        body_limit_bytes: int,
        debug_clients: Sequence[Network],
        body_limits: BodyLimits = BodyLimits(),  # noqa: B008 - immutable
        tenants: TenantHeaders | None = None,
        calls_timeout_s: float = 600.0,
    ) -> None:
        """`backends`: by the name of their pool. `calls_timeout_s`: of the calls that it makes to engines itself."""
        self.routes = Routes(all_dialects(body_limits))
        self.no_route = self.routes.find("", "", {})
        """Of a request before its head."""
        self.metrics = metrics
        self.body_limit_bytes = body_limit_bytes
        self.body_limits = body_limits
        self.tenants = tenants
        self.route_headers = frozenset(name for each in backends.values() for name in each.pool.policy.headers)
        """Request headers that some pool's policy looks at."""
        self.calls = EngineCalls(calls_timeout_s)
        """To engines, beside what Envoy carries."""
        for backend in backends.values():
            backend.pool.members.observe(self.calls)
        self.has_http = any(backend.http is not None for backend in backends.values())
        """Some engines take clients' own bytes."""
        self._table = table
        self._backends = backends
        self._debug_clients = tuple(debug_clients)
        self.refresh_models()

    def refresh_models(self) -> None:
        """The models as clients see them, by name: a pool has learned its context length."""
        self.cards = {
            card.id: msgspec.structs.replace(card, context_tokens=self.backend_for(card.id).context_tokens)
            for card in self._table.cards
        }

    def request(self) -> Request:
        """A new request."""
        return GatewayRequest(self)

    def backend_for(self, model: str) -> Backend:
        """Raises RequestError (MODEL_NOT_FOUND)."""
        return self._backends[self._table.pool_for(model).name]

    def only_backend(self) -> Backend | None:
        """The pool of requests that need not name a model; None where there are several."""
        backends = list(self._backends.values())
        return backends[0] if len(backends) == 1 else None

    def may_debug(self, source: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
        """Whether this client may see how its requests are routed."""
        if source is None:
            return False
        return any(source in network for network in self._debug_clients)
