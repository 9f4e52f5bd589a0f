"""longspan against other packages, at equal settings, in one run: `make peers`, or `python -m benchmarks.peers`.

- `pair`: what a pair is: two implementations of one thing, on the same input.
- `patterns`, `packages`, `hub`, `native`: the pairs, with what is equal in each: the packages of one method each,
  Hugging Face's models, and what torch has itself.
- `cell`: what one process measures of a pair. `decoding`: tokens per second of generation.
- `table`, `chart`: the results as Markdown and as SVG.
"""

from benchmarks.peers.hub import HUB
from benchmarks.peers.native import NATIVE
from benchmarks.peers.packages import PACKAGES
from benchmarks.peers.pair import Pair
from benchmarks.peers.patterns import PATTERNS

PAIRS: dict[str, Pair] = {pair.name: pair for pair in (*PATTERNS, *PACKAGES, *HUB, *NATIVE)}
