"""Heads that are switched off: equal to zero columns of W_O, in every kind of model."""

from typing import Any

import pytest
import torch
from tests.models.every import of_kind, of_mechanism
from torch import Tensor, nn

import longspan
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.inspect.head_masks import attention_groups, find_group
from longspan.models.base import CausalModel

IDS = (torch.arange(2 * 21).view(2, 21) * 7) % 11


def zeroed(linear: nn.Module, columns: slice) -> None:
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        linear.weight[:, columns] = 0


@pytest.mark.parametrize("mechanism", ["softmax", "window", "linear", "reformer", "linformer"])
def test_a_masked_head_is_a_zero_slice_of_the_output_matrix(mechanism: str):
    model = of_mechanism(mechanism).double().eval()
    with torch.no_grad(), longspan.inspect.masked_heads(model, {1: [0]}):
        masked = model(IDS)
    plain = model(IDS)
    zeroed(find_group(model).layers[1].out, slice(0, 8))
    assert torch.equal(masked, model(IDS)) and not torch.equal(masked, plain)


def test_all_heads_of_a_layer_leave_the_residual_path():
    model = of_kind("encoder", norm_position="pre").double().eval()
    block = model.stack.blocks[0]
    seen: list[tuple[Tensor, Tensor]] = []
    hook = block.mixer.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    with torch.no_grad(), longspan.inspect.masked_heads(model, {0: [0, 1]}):
        model(IDS)
    hook.remove()
    assert torch.equal(seen[0][1], block.mixer.out.bias.expand_as(seen[0][1]))


def test_the_sides_of_an_encoder_decoder():
    model = of_kind("transformer").double().eval()
    assert [group.name for group in attention_groups(model)] == ["encoder", "decoder", "cross"]
    plain = model(IDS, IDS).detach()
    outputs = []
    for side, kind in (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")):
        with torch.no_grad(), longspan.inspect.masked_heads(model, {0: [1]}, side=side, kind=kind):
            outputs.append(model(IDS, IDS))
    assert len({float(out.sum()) for out in (*outputs, plain)}) == 4
    assert torch.equal(model(IDS, IDS), plain)  # nothing stays behind
    with pytest.raises(InvalidOption, match="side='encoder' kind='self'"), longspan.inspect.masked_heads(model, {}):
        pass


def test_a_shared_layer_is_masked_in_one_of_its_uses_only():
    model = of_kind("encoder", groups=1, layers=3).double().eval()
    outputs = []
    for layer in range(3):
        with torch.no_grad(), longspan.inspect.masked_heads(model, {layer: [0]}):
            outputs.append(model(IDS))
            assert torch.equal(outputs[-1], model(IDS))  # the next pass counts from 0 again
    assert len({float(out[0, 0, 0]) for out in outputs}) == 3


def test_masks_hold_while_decoding():
    model = of_kind("decoder").double().eval()
    assert isinstance(model, CausalModel)
    with torch.no_grad(), longspan.inspect.masked_heads(model, {1: [1]}):
        whole = model(IDS)
        state: Any = model.start(2)
        steps = []
        for column in IDS.split(1, 1):
            logits, state = model.extend(column, state)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_what_is_refused():
    model = of_kind("decoder")
    with (
        pytest.raises(InvalidInput, match="the decoder has layers 0 to 1, not 2"),
        longspan.inspect.masked_heads(model, {2: [0]}),
    ):
        pass
    with (
        pytest.raises(InvalidInput, match="layer 0 has heads 0 to 1, not 5"),
        longspan.inspect.masked_heads(model, {0: [5]}),
    ):
        pass
    with (
        pytest.raises(Unsupported, match="recurrent has no attention heads"),
        longspan.inspect.masked_heads(of_kind("recurrent"), {0: [0]}),
    ):
        pass
