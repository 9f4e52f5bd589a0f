"""Reads damaged files and says which were neither read nor refused: `python tests/fuzz/hunt.py FIRST COUNT [READER …]`.

It runs in a process of its own, with a limit on memory and an alarm, as damage may take all of either. A line of JSON
is printed for every failure; before each file, its name goes to standard error, for when the process dies. With the
environment's KEEP, the damaged files of failures are copied to that folder.
"""

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "train"))

from mutate import mutate  # a script finds its neighbours
from readers import READERS

from longspan.errors import LongspanError

SECONDS, BYTES = 10, 1 << 30


class TooLong(BaseException):
    """No Exception, so that nothing that reads a file catches it."""


def hunt(first: int, count: int, names: list[str], keep: Path | None = None) -> int:
    """Reads `count` damaged files of each reader; how many failed."""
    signal.signal(signal.SIGPROF, _alarm)
    failed = 0
    limited = False
    with tempfile.TemporaryDirectory() as work:
        for reader in READERS:
            if names and reader.name not in names:
                continue
            whole, folder = Path(work) / f"{reader.name}-whole", Path(work) / reader.name
            whole.mkdir()
            reader.make(whole)
            shutil.copytree(whole, folder)
            reader.read(folder)  # the valid one is read
            if not limited:
                limited = True
                size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
            for seed in range(first, first + count):
                shutil.rmtree(folder)
                shutil.copytree(whole, folder)
                file = reader.files[seed % len(reader.files)]
                mutate(folder / file, seed)
                sys.stderr.write(f"{reader.name} {file} {seed}\n")
                wrong = _read(reader, folder)
                if wrong is not None:
                    failed += 1
                    row = {"reader": reader.name, "file": file, "seed": seed, "wrong": wrong}
                    sys.stdout.write(json.dumps(row) + "\n")
                    sys.stdout.flush()
                    if keep is not None:
                        shutil.copytree(folder, keep / f"{reader.name}-{seed}", dirs_exist_ok=True)
    return failed


def _read(reader: Any, folder: Path) -> str | None:
    """What went wrong, where anything but a refusal in one line did."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        reader.read(folder)
    except LongspanError as error:
        return (
            None
            if str(error).strip() and len(str(error)) < 5000
            else f"the error says nothing, or too much: {str(error)[:200]}"
        )
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-4:])[-1200:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _alarm(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} seconds of work")


if __name__ == "__main__":
    faulthandler.enable()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    keep = Path(os.environ["KEEP"]) if "KEEP" in os.environ else None
    sys.exit(1 if hunt(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:], keep) else 0)
