"""Whose a request is, and how urgent, from headers that the configuration trusts."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.config.fleet import Tenants

_LONGEST_TENANT = 256
_MOST_PRIORITY = 100


class TenantHeaders:
    """The headers of one configuration."""

    __slots__ = ("_priority", "_tenant")

    def __init__(self, section: Tenants) -> None:
        self._tenant = section.header
        self._priority = section.priority_header

    def tenant(self, headers: Mapping[str, str]) -> str:
        """Empty for requests that name none."""
        return headers.get(self._tenant, "")[:_LONGEST_TENANT] if self._tenant is not None else ""

    def priority(self, headers: Mapping[str, str]) -> int:
        """From -100 to 100; 0 for what is no number."""
        if self._priority is None:
            return 0
        text = headers.get(self._priority, "")
        digits = text.removeprefix("-")
        if not digits.isdecimal() or not digits.isascii() or len(digits) > 3:
            return 0
        return max(-_MOST_PRIORITY, min(int(text), _MOST_PRIORITY))


def tenant_headers(section: Tenants) -> TenantHeaders | None:
    """None where no header is configured."""
    return TenantHeaders(section) if section.header is not None or section.priority_header is not None else None
