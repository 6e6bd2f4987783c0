"""A part of a Kubernetes API server: lists and watches pods over real HTTP, as the API's documentation says.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

TOKEN = "a-token-of-the-test"


def pod(name: str, ip: str | None, *, phase: str = "Running", deleted: bool = False, **notes: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "llm", "annotations": notes}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status: dict[str, Any] = {"phase": phase}
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    spec = {"containers": [{"name": "engine", "image": "engine"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


class KubernetesApi:
    """Pods that a test sets; each change is an event to those who watch."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.status = 200
        self.expired = False  # watches are told that their version is too old
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._watches: set[asyncio.StreamWriter] = set()
        self.watching = asyncio.Event()  # somebody watches
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.end_watches()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "llm"}}],
                }
            )
        )
        return path

    def put(self, each: dict[str, Any]) -> None:
        name = each["metadata"]["name"]
        self._event("MODIFIED" if name in self.pods else "ADDED", each)
        self.pods[name] = each

    def delete(self, name: str) -> None:
        self._event("DELETED", self.pods.pop(name))

    def bookmark(self) -> None:
        self.version += 1
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"resourceVersion": str(self.version)}}
        self._send({"type": "BOOKMARK", "object": about})

    def end_watches(self) -> None:
        for writer in self._watches:
            writer.write(b"0\r\n\r\n")
            writer.close()
        self._no_watches()

    def break_watches(self) -> None:
        for writer in self._watches:
            writer.transport.abort()
        self._no_watches()

    def _no_watches(self) -> None:
        self._watches.clear()
        self.watching.clear()

    def _event(self, kind: str, each: dict[str, Any]) -> None:
        self.version += 1
        each["metadata"]["resourceVersion"] = str(self.version)
        event = {"type": kind, "object": json.loads(json.dumps(each))}
        self._history.append((self.version, event))
        self._send(event)

    def _send(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        for writer in self._watches:
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        target = urlsplit(head[0].split(" ")[1])
        query = {key: values[0] for key, values in parse_qs(target.query).items()}
        self.requests.append((target.path, query))
        authorized = f"authorization: bearer {TOKEN}" in [line.lower() for line in head]
        status = self.status if authorized else 401
        if status != 200 or "watch" not in query:
            content: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "PodList",
                "metadata": {"resourceVersion": str(self.version)},
                "items": list(self.pods.values()),
            }
            if status != 200:
                content = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status}
            body = json.dumps(content).encode()
            reason = "OK" if status == 200 else "Forbidden"
            writer.write(
                f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
                + body
            )
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        self._watches.add(writer)
        self.watching.set()
        if self.expired:
            self.expired = False
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            self._send({"type": "ERROR", "object": gone})
            return
        since = int(query["resourceVersion"])
        for version, event in self._history:
            if version > since:
                line = json.dumps(event).encode() + b"\n"
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
