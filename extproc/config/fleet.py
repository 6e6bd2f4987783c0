"""Sections about workers: where they come from, how they are checked, and how much they may be given."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from extproc.config.fields import FilePath, Int, Label, Number, Section


def _check_path(path: str) -> str:
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path or len(path) > 1024:
        raise ValueError(f"{path[:64]!r} is no path of a URL: write one such as /health")
    return path


def _check_header(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}", name):
        raise ValueError(f"{name[:64]!r} is no header name in lower case: write one such as x-tenant-id")
    return name


def _check_host(name: str) -> str:
    if not re.fullmatch(r"(?!-)[A-Za-z0-9_.-]{1,253}", name):
        raise ValueError(f"{name[:64]!r} is no host name: write one such as engines.default.svc.cluster.local")
    return name


HttpPath = Annotated[str, AfterValidator(_check_path)]


def _check_plain_header(name: str) -> str:
    """Envoy's formats take no other characters in a header's name."""
    if not re.fullmatch(r"[a-z0-9_-]{1,64}", name):
        raise ValueError(f"{name[:64]!r} is no header name of a-z, 0-9, _ and -: write one such as x-session-id")
    return name


HeaderName = Annotated[str, AfterValidator(_check_header)]
SessionHeader = Annotated[str, AfterValidator(_check_plain_header)]
HostName = Annotated[str, AfterValidator(_check_host)]
Port = Annotated[Int, Field(ge=1, le=65535)]


class DnsWorkers(Section):
    """Workers that are the addresses of a name, such as a headless Kubernetes service."""

    name: HostName = Field(description="The name to look up: all its addresses are workers.")
    port: Port = Field(description="Where the engines listen.")
    interval_s: Number = Field(default=5.0, ge=0.1, le=3600, description="Time between two look-ups, in seconds.")
    ranks: Int = Field(default=1, ge=1, le=1024, description="Data-parallel ranks of each engine, as for a worker.")


class KubernetesWorkers(Section):
    """Workers that are the pods which carry a label. Needs `pip install 'llm-extproc[kubernetes]'`."""

    selector: Label = Field(description="A label selector, such as `app=vllm,role=decode`.")
    namespace: Label | None = Field(
        default=None, description="The pods' namespace; without it that of the credentials (`default` outside a pod)."
    )
    port: Port = Field(
        default=50051,
        description="Where the engines listen. A pod's annotation `llm-extproc/port` goes before it, and "
        "`llm-extproc/ranks` names the data-parallel ranks.",
    )
    kubeconfig: FilePath | None = Field(
        default=None,
        description="A kubeconfig file; without it the pod's own service account, which must be allowed to list and "
        "watch pods.",
    )
    context: Label | None = Field(default=None, description="The context of the kubeconfig; its current one without.")


class Discover(Section):
    """Where more workers come from than are listed. Each source may be used beside the others."""

    file: FilePath | None = Field(
        default=None,
        description="A YAML or JSON file with a list of workers as in `workers`, with IP addresses. It is read again "
        "when it changes; a file that cannot be read changes nothing.",
    )
    dns: DnsWorkers | None = Field(default=None, description="Workers that are the addresses of a name.")
    kubernetes: KubernetesWorkers | None = Field(default=None, description="Workers that are pods with a label.")

    @property
    def any(self) -> bool:
        """Whether there is a source."""
        return self.file is not None or self.dns is not None or self.kubernetes is not None


class HttpHealth(Section):
    """A health check over HTTP in place of the engine protocol's own."""

    path: HttpPath = Field(default="/health", description="Any 2xx answer to a GET says that the worker is healthy.")
    port: Port | None = Field(default=None, description="The port to ask; the worker's own without it.")


class LoadMetrics(Section):
    """Engines' own Prometheus metrics, read for what they have waiting, running and in their KV cache."""

    path: HttpPath = Field(default="/metrics", description="Where they are.")
    port: Port | None = Field(default=None, description="The port to ask; the worker's own without it.")
    interval_s: Number = Field(
        default=1.0, ge=0.05, le=3600, description="Time between two readings of one worker, in seconds."
    )


class KvEvents(Section):
    """Whether workers say themselves what their KV caches hold. Only policies that look at prompts listen to them.

    vLLM's gRPC server offers its events by default. Over ZeroMQ vLLM and SGLang publish them with
    `--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", …}'`. A plain word stands for
    `{source: …}`.
    """

    source: Literal["auto", "zmq", "off"] = Field(
        default="auto",
        description="`auto`: the gRPC server's own stream, where the engine's protocol has one (vLLM) and it offers "
        "it. `zmq`: the publisher of vLLM or SGLang itself. `off`: what was sent to a worker is all that is known of "
        "it.",
    )
    port: Port = Field(
        default=5557,
        description="With `zmq`: the publisher's port at the worker's address, of rank 0; each further rank has the "
        "next one.",
    )
    replay_port: Port | None = Field(
        default=None,
        description="With `zmq`: the port of its replay socket (`replay_endpoint`). Without one, all that is known of "
        "a worker is lost with each message that is.",
    )
    topic: str = Field(default="", max_length=256, description="With `zmq`: the topic that the publisher was given.")


class Overload(Section):
    """How much a pool and each of its workers take, and what becomes of the rest.

    Without any cap everything is sent on at once. Beyond a cap requests wait: those of a higher priority first, and
    among equals the tenants in turn, each with as many prompt tokens as the others. What finds the queue full, or waits
    too long in it, gets a 429 with retry-after. Each of several processes has an equal part of every number here.
    """

    worker_requests: Int | None = Field(default=None, ge=1, description="Most requests that run on one worker.")
    worker_tokens: Int | None = Field(
        default=None,
        ge=1,
        description="Most prompt tokens that wait on one worker for their first token. A longer prompt goes where none "
        "wait.",
    )
    pool_requests: Int | None = Field(default=None, ge=1, description="Most requests that run on the whole pool.")
    pool_tokens: Int | None = Field(
        default=None, ge=1, description="Most prompt tokens that wait on the whole pool for their first token."
    )
    queue_requests: Int = Field(default=1000, ge=0, le=1_000_000, description="Most requests that wait; 0 for none.")
    queue_tokens: Int = Field(
        default=4_000_000, ge=0, description="Most prompt tokens of requests that wait, which bounds their memory."
    )
    queue_s: Number = Field(default=30.0, gt=0, le=3600, description="Longest wait, in seconds.")
    retry_after_s: Number = Field(
        default=2.0, ge=1, le=3600, description="What a refused client is told to wait before it tries again."
    )

    @property
    def capped(self) -> bool:
        """Whether anything is limited."""
        return any((self.worker_requests, self.worker_tokens, self.pool_requests, self.pool_tokens))


class Tenants(Section):
    """Whose a request is, for fairness between them. Let Envoy set these headers, or trust the clients."""

    header: HeaderName | None = Field(
        default=None,
        description="The request header that names the tenant, such as `x-tenant-id`. Without it, or without the "
        "header, all requests are of one tenant.",
    )
    priority_header: HeaderName | None = Field(
        default=None,
        description="The request header with the priority in the queue: a whole number from -100 to 100, 0 without it. "
        "Requests of a higher one always go first.",
    )


class Health(Section):
    """How the processor checks its workers, by the engine protocol's health call unless the pool has `http_health`."""

    interval_s: Number = Field(
        default=2.0, gt=0, le=3600, description="Time between two checks of a worker, in seconds."
    )
    timeout_s: Number = Field(default=1.0, gt=0, le=3600, description="Time that a check may take, in seconds.")
    unhealthy_after: Int = Field(
        default=2, ge=1, le=100, description="Failed checks in a row after which a worker is out."
    )
    healthy_after: Int = Field(default=1, ge=1, le=100, description="Good checks in a row after which it is back.")
    breaker_failures: Int = Field(
        default=5,
        ge=0,
        le=1000,
        description="Requests in a row that a worker fails (no connection, 5xx, a stream that breaks) until it gets no "
        "more for `breaker_open_s`; then one request shows whether it is back. 0 for no such breaker.",
    )
    breaker_open_s: Number = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="How long, in seconds; twice as long after each such request that fails, at most eight times.",
    )
    slow_start_s: Number = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="A worker that becomes ready gets its full share of requests only after so many seconds, and at "
        "first a tenth.",
    )
    drain_s: Number = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="A worker that was taken away gets no new request, and leaves Envoy's endpoints when none runs on "
        "it any more, at the latest after so many seconds.",
    )
