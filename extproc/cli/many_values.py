"""An option that takes several values: repeated, after one another, or separated by commas.

    --worker-urls grpc://a:1 grpc://b:2
    --worker-urls grpc://a:1 --worker-urls grpc://b:2
    --worker-urls grpc://a:1,grpc://b:2

People who come from other gateways write the first form, which the command line library does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand

MANY_VALUED = ("--worker-urls",)


def repeat_option(arguments: Sequence[str], options: Iterable[str]) -> list[str]:
    """Arguments with each option named anew before every one of its values.

    An option's values are all arguments after it up to the next that begins with `-`.
    """
    options = frozenset(options)
    repeated: list[str] = []
    current: str | None = None  # the option whose values are being read
    pending = False  # it has no value yet
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in options:
            current, pending = name, not equals
            if equals:
                repeated += [name, value]
        elif current and not argument.startswith("-"):
            repeated += [current, argument]
            pending = False
        else:
            if pending and current:
                repeated.append(current)
            current, pending = None, False
            repeated.append(argument)
    if pending and current:
        repeated.append(current)
    return repeated


def split_commas(values: Iterable[str]) -> list[str]:
    """Every value on its own, in order, without duplicates and spaces."""
    parts = (part.strip() for value in values for part in value.split(","))
    return list(dict.fromkeys(part for part in parts if part))


class ManyValuesCommand(TyperCommand):
    """A command with such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Bring the arguments into the form that the library knows."""
        return super().parse_args(ctx, repeat_option(args, MANY_VALUED))
