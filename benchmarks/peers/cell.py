"""What one process measures: `python -m benchmarks.peers.cell OUT.json times|kept|memory|decoding ...`.

- `times`: both sides of a pair and torch's full attention as a reference, in turns; `kept` is the same with
  `keep_memory`, which keeps freed memory with the process: any process on Linux can do that, so both are reported.
- `memory`: the peak of a forward and backward pass of one side, above what the process held before.
- `decoding`: tokens per second.

If a peer cannot do something, the result has the reason; only a killed process writes nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import PAIRS
from benchmarks.peers.native import fused
from benchmarks.peers.pair import Pair, Side, Size
from longspan.measure.footprint import Resident, give_back_memory
from longspan.measure.timing import turns
from longspan.train.malloc import keep_memory

WITNESS, THEIRS, OURS = "full", "theirs", "ours"
KINDS = ("forward", "backward")
Result = dict[str, Any]


def times(pair: Pair, size: Size, repeats: int) -> Result:
    """The least seconds of each side and kind, the difference of the outputs, and what failed."""
    sides, lacks = {WITNESS: fused(size, causal=False), OURS: pair.ours(size)}, {}
    try:
        torch.manual_seed(0)
        sides[THEIRS] = pair.theirs(size)
    except Exception as error:
        lacks[f"{THEIRS} {KINDS[0]}"] = lacks[f"{THEIRS} {KINDS[1]}"] = one_line(error)
    cases = {}
    for name, side in sides.items():
        for kind in KINDS:
            try:
                getattr(side, kind)()
            except Exception as error:
                lacks[f"{name} {kind}"] = one_line(error)
            else:
                cases[f"{name} {kind}"] = getattr(side, kind)
    differs = None
    if pair.tie is not None and f"{THEIRS} forward" in cases:
        pair.tie(sides[THEIRS].module, sides[OURS].module)
        differs = difference(sides[THEIRS], sides[OURS])
    seconds = {name: min(every) for name, every in turns(cases, repeats).items()}
    return {"seconds": seconds, "differs": differs, "lacks": lacks}


def difference(theirs: Side, ours: Side) -> float:
    """The largest difference of the outputs, relative to the largest output."""
    there, here = theirs.forward(), ours.forward()
    return float((there - here).abs().max() / there.abs().max())


def memory(pair: Pair, size: Size, side: str) -> Result:
    torch.manual_seed(0)
    built = pair.theirs(size) if side == THEIRS else pair.ours(size)
    give_back_memory()
    built.backward()  # fills caches
    resident = Resident()
    built.backward()
    return {"bytes": resident.peak()}


def one_line(error: Exception) -> str:
    """The error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# In the process that starts this one


def start(limit: float, *arguments: object, spin: bool = False) -> Result:
    """The result of a separate process, or {"error": the reason}.

    With `spin` its idle threads spin, as they do by default; otherwise they sleep, so that CPU time is meaningful.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", __spec__.name, str(out), *map(str, arguments)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "ACTIVE" if spin else "PASSIVE"}
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {limit:.0f} s"}
        if not out.exists():
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            return {"error": f"the process ended with {ended.returncode}: {last}"[:300]}
        result: Result = json.loads(out.read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("what", choices=("times", "kept", "memory", "decoding"))
    parser.add_argument("--pair", choices=list(PAIRS))
    parser.add_argument("--side", choices=(THEIRS, OURS))
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.what == "kept":
        keep_memory()
    size = Size(arguments.length)
    try:
        if arguments.what == "decoding":
            from benchmarks.peers import decoding

            result = decoding.measure(arguments.repeats)
        elif arguments.what == "memory":
            result = memory(PAIRS[arguments.pair], size, arguments.side)
        else:
            result = times(PAIRS[arguments.pair], size, arguments.repeats)
    except Exception as error:
        result = {"error": one_line(error)}
    arguments.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
