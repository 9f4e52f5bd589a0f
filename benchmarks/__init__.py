"""Benchmarks, run by hand and by `make bench`: `python -m benchmarks.attention`.

The number of threads must be set before torch is imported.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
