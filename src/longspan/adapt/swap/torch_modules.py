"""Swap the attention inside any torch module: `nn.MultiheadAttention` becomes `longspan.MultiheadAttention`."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from longspan.adapt.swap.apply import SEED
from longspan.adapt.swap.plan import LayerRange
from longspan.adapt.swap.start import NEEDS_FORCE, LayerStart, expected, start_mechanism
from longspan.attention.config import AttentionConfig
from longspan.attention.registry import find, names
from longspan.errors import InvalidInput, LongspanError, Unsupported
from longspan.nn.multihead_attention import MultiheadAttention

DENSE = AttentionConfig("softmax")


def swap_module(
    module: nn.Module, ranges: Sequence[LayerRange], *, causal: bool | None, length: int | None, force: bool
) -> tuple[nn.Module, list[LayerStart]]:
    """A copy of a module with another attention in its layers, which are numbered in the order of `named_modules`.

    Attention from one sequence to another (`multihead_attn` of `nn.TransformerDecoderLayer`) stays as it is. `causal`
    is that of the masks at each call; None: causal in `nn.TransformerDecoderLayer` alone.
    """
    paths = attention_paths(module)
    if not paths:
        raise Unsupported(
            f"{type(module).__name__} has no nn.MultiheadAttention that reads its own sequence; "
            "swap takes our models, checkpoints, and torch modules with such layers"
        )
    chosen: dict[int, AttentionConfig] = {}
    for part in ranges:
        last = len(paths) - 1 if part.last is None else part.last
        if max(part.first, last) >= len(paths):
            raise InvalidInput(f"there is no layer {max(part.first, last)}: the module has 0 to {len(paths) - 1}")
        chosen |= dict.fromkeys(range(part.first, last + 1), part.attention)
    swapped, starts = copy.deepcopy(module), []
    for layer, path in enumerate(paths):
        setting = chosen.get(layer, DENSE)
        report = LayerStart(layer, DENSE.plain(), setting.plain(), expected(setting.name))
        starts.append(report)
        if setting == DENSE:
            continue  # torch's own, to the bit
        parent, _, leaf = path.rpartition(".")
        owner = swapped.get_submodule(parent)
        old = swapped.get_submodule(path)
        assert isinstance(old, nn.MultiheadAttention)
        direction = isinstance(owner, nn.TransformerDecoderLayer) if causal is None else causal
        new = _replace(old, setting, path, direction, length, force, report)
        if owner is old:
            return new, starts
        setattr(owner, leaf, new)
    for inside in swapped.modules():
        if isinstance(inside, nn.TransformerEncoder):
            inside.use_nested_tensor = False  # torch's fused path for padded batches knows its own attention only
    return swapped, starts


def attention_paths(module: nn.Module) -> list[str]:
    """Where a module has attention to its own sequence."""
    return [
        path
        for path, inside in module.named_modules()
        if isinstance(inside, nn.MultiheadAttention)
        and not (
            path.endswith("multihead_attn")
            and isinstance(module.get_submodule(path.rpartition(".")[0]), nn.TransformerDecoderLayer)
        )
    ]


def _replace(
    old: nn.MultiheadAttention,
    setting: AttentionConfig,
    path: str,
    causal: bool,
    length: int | None,
    force: bool,
    report: LayerStart,
) -> MultiheadAttention:
    where = f"layer {report.layer} ({path})" if path else "the layer"
    if setting.name in NEEDS_FORCE and not force:
        raise Unsupported(f"{where}: {setting.name} {NEEDS_FORCE[setting.name]}; force it, or choose another attention")
    if causal and not find(setting.name).supports.causal:
        able = [name for name in names() if find(name).supports.causal and name not in NEEDS_FORCE]
        raise Unsupported(f"{where}: {setting.name} has no causal form; these can: {', '.join(able)}")
    weight = old.out_proj.weight
    sizes: dict[str, Any] = {"kdim": old.kdim, "vdim": old.vdim, "bias": old.in_proj_bias is not None}
    dropout = old.dropout if find(setting.name).supports.dropout else 0.0
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(SEED + report.layer)
            new = MultiheadAttention(
                old.embed_dim,
                old.num_heads,
                dropout,
                add_bias_kv=old.bias_k is not None,
                add_zero_attn=old.add_zero_attn,
                batch_first=old.batch_first,
                device=weight.device,
                dtype=weight.dtype,
                attention=setting.name,
                causal=causal,
                max_length=length,
                **sizes,
                **setting.options,
            )
    except LongspanError as error:
        raise type(error)(f"{where}: {error}") from None
    new.load_state_dict(old.state_dict(), strict=False)
    for name, how in start_mechanism(new.mechanism).items():
        report.started[f"mechanism.{name}"] = how
        report.untrained.append(f"mechanism.{name}")
    return new.train(old.training)


__all__ = ["attention_paths", "swap_module"]
