"""What one process measures: `python -m benchmarks.peers.cell OUT.json times|kept|memory|decoding ...`.

- `times`: both sides of a pair and full attention by torch, the witness, taking turns; `kept` is the same with
  `keep_memory`, under which freed memory is not mapped anew: what any process on Linux can have, so both are told.
- `memory`: the peak of a forward and backward pass of one side, beyond what the process held before.
- `decoding`: tokens per second.

What a peer cannot do is written down with its reason; only a process that is killed writes nothing.
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
Found = dict[str, Any]


def times(pair: Pair, size: Size, repeats: int) -> Found:
    """Least seconds of each side and kind, by how much the outputs differ, and what could not be done."""
    sides, lacks = {WITNESS: fused(size, causal=False), OURS: pair.ours(size)}, {}
    try:
        torch.manual_seed(0)
        sides[THEIRS] = pair.theirs(size)
    except Exception as error:
        lacks[f"{THEIRS} {KINDS[0]}"] = lacks[f"{THEIRS} {KINDS[1]}"] = said(error)
    cases = {}
    for name, side in sides.items():
        for kind in KINDS:
            try:
                getattr(side, kind)()
            except Exception as error:
                lacks[f"{name} {kind}"] = said(error)
            else:
                cases[f"{name} {kind}"] = getattr(side, kind)
    differs = None
    if pair.tie is not None and f"{THEIRS} forward" in cases:
        pair.tie(sides[THEIRS].module, sides[OURS].module)
        differs = difference(sides[THEIRS], sides[OURS])
    seconds = {name: min(every) for name, every in turns(cases, repeats).items()}
    return {"seconds": seconds, "differs": differs, "lacks": lacks}


def difference(theirs: Side, ours: Side) -> float:
    """Of the outputs, the largest, as a share of the largest output."""
    there, here = theirs.forward(), ours.forward()
    return float((there - here).abs().max() / there.abs().max())


def memory(pair: Pair, size: Size, side: str) -> Found:
    torch.manual_seed(0)
    made = pair.theirs(size) if side == THEIRS else pair.ours(size)
    give_back_memory()
    made.backward()  # what is made once and kept
    resident = Resident()
    made.backward()
    return {"bytes": resident.peak()}


def said(error: Exception) -> str:
    """The error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# Seen from the process that starts this one


def start(limit: float, *arguments: object, spin: bool = False) -> Found:
    """What a process of its own found, or {"error": why it found nothing}.

    `spin`: its threads wait as they do for a user; otherwise they sleep, so that processor time is what it took.
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
        found: Found = json.loads(out.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("what", choices=("times", "kept", "memory", "decoding"))
    parser.add_argument("--pair", choices=list(PAIRS))
    parser.add_argument("--side", choices=(THEIRS, OURS))
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.what == "kept":
        keep_memory()
    size = Size(given.length)
    try:
        if given.what == "decoding":
            from benchmarks.peers import decoding

            found = decoding.measure(given.repeats)
        elif given.what == "memory":
            found = memory(PAIRS[given.pair], size, given.side)
        else:
            found = times(PAIRS[given.pair], size, given.repeats)
    except Exception as error:
        found = {"error": said(error)}
    given.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
