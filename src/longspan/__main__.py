"""`python -m longspan`, the same as `longspan`; `torchrun -m longspan` needs it."""

from longspan.cli.main import run

run()
