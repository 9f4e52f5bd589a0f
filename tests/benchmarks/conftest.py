"""The benchmarks say how many threads a process has when they are imported: here that is none of their business."""

import os
from unittest.mock import patch

with patch.dict(os.environ):
    import benchmarks  # noqa: F401
