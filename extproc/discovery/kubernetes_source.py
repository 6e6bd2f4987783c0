"""Workers that are the pods with a label, listed once and then watched. Needs the extra `kubernetes`.

A pod is a worker once it runs and has an address, whether Kubernetes finds it ready or not: our own health checks say
when it may be chosen. One that is told to end is a worker no more, so it drains while it still answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from extproc.config.address import HostPort
from extproc.config.fleet import KubernetesWorkers
from extproc.discovery.roster import Found, SourceError, Tell

PORT = "llm-extproc/port"
RANKS = "llm-extproc/ranks"
"""Annotations of pods."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_WATCH_S = 240
"""The API server ends a watch after so long, and the list is asked for again."""

_OVERDUE_S = 30
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0
_LASTING_S = 10.0  # a watch that lasted so long has worked
_GONE = 410


class KubernetesSource:
    """One label selector in one namespace."""

    def __init__(self, section: KubernetesWorkers, first_delay_s: float = _FIRST_DELAY_S) -> None:
        self._section = section
        self._first_delay_s = first_delay_s

    async def run(self, tell: Tell, problem: Callable[[str], None]) -> None:
        """See Source."""
        try:
            import kubernetes_asyncio  # noqa: F401 - an optional extra
        except ImportError:
            problem("the package kubernetes_asyncio is missing: pip install 'llm-extproc[kubernetes]'")
            await asyncio.Event().wait()
        delay_s = self._first_delay_s
        while True:
            began_s = monotonic()
            try:
                await self._list_and_watch(tell)
            except SourceError as error:
                problem(str(error))
            # Also after an end in order: what cuts watches short must not make us list without a pause.
            if monotonic() - began_s >= _LASTING_S:
                delay_s = self._first_delay_s
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    async def _list_and_watch(self, tell: Callable[[list[Found]], None]) -> None:
        """Until the watch ends in order. Raises SourceError."""
        import aiohttp
        from kubernetes_asyncio.client import ApiException
        from kubernetes_asyncio.config import ConfigException

        try:
            async with self._api() as (api, namespace):
                await self._follow(api, namespace, tell)
        except ApiException as error:
            if error.status == _GONE:
                return  # what happened since is forgotten there: the list again
            hint = "; may its account list and watch pods?" if error.status in (401, 403) else ""
            raise SourceError(f"Kubernetes answers {error.status} {error.reason}{hint}") from error
        except ConfigException as error:
            raise SourceError(f"there is no way to the Kubernetes API: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise SourceError(f"the Kubernetes API cannot be reached: {error or type(error).__name__}") from error

    async def _follow(self, api: Any, namespace: str, tell: Callable[[list[Found]], None]) -> None:
        from kubernetes_asyncio.watch import Watch

        selector = self._section.selector
        listed = await api.list_namespaced_pod(namespace, label_selector=selector, _request_timeout=_OVERDUE_S)
        pods: dict[str, Found | None] = {pod.metadata.name: self._worker(pod) for pod in listed.items}

        def now() -> list[Found]:
            return [pods[name] for name in sorted(pods) if pods[name] is not None]  # type: ignore[misc]

        tell(now())
        async with Watch() as watch:
            events = watch.stream(
                api.list_namespaced_pod,
                namespace,
                label_selector=selector,
                resource_version=listed.metadata.resource_version,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_S,
                _request_timeout=_WATCH_S + _OVERDUE_S,
            )
            async for event in events:
                kind = event["type"]
                if kind not in ("ADDED", "MODIFIED", "DELETED"):
                    continue
                pod = event["object"]
                if kind == "DELETED":
                    pods.pop(pod.metadata.name, None)
                else:
                    pods[pod.metadata.name] = self._worker(pod)
                tell(now())

    def _worker(self, pod: Any) -> Found | None:
        status = pod.status
        if pod.metadata.deletion_timestamp is not None or status.phase != "Running" or not status.pod_ip:
            return None
        notes = pod.metadata.annotations or {}
        port = _number(notes.get(PORT), 65535) or self._section.port
        return Found(str(HostPort(status.pod_ip, port)), pod.metadata.name, _number(notes.get(RANKS), 1024) or 1)

    @asynccontextmanager
    async def _api(self) -> AsyncIterator[tuple[Any, str]]:
        """The API and the namespace. Raises ConfigException."""
        from kubernetes_asyncio import client, config

        section = self._section
        settings = client.Configuration()
        namespace = "default"
        if section.kubeconfig is not None:
            loader = await config.load_kube_config(
                str(section.kubeconfig), section.context, client_configuration=settings, persist_config=False
            )
            current: Any = loader.current_context
            namespace = current["context"].get("namespace") or namespace
        else:
            load_incluster: Any = config.load_incluster_config
            load_incluster(client_configuration=settings)
            namespace = (await asyncio.to_thread(_NAMESPACE_FILE.read_text)).strip()
        async with client.ApiClient(settings) as connection:
            yield client.CoreV1Api(connection), section.namespace or namespace


def _number(text: str | None, most: int) -> int | None:
    if text is None or not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= most:
        return None
    return int(text)
