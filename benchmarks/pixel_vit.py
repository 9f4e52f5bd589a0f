"""A Vision Transformer on single pixels of CIFAR-10 (1024 tokens) with every mechanism that can stand in it.

    python -m benchmarks.pixel_vit --runs runs/pixels                 # train the recipe cifar10-pixels with each
    python -m benchmarks.pixel_vit --runs runs/pixels --speed         # time and memory only, on a quiet machine

The first form trains each mechanism in its own process, skips those whose run is there, and prints the accuracy on the
test images. The second takes a few steps of each, and prints images per second and memory, against softmax in the same
run. Both keep what they measured in RUNS/table.json and print it as a table.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

RECIPE = "cifar10-pixels"
OPTIONS: dict[str, dict[str, Any]] = {  # a reach of about 64 pixels, or two rows
    "softmax": {},
    "window": {"window": 32},
    "longformer": {"window": 32},
    "etc": {"radius": 32, "global_tokens": 16},
    "bigbird": {"block": 32},
    "axial": {"width": 32},
    "reformer": {"chunk": 32, "rounds": 2},
    "routing": {"window": 64},
    "sinkhorn": {"block": 64},
    "synthesizer": {"form": "factorised_random"},
    "linformer": {"rank": 64},
    "nystrom": {"landmarks": 32},
    "linear": {},
    "performer": {"features": 64},
    "cosformer": {},
}
SPEED_STEPS = 10
WARM_STEPS = 3  # not counted
MEASURE = """
import resource, sys
from longspan.cli.main import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def attention(name: str) -> str:
    """The mechanism as a value of `--model.attention`; axial attention alternates rows and columns."""
    rows = [{"name": name, **OPTIONS[name]}]
    if name == "axial":
        rows.append({**rows[0], "axis": 0})
    tables = (", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items()) for row in rows)
    return "[" + ", ".join(f"{{ {table} }}" for table in tables) + "]"


def longspan(*arguments: str) -> str:
    """The output of the command line in its own process."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"longspan {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def train(name: str, run: Path) -> dict[str, float]:
    if not (run / "model").is_dir():
        longspan("train", RECIPE, "--model.attention", attention(name), "--out", str(run))
    report = longspan("evaluate", str(run), "--split", "test", "--json")
    return {"accuracy": json.loads(report[: report.rindex("peak")])["metrics"]["accuracy"]}


def speed(name: str, run: Path) -> dict[str, float]:
    shutil.rmtree(run, ignore_errors=True)
    flags = ["--train.steps", str(SPEED_STEPS), "--train.log_every", "1", "--task.share", "0.01"]
    out = longspan("train", RECIPE, "--model.attention", attention(name), *flags, "--out", str(run))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "seconds" in row][WARM_STEPS:]
    seconds = median(row["seconds"] / row["count"] for row in steps)
    return {"images_per_second": 1 / seconds, "mib": int(out.split()[-1]) / 1024}


def show(table: dict[str, dict[str, float]]) -> None:
    dense = table.get("softmax", {})
    print("| attention | accuracy | images/s | × softmax | process, MiB |\n|---|---|---|---|---|")
    for name, row in table.items():
        rate = row.get("images_per_second")
        ratio = f"{rate / dense['images_per_second']:.2f}" if rate and "images_per_second" in dense else ""
        accuracy = f"{row['accuracy']:.1%}" if "accuracy" in row else ""
        print(f"| `{name}` | {accuracy} | {f'{rate:.0f}' if rate else ''} | {ratio} | {row.get('mib', 0):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/pixels"))
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--only", default=",".join(OPTIONS))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    kept = given.runs / "table.json"
    table: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in given.only.split(","):
        measured = speed(name, given.runs / f"speed-{name}") if given.speed else train(name, given.runs / name)
        table[name] = {**table.get(name, {}), **measured}
        print(f"{name}: {measured}", file=sys.stderr, flush=True)
        kept.write_text(json.dumps(table, indent=1))
    show({name: table[name] for name in OPTIONS if name in table})


if __name__ == "__main__":
    main()
