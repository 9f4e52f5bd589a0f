"""Holding a family to Hugging Face: the same numbers from the same folder, and the same folder back."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longspan import hub
from longspan.hub import Pretrained

EXACT = {torch.float64: 1e-8, torch.float32: 1e-4}


def random_model(cls: Any, config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A model of Hugging Face's in evaluation mode, every parameter drawn: norms, biases and all.

    Initial biases are 0 and gains 1, which would hide a name that is mapped to the wrong one.
    """
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = cls(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_(around + 0.2 * torch.randn_like(parameter))
    model.tie_weights()
    return model


def in_double(monkeypatch: Any, *modules: Any) -> None:
    """Lets modules of theirs that go through float32 (norms, softmaxes, rotations) compute in float64."""
    double = {"float32": torch.float64, "float": torch.float64}
    shown = SimpleNamespace(**{name: getattr(torch, name) for name in dir(torch)} | double)
    for module in modules:
        monkeypatch.setattr(module, "torch", shown)


def loaded(theirs: Any, folder: Path, **given: Any) -> Pretrained:
    """What we read of what they write."""
    theirs.save_pretrained(folder)
    return hub.load(folder, **given)


def rewrite(folder: Path, change: Callable[[str], str | None]) -> None:
    """Names the tensors of a file anew; those whose name becomes None are left out."""
    named = {change(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({name: tensor for name, tensor in named.items() if name is not None}, folder / "model.safetensors")


def add(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Adds tensors to a file, or puts others in their place."""
    save_file({**load_file(folder / "model.safetensors"), **tensors}, folder / "model.safetensors")


def padded(
    vocabulary: int, *, batch: int = 3, length: int = 9, side: str = "right", low: int = 3
) -> tuple[Tensor, Tensor]:
    """Ids and a mask (True: real) of texts of different lengths; the id of padding is not set."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(low, vocabulary, (batch, length), generator=generator)
    lengths = torch.tensor([length, length - 4, 1][:batch])
    places = torch.arange(length)
    mask = places < lengths[:, None] if side == "right" else places >= length - lengths[:, None]
    return ids, mask


def assert_close(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> None:
    """Equal as the issue has it: 1e-8 in float64, 1e-4 in float32; with `mask`, at the real tokens."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if mask is not None:
        ours, theirs = ours[mask], theirs[mask]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT[ours.dtype] * max(1.0, float(theirs.abs().max())))


def assert_round_trip(found: Pretrained, folder: Path, cls: Any, back: Path) -> None:
    """What we write is bit for bit what they wrote, and they read it."""
    hub.save(found, back)
    first, second = load_file(folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    again, report = cls.from_pretrained(back, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert type(again).__name__ == found.config["architectures"][0]
