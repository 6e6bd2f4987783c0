"""How engines are reached that speak OpenAI's dialect over HTTP."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from extproc.config.fields import Bool, FilePath, Section
from extproc.config.fleet import HostName


def _check_prefix(path: str) -> str:
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+", path):
        raise ValueError(f"{path[:64]!r} is no beginning of a path: write one such as /openai, without a slash behind")
    if path.endswith("/v1"):
        raise ValueError("the paths of requests begin with /v1 themselves: leave it out")
    return path


def _check_host(host: str) -> str:
    if not re.fullmatch(r"(?!-)[A-Za-z0-9_.-]{1,253}(:[0-9]{1,5})?", host):
        raise ValueError(f"{host[:64]!r} is no host: write one such as llm.example.com")
    return host


class EngineTls(Section):
    """TLS between Envoy, and the processor's own questions, and the engines."""

    ca: FilePath = Field(
        description="PEM file with the authorities by which engines' certificates are checked, such as "
        "/etc/ssl/certs/ca-certificates.crt. It is at this path where Envoy runs, too."
    )
    server_name: HostName = Field(
        description="The DNS name that the engines' certificates must have, which is also the one that they are told."
    )


class HttpEngine(Section):
    """What requests to engines over HTTP need."""

    path_prefix: Annotated[str, AfterValidator(_check_prefix)] = Field(
        default="", description="What stands before `/v1/chat/completions` in the engines' URLs, such as `/openai`."
    )
    host: Annotated[str, AfterValidator(_check_host)] | None = Field(
        default=None, description="The `host` header of requests; without it the one that the client wrote."
    )
    protocol: Literal["http1", "http2"] = Field(
        default="http1",
        description="HTTP/1.1, or HTTP/2 (without TLS by prior knowledge). The processor itself asks engines for "
        "health and models in HTTP/1, so those that speak only HTTP/2 need `http_health` with a port that does not.",
    )
    tls: EngineTls | None = Field(default=None, description="TLS towards the engines; without it plain HTTP.")
    api_key: FilePath | None = Field(
        default=None,
        description="File with the key that the engines want as `authorization: Bearer …`. The processor adds it to "
        "requests, so it stands neither in Envoy's configuration nor in a log; a file that is replaced is used within "
        "a second. Clients' own keys never reach engines.",
    )
    ask_usage: Bool = Field(
        default=True,
        description="Ask for the counts of tokens at the end of streams, which metrics need, also where the client "
        "does not; it does not see them then. For engines that refuse `stream_options`, turn it off.",
    )
