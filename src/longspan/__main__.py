"""`python -m longspan`, the same as `longspan`; `torchrun -m longspan` needs it."""

import os

if "WORLD_SIZE" in os.environ:
    # Else DDP tells every user once that all parameters are used; torch reads this when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from longspan.cli.main import run

run()
