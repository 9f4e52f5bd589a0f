"""Damaged files of every reader: each is read, or refused in a line; none takes ten seconds or a gigabyte.

`python tests/fuzz/hunt.py FIRST COUNT [READER …]` reads more of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

MUTANTS = 12  # of each reader; other seeds than these were hunted by the thousand


def test_damaged_files_are_read_or_refused() -> None:
    command = [sys.executable, str(Path(__file__).with_name("hunt.py")), "0", str(MUTANTS)]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    failures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert not failures, "\n".join(
        f"{each['reader']} {each['file']} {each['seed']}: {each['wrong']}" for each in failures
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
