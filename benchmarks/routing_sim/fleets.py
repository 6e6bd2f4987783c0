"""Traffic for larger fleets: the trace several times over."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.routing.trace import Request

_SHIFT_S = 30.0
_IDS_APART = 1 << 24  # between the content ids of two copies; the trace has fewer


def many_times(requests: Sequence[Request], times: int) -> list[Request]:
    """Copies that share nothing with each other, each arrival up to 30 s later, conversations in order."""
    if times <= 1:
        return list(requests)
    copies = []
    for number in range(times):
        later_s = random.Random(number).random() * _SHIFT_S
        for request in requests:
            pieces = tuple((content + number * _IDS_APART, tokens) for content, tokens in request.pieces)
            copies.append(Request(request.at_s + later_s, pieces, request.output_tokens))
    copies.sort(key=lambda request: request.at_s)
    return copies
