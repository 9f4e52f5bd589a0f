"""Layers that share their weights, and tables narrower than the states (Lan et al. 2020)."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longspan.models import build, load
from longspan.models.cost import cost
from longspan.models.encoder import Encoder

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
SMALL = {
    "vocabulary": 11,
    "width": 16,
    "heads": 2,
    "hidden": 24,
    "layers": 6,
    "dropout": 0.0,
    "position": "learned",
    "max_length": 8,
    "embedding_norm": True,
    "scale": False,
    "segments": 2,
}


def encoder(**options: object) -> Encoder:
    found = build("encoder", **{**SMALL, **options}).double()
    assert isinstance(found, Encoder)
    return found


def unrolled(shared: Encoder) -> Encoder:
    """A model with blocks of its own for every layer, of the same weights."""
    groups = shared.options.groups
    copied = encoder(embedding_width=shared.options.embedding_width)
    for layer, block in enumerate(copied.stack.blocks):
        block.load_state_dict(shared.stack.blocks[layer * groups // 6].state_dict())
    copied.embedding.load_state_dict(shared.embedding.state_dict())
    return copied


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_an_unrolled_copy_gives_the_same_and_its_gradients_add_up(groups: int) -> None:
    shared = encoder(groups=groups, embedding_width=8)
    copied = unrolled(shared)
    assert torch.equal(shared(IDS), copied(IDS))
    for model in (shared, copied):
        model(IDS).square().mean().backward()
    for group, block in enumerate(shared.stack.blocks):
        turns = [layer for layer in range(6) if layer * groups // 6 == group]
        for name, parameter in block.named_parameters():
            parts = [copied.stack.blocks[layer].get_parameter(name).grad for layer in turns]
            torch.testing.assert_close(parameter.grad, torch.stack(parts).sum(0), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(shared.embedding.weight.grad, copied.embedding.weight.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("share", ["all", "attention", "feedforward"])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_what_each_kind_of_sharing_keeps(share: str, groups: int) -> None:
    attention, change, norms = 4 * (16 * 16 + 16), 16 * 24 + 24 + 24 * 16 + 16, 4 * 16
    each = {
        "all": groups * (attention + change + norms),
        "attention": groups * attention + 6 * (change + norms),
        "feedforward": groups * change + 6 * (attention + norms),
    }
    stack = encoder(groups=groups, share=share).stack
    assert sum(parameter.numel() for parameter in stack.parameters()) == each[share]


@pytest.mark.parametrize("share", ["all", "attention", "feedforward"])
def test_copies_and_files_store_a_group_once(tmp_path: Path, share: str) -> None:
    model = encoder(groups=2, share=share).eval()
    out, size = model(IDS), sum(parameter.numel() for parameter in model.parameters())
    copied = copy.deepcopy(model)
    assert torch.equal(copied(IDS), out) and sum(each.numel() for each in copied.parameters()) == size
    with torch.no_grad():
        for parameter in copied.parameters():  # what is shared stays shared, and apart from the first model
            parameter.mul_(2)
    assert torch.equal(model(IDS), out) and not torch.equal(copied(IDS), out)
    model.save(tmp_path)
    assert sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values()) == size
    again = load(tmp_path)
    assert torch.equal(again(IDS), out) and sum(each.numel() for each in again.parameters()) == size


def test_sharing_saves_no_work() -> None:
    shared, own = cost(encoder(groups=1), 8), cost(encoder(), 8)
    assert (shared.flops, shared.bytes) == (own.flops, own.bytes)


def test_as_many_groups_as_layers_and_an_identity_are_bert() -> None:
    bert = encoder()
    albert = encoder(groups=6, embedding_width=16, embedding_projection=True)
    weights = {
        **bert.state_dict(),
        "embedding.project.weight": torch.eye(16),
        "embedding.project.bias": torch.zeros(16),
    }
    albert.load_state_dict(weights)
    segments = IDS % 2
    torch.testing.assert_close(albert(IDS, segments=segments), bert(IDS, segments=segments), rtol=0, atol=1e-12)


def test_a_table_as_wide_as_the_states_is_projected_only_on_request() -> None:
    assert encoder(embedding_width=16).embedding.project is None
    project = encoder(embedding_projection=True).embedding.project
    assert project is not None and project.weight.shape == (16, 16)
