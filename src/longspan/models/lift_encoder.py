"""ETC from a BERT-like encoder: its weights go into both inputs (Ainslie et al. 2020, section 3.4)."""

from typing import Any

import torch
from torch import nn

from longspan import config
from longspan.errors import InvalidInput, Unsupported
from longspan.models.encoder import Encoder
from longspan.models.etc_model import EtcModel, PerInput
from longspan.nn.block import Block
from longspan.nn.stack import Stack

SIZES = (
    "width",
    "layers",
    "heads",
    "head_dim",
    "hidden",
    "activation",
    "norm_position",
    "norm",
    "eps",
    "bias",
    "scale",
)
DROPOUTS = ("dropout", "attention_dropout", "hidden_dropout")
LEFT_OUT = ("pair",)  # next-sentence prediction, which ETC drops


def lifted_options(encoder: Encoder) -> dict[str, Any]:
    """The options of an ETC with the sizes and heads of an encoder; the rest are ETC's defaults."""
    options = encoder.options
    if encoder.embedding.project is not None:
        raise Unsupported("the encoder's embeddings are projected to its width, and etc_model has no such projection")
    same = {name: getattr(options, name) for name in (*SIZES, *DROPOUTS, "vocabulary", "padding", "init_std")}
    tasks = [head for head in options.tasks or () if head.task not in LEFT_OUT]
    return {
        **same,
        "embedding_norm": encoder.embedding.norm is not None,
        "types": max(options.segments, EtcModel.Options().types),
        **({"tasks": config.plain(tuple(tasks))} if tasks else {}),
    }


@torch.no_grad()
def lift(encoder: Encoder, model: EtcModel) -> EtcModel:
    """`model` with the weights of a BERT-like encoder in both of its inputs.

    Absolute positions are dropped, labels keep their initial values, and types that the encoder lacks are 0.
    """
    for name in (*SIZES, "vocabulary"):
        ours, theirs = getattr(model.options, name), getattr(encoder.options, name)
        if ours != theirs:
            raise InvalidInput(f"the encoder has {name} {theirs} and etc_model {ours}; build both with the same {name}")
    normalised = encoder.embedding.norm is not None
    if model.options.embedding_norm != normalised:
        does = "normalises" if normalised else "does not normalise"
        raise InvalidInput(f"the encoder {does} its embeddings; build etc_model with embedding_norm={normalised}")
    if not isinstance(encoder.stack, Stack):
        raise Unsupported("a reversible encoder has two streams; only ordinary blocks can be lifted")
    model.embedding.weight.copy_(encoder.embedding.weight)
    nn.init.zeros_(model.types.weight)
    if encoder.embedding.segment is not None:
        model.types.weight[: len(encoder.embedding.segment)] = encoder.embedding.segment
    if encoder.embedding.norm is not None:
        model.norm.load_state_dict(encoder.embedding.norm.state_dict())
    model.stack.norm.load_state_dict(encoder.stack.norm.state_dict())  # type: ignore[union-attr]
    for block, source in zip(model.blocks(), encoder.stack.blocks):
        assert isinstance(source, Block)
        if set(source.mixer.project) != {"q", "k", "v"} or source.mixer.heads["k"] != model.options.heads:
            raise Unsupported(
                f"{source.mixer.mechanism.name} has no queries, keys and values of all heads to be lifted"
            )
        kinds = {stream.name: stream.like for stream in block.mixer.mechanism.streams if stream.kind == "heads"}
        for name, linear in (*block.mixer.project.items(), *block.mixer.extra.items()):
            linear.load_state_dict(source.mixer.project[kinds.get(name, name)].state_dict())
        _into_both(block.mixer.out, source.mixer.out)
        _into_both(block.around_mixer.norm, source.around_mixer.norm)
        for name in ("feedforward", "around_feedforward"):
            block.get_submodule(name).load_state_dict(source.get_submodule(name).state_dict())
    for task, head in model.heads.items():
        if task in encoder.heads:
            head.load_state_dict(encoder.heads[task].state_dict())
    return model


def _into_both(own: nn.Module, source: nn.Module) -> None:
    for part in (own.of_global, own.of_long) if isinstance(own, PerInput) else (own,):
        part.load_state_dict(source.state_dict())


def untrained(encoder: Encoder, model: EtcModel) -> list[str]:
    """The parameters of a lifted model that hold nothing of the encoder."""
    labels = [name for name, _ in model.named_parameters() if ".mechanism.labels." in name]
    known = encoder.options.segments
    types = [f"types.weight[{known}:]"] if known < model.options.types else []
    heads = [
        name
        for name, _ in model.named_parameters()
        if name.startswith("heads.") and name.split(".")[1] not in encoder.heads
    ]
    return [*types, *labels, *heads]


def left_out(encoder: Encoder, model: EtcModel) -> list[str]:
    """The parameters of an encoder that a lifted model has no use for."""
    positions = [name for name, _ in encoder.named_parameters() if name.startswith("embedding.position.")]
    heads = [
        name
        for name, _ in encoder.named_parameters()
        if name.startswith("heads.") and name.split(".")[1] not in model.heads
    ]
    return [*positions, *heads]


__all__ = ["left_out", "lift", "lifted_options", "untrained"]
