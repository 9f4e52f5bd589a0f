"""Benchmarks, run by hand and by `make bench`: `python -m benchmarks.attention`.

The number of threads must be set before torch is imported. Every benchmark prints its energy at the end, on standard
error (`energy.py`).
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if sys.argv[:1] == ["-m"]:  # python -m benchmarks.NAME, and not a test or a child process that imports it
    from benchmarks.energy import report_at_exit

    report_at_exit()
