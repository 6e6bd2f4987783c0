"""`make bench-tokens`: CPU of all gateway processes per request, for the kinds of prompts that a gateway tokenizes.

    make bench-tokens                                       all rows, about twenty minutes
    make bench-tokens ARGS='--rows new-3000-deepseek --runs 1'

Figures are user and system time in microseconds, medians of runs that take turns: ours, SMG, Envoy in front of SMG, and
both once more with both of SMG's tokenizer caches on; of SMG's two settings the cheaper one counts. `make bench-tokens`
also writes them to build/bench-tokens.json.
"""

import sys
from pathlib import Path

from benchmarks.gateway.measure import main
from benchmarks.gateway.token_rows import ROWS

if __name__ == "__main__":
    sys.exit(main("make bench-tokens", __doc__, ROWS, Path("build/bench-tokens.json")))
