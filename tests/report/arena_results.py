"""Made-up results of a grid, as the arena writes them."""

import json
import math
import random
from pathlib import Path

from longspan.arena.runs.cell import Cell, Record

MODELS = {  # accuracy on two tasks, steps per second and memory at length 1024, and how both grow with the length
    "naive": (0.462, 0.612, 6.0, 420, 1.9),
    "dense": (0.462, 0.612, 9.5, 160, 1.6),
    "window": (0.431, 0.588, 11.0, 120, 1.0),
    "bigbird": (0.447, 0.573, 7.2, 190, 1.1),
    "reformer": (0.405, 0.531, 5.1, 210, 1.1),
    "linformer": (0.418, 0.601, 12.6, 90, 1.0),
    "performer": (0.392, 0.628, 10.2, 130, 1.0),
    "lstm": (0.371, 0.545, 1.4, 60, 1.0),
}
BASELINES = {
    "listops": {"majority": 0.113, "first_token": 0.231, "root_digits": 0.352},
    "pathfinder": {"majority": 0.507, "ink": 0.512},
    "mqar": {"majority": 0.02, "value_in_context": 0.125},
    "parity": {"majority": 0.5, "table_of_counts": 0.62},
}
MACHINE = {
    "processor": "a made-up processor, 2 cores",
    "threads": 1,
    "memory": 8 * 2**30,
    "caches": {"L1d": 2**15, "L2": 2**20},
    "gpu": [],
    "torch": "2.8.0",
    "longspan": "0.1.0",
}


GRID = {
    "version": 1,
    "arguments": {"tasks": ["listops", "pathfinder"], "models": ["dense", "window"], "setting": "tiny", "seeds": 3},
    "cells": [],
}


def record(task: str, model: str, seed: int, accuracy: float | None, **more) -> Record:
    steps = 1000
    majority = BASELINES[task]["majority"]
    end = accuracy or majority
    curve = [
        {
            "step": step,
            "seconds": step / 8,
            "loss": 2 - step / 1000,
            "held_out": majority + (end - majority) * (1 - math.exp(-4 * step / steps)),
        }
        for step in range(100, steps + 1, 100)
    ]
    values = {
        "state": "done",
        "accuracy": accuracy,
        "held_out": accuracy,
        "test_count": 2000,
        "best_step": 900,
        "steps": steps,
        "seconds": 120.0,
        "steps_per_second": 8.0,
        "memory": 200 * 2**20,
        "memory_by": "resident",
        "parameters": 215_000,
        "parameters_ratio": 1.0,
        "baselines": BASELINES[task],
        "curve": tuple(curve),
        "data": {
            "source": f"our generator of {task}",
            "examples": {"train": 20000, "held_out": 2000, "test": 2000},
            "hashes": {"train": "0123456789abcdef", "test": "fedcba9876543210"},
            "label_shares": [0.5, 0.5] if task == "pathfinder" else [0.1] * 10,
        },
        "options": {"model": {"layers": 4, "width": 64}, "training": {"rate": 1e-3}},
        "machine": MACHINE,
        "energy": {
            "joules": 2500.0 + 100 * seed,
            "by": f"modelled: {110 + seed} s of one core at 12 W (not known by name); no RAPL",
        },
        "began": f"2026-11-16T07:{seed:02d}:00Z",
    }
    pretrain = more.pop("pretrain", False)
    cell = Cell(task=task, model=model, setting=more.pop("setting", "tiny"), seed=seed, pretrain=pretrain)
    return Record(cell=cell, **{**values, **more})


def speed(model: str, length: int, rate: float | None, memory: int | None, **more) -> Record:
    cell = Cell(kind="speed", task="text", model=model, length=length)
    values = {"state": "done", "steps_per_second": rate, "memory": memory, "memory_by": "resident", "machine": MACHINE}
    return Record(cell=cell, **{**values, **more})


def realistic(seeds: int = 3) -> list[Record]:
    """Models of every kind, two tasks, self pre-training, a failed seed and a cell that ran out of memory."""
    chance, found = random.Random(0), []
    for model, (listops, pathfinder, rate, memory, growth) in MODELS.items():
        for length in (1024, 2048, 3072, 4096):
            times = (length / 1024) ** growth
            if model == "naive" and length == 4096:
                why = "torch could not allocate 9.5 GiB"
                found.append(speed(model, length, None, None, state="memory", error=why))
            else:
                found.append(speed(model, length, rate / times, int(memory * 2**20 * times)))
        if model == "naive":
            continue
        for task, accuracy in (("listops", listops), ("pathfinder", pathfinder)):
            flagged = "1.31 times the base's parameters" if model == "lstm" else None
            for seed in range(seeds):
                got = accuracy + chance.gauss(0, 0.008)
                if (model, task, seed) == ("reformer", "pathfinder", 1):
                    why = "RuntimeError: the loss is not a number at step 340"
                    found.append(record(task, model, seed, None, state="failed", error=why, curve=()))
                    continue
                found.append(record(task, model, seed, got, flagged=flagged))
                if model in ("dense", "performer", "window"):
                    found.append(record(task, model, seed, got + 0.05 + chance.gauss(0, 0.01), pretrain=True))
    return found


def save(folder: Path, records: list[Record], grid: dict | None = None) -> Path:
    lines = [json.dumps(each.plain()) for each in records]
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "grid.json").write_text(json.dumps(GRID if grid is None else grid), encoding="utf-8")
    return folder
