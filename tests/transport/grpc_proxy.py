"""A real Envoy as a plain HTTP/2 proxy: it goes to the address that a call has as its authority."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from free_ports import free_port
from transport_probe import PATIENCE_S

_TYPE = "type.googleapis.com/envoy."
_HTTP2 = {"max_concurrent_streams": 100_000, "initial_stream_window_size": 1 << 16}
_CEILING = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 1_000_000)


def _socket(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _bootstrap(port: int, admin_port: int) -> dict[str, Any]:
    manager = {
        "@type": _TYPE + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "proxy",
        "codec_type": "HTTP2",
        "http2_protocol_options": _HTTP2,
        "stream_idle_timeout": "0s",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": _TYPE + "extensions.filters.http.router.v3.Router"},
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "authority", "timeout": "0s"}}],
                }
            ]
        },
    }
    cluster = {
        "name": "authority",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": ":authority"},
        "circuit_breakers": {"thresholds": [_CEILING]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": _HTTP2},
            }
        },
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "admin": {"address": _socket(admin_port)},
        "static_resources": {
            "listeners": [{"name": "calls", "address": _socket(port), "filter_chains": [chain]}],
            "clusters": [cluster],
        },
    }


@contextmanager
def running_proxy(binary: Path, folder: Path) -> Iterator[str]:
    """Its address, once it takes calls."""
    port, admin_port = free_port(), free_port()
    file = folder / "proxy.json"
    file.write_text(json.dumps(_bootstrap(port, admin_port)))
    log = (folder / "proxy.log").open("wb")
    command = [str(binary), "-c", str(file), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + PATIENCE_S
        while not _ready(admin_port):
            alive = process.poll() is None and time.monotonic() < end
            assert alive, (folder / "proxy.log").read_text()[-3000:]
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        log.close()


def _ready(admin_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/ready", timeout=1) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
