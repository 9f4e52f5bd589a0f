"""Starts real processes: one, or several that are one run, as torchrun does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
TEXT = "".join(f"{number} and {number * number % 97} make {number + 7}. " for number in range(300))
RECIPE = """
[task]
name = "language"
train = "{text}"
length = 16
batch = 6
tokenizer = {{ kind = "characters", special = false }}

[model]
name = "decoder"
layers = 1
heads = 2
width = 16
hidden = 32
dropout = {dropout}

[train]
steps = 12
log_every = 1
schedule = {{ rate = 1e-2 }}
"""


def recipe(folder: Path, *, dropout: float = 0.1) -> Path:
    """A small recipe on a file of text, in a folder."""
    (folder / "text.txt").write_text(TEXT)
    path = folder / "small.toml"
    path.write_text(RECIPE.format(text=folder / "text.txt", dropout=dropout))
    return path


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "LONGSPAN_DATA"}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


def start(*arguments: str, world: int = 1) -> list[subprocess.Popen[str]]:
    """Python processes with these arguments, each knowing its rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    made = []
    for rank in range(world):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        known = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if world > 1 else {}
        made.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment(**known),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return made


def finish(started: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    found = []
    try:
        for process in started:
            output, errors = process.communicate(timeout=120)
            found.append((process.returncode, output, errors))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    return found


def child(folder: Path, *, world: int = 1, **options: Any) -> list[tuple[int, str, str]]:
    """Trains the toy in processes of their own."""
    return finish(start("tests/train/child.py", str(folder), json.dumps(options), world=world))


def longspan(*arguments: str, world: int = 1) -> list[tuple[int, str, str]]:
    """The command, in processes of its own."""
    return finish(start("-m", "longspan", *arguments, world=world))


def losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def result(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
