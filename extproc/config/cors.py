"""Pages in browsers that may call the gateway."""

from __future__ import annotations

from pydantic import Field, field_validator

from extproc.config.fields import Int, Section


class Cors(Section):
    """Cross-origin requests of browsers, which Envoy answers: preflights, and headers in all answers."""

    origins: tuple[str, ...] = Field(
        default=(),
        description="Origins whose pages may call the gateway, such as `https://chat.example.com`; `*` within one "
        "stands for any letters, digits, dots, hyphens and colons, and alone for every origin. None without it.",
    )
    max_age_s: Int = Field(
        default=7200, ge=0, le=86_400, description="How long a browser may remember a preflight's answer, in seconds."
    )

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin == "*":
                continue
            scheme, _, host = origin.partition("://")
            if not scheme or not host or "/" in host or any(character.isspace() for character in origin):
                raise ValueError(
                    f"{origin!r} is no origin: it is a scheme and a host, such as https://chat.example.com"
                )
        return origins
