"""longspan against other packages, at equal settings, in one run: `make peers`, or `python -m benchmarks.peers`.

- `pair`: a pair of implementations of one method, on the same input.
- `patterns`, `packages`, `hub`, `native`: the pairs, with what is equal in each: packages of single methods, models of
  Hugging Face, and torch's own layers.
- `cell`: measures one pair in one process. `decoding`: tokens per second of generation.
- `table`, `chart`: the results as Markdown and as SVG.
"""

from benchmarks.peers.hub import HUB
from benchmarks.peers.native import NATIVE
from benchmarks.peers.packages import PACKAGES
from benchmarks.peers.pair import Pair
from benchmarks.peers.patterns import PATTERNS

PAIRS: dict[str, Pair] = {pair.name: pair for pair in (*PATTERNS, *PACKAGES, *HUB, *NATIVE)}
