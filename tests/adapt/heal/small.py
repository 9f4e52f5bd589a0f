"""A small decoder with its tokenizer, and the same weights with another attention, as folders."""

from pathlib import Path
from typing import Any

import torch

from longspan import config
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.models import build
from longspan.models.base import Model

TEXT = "".join(f"The {n} birds saw {n * 7 % 13} fish, and {n * 5 % 11} of them were red.\n" for n in range(60))
SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64, "position": "rotary"}
HYBRID = {"name": "window_linear", "window": 4}


def write_teacher(folder: Path, seed: int = 0, **changed: Any) -> Model:
    tokenizer = learn(TokenizerOptions(kind="bytes", special=False), ["a"])
    torch.manual_seed(seed)
    model = build("decoder", **{"vocabulary": tokenizer.size, **SIZES, **changed}).eval()
    for parameter in model.parameters():  # sharper attention than fresh weights have
        parameter.data *= 3
    model.save(folder, tokenizer=tokenizer.to_json())
    return model


def write_swapped(teacher: Model, folder: Path, attention: Any, tokenizer: str | None = None) -> Model:
    options = config.make(type(teacher).Options, {**config.plain(teacher.options), "attention": attention}, "swapped")
    model = type(teacher)(options).eval()
    model.load_state_dict(teacher.state_dict(), strict=False)
    tokenizer = (
        learn(TokenizerOptions(kind="bytes", special=False), ["a"]).to_json() if tokenizer is None else tokenizer
    )
    model.save(folder, tokenizer=tokenizer)
    return model


def write_all(root: Path, attention: Any = (HYBRID,)) -> tuple[Path, Path, Path]:
    """The folders of the swapped model and of its teacher, and the text."""
    teacher = write_teacher(root / "teacher")
    write_swapped(teacher, root / "swapped", attention)
    (root / "text.txt").write_text(TEXT)
    return root / "swapped", root / "teacher", root / "text.txt"
