"""Points in time as JSON APIs write them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["timestamp"]


def timestamp(seconds: int) -> str:
    """Seconds since the epoch as RFC 3339, in UTC: `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
