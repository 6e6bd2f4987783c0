"""`make bench`: CPU of all gateway processes per request and per streamed token.

    make bench                                              all rows, about ten minutes
    make bench ARGS='--rows unary-300-c64 stream-100-c64 --runs 1'

Figures are user and system time in microseconds, medians of runs that take turns: ours, SMG, Envoy in front of SMG, and
again. `make bench` also writes them to build/bench.json.
"""

import sys
from pathlib import Path

from benchmarks.gateway.measure import main
from benchmarks.gateway.rows import ROWS

if __name__ == "__main__":
    sys.exit(main("make bench", __doc__, ROWS, Path("build/bench.json")))
