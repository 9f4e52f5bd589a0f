"""Charts of vision runs: accuracy against parameters and operations, and bits per dimension by step, as SVG files.

    python -m benchmarks.vision_chart RUNS docs/vision

RUNS holds the runs of the recipes `cifar10-resnet…` and `mnist-pixels-…` by those names. RUNS/NAME.test is the output
of `longspan evaluate RUNS/NAME --split test --json`.
"""

import json
import sys
from pathlib import Path

from longspan import files
from longspan.models import folder
from longspan.models.cost import cost
from longspan.report.charts import ChartAxis, ChartLine, Circle, curves, scatter
from longspan.report.figures import standalone

RESNETS = {
    "cifar10-resnet": ("convolutions", "dense"),
    "cifar10-resnet-nonlocal": ("non-local", "fixed-pattern"),
    "cifar10-resnet-standalone": ("stand-alone", "low-rank"),
}
GENERATORS = {
    "mnist-pixels-axial": ("axial", "fixed-pattern"),
    "mnist-pixels-linear": ("linear", "kernel"),
    "mnist-pixels-sparse": ("sparse", "learned-pattern"),
    "mnist-pixels-image": ("image local", "low-rank"),
}


SIDE = 32  # pixels of CIFAR-10


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def generators(runs: Path) -> list[ChartLine]:
    """The training loss in bits, the mean of five logged steps."""
    lines = []
    for name, (title, kind) in GENERATORS.items():
        if not (runs / name / "metrics.jsonl").exists():
            continue
        logged = [row for row in rows(runs / name) if "loss" in row]
        groups = [logged[begin : begin + 5] for begin in range(0, len(logged) - 4, 5)]
        points = [(group[-1]["step"], sum(row["loss"] for row in group) / 5 / 0.693147) for group in groups]
        points = [point for point in points if point[1] < 2]
        lines.append(ChartLine(title, kind, points, [f"{y:.3f} bits after {x:.0f} steps" for x, y in points]))
    return lines


def resnets(runs: Path) -> list[Circle]:
    """Accuracy over operations of a forward pass; the area is the number of parameters."""
    circles = []
    for name, (title, kind) in RESNETS.items():
        accuracy = json.loads((runs / f"{name}.test").read_text(encoding="utf-8"))["metrics"]["accuracy"] * 100
        model = folder.load(runs / name / "model")
        counted = cost(model, SIDE * SIDE)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        tip = f"{title}: {accuracy:.1f} %, {parameters:,} parameters, {counted.flops / 1e6:.0f} MFLOPs"
        print(tip)
        circles.append(Circle(title, kind, counted.flops / 1e6, accuracy, parameters, tip))
    return circles


def main() -> None:
    runs, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    lines = generators(runs)
    across, up = ChartAxis("steps of 8 images"), ChartAxis("bits per dimension (training)")
    chart = curves(lines, across, up, "Images of MNIST, pixel by pixel", width=720, height=340)
    files.write_text(out / "generators.svg", standalone(chart, "MNIST, pixel by pixel"))
    chart = scatter(
        resnets(runs),
        ChartAxis("million operations per image, forward", factors=True),
        ChartAxis("accuracy on CIFAR-10, percent"),
        size=lambda count: f"{count / 1000:.0f}k parameters",
        width=720,
        height=340,
    )
    files.write_text(out / "resnets.svg", standalone(chart, "ResNets with and without attention"))


if __name__ == "__main__":
    main()
