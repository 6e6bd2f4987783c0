"""Cross-origin requests: Envoy's own filter answers preflights and puts the headers into all other answers.

Credentials in the browser's sense, cookies, are not allowed: keys travel in headers, and so `*` stands for all of them
but `authorization`, which must be named (Fetch standard, CORS-safelisted and wildcard rules).
"""

from __future__ import annotations

import re

from envoy_data_plane.envoy.extensions.filters.http.cors import v3 as cors
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from extproc.config.cors import Cors

FILTER = "envoy.filters.http.cors"

_ANY_PART = "[A-Za-z0-9.:-]*"


def build_filter() -> hcm.HttpFilter:
    """It stands first, so that answers of all filters behind it get the headers."""
    return hcm.HttpFilter(name=FILTER, typed_config=Any.pack(cors.Cors()))


def build_policy(section: Cors) -> dict[str, Any]:
    """For a virtual host. A preflight from elsewhere goes on to the processor, which refuses it without the headers."""
    policy = cors.CorsPolicy(
        allow_origin_string_match=[_match(origin) for origin in section.origins],
        allow_methods="GET, POST, DELETE",
        allow_headers="*, authorization",
        expose_headers="*",
        max_age=str(section.max_age_s),
    )
    return {FILTER: Any.pack(policy)}


def _match(origin: str) -> matcher.StringMatcher:
    if origin == "*":
        return matcher.StringMatcher(safe_regex=matcher.RegexMatcher(regex=".*"))
    if "*" not in origin:
        return matcher.StringMatcher(exact=origin)
    return matcher.StringMatcher(
        safe_regex=matcher.RegexMatcher(regex=_ANY_PART.join(map(re.escape, origin.split("*"))))
    )
