"""The Perceiver: sharing, Fourier positions, and an input that is a set."""

from typing import Any

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.models.cost import cost
from longspan.nn.fourier import FourierPositions, grid

TINY: dict[str, Any] = {
    "latents": 5,
    "width": 12,
    "reads": 3,
    "blocks": 2,
    "heads": 2,
    "bands": 3,
    "image_size": (4, 6),
    "tasks": [{"task": "classify", "labels": 3, "dropout": 0.0}],
}


def test_the_order_of_the_elements_does_not_matter():
    model = build("perceiver", **TINY).double().eval()
    elements, positions = torch.randn(2, 24, 3, dtype=torch.float64), torch.rand(2, 24, 2, dtype=torch.float64)
    order = torch.randperm(24)
    torch.testing.assert_close(model.encode(elements[:, order], positions[:, order]), model.encode(elements, positions))


def test_padding_is_not_read():
    model = build("perceiver", **TINY).double().eval()
    elements, positions = torch.randn(2, 9, 3, dtype=torch.float64), torch.rand(2, 9, 2, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    padded = model.encode(elements, positions, key_mask=mask)
    torch.testing.assert_close(padded[1], model.encode(elements[1:, :6], positions[1:, :6])[0])


def test_the_paper_by_hand():
    """Each reading: cross-attention with a norm on both inputs, feed-forward, and the shared latent Transformer."""
    model = build("perceiver", **TINY).double().eval()
    images = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    positions = model.positions(grid((4, 6), device=images.device, dtype=images.dtype))
    source = torch.cat([images.flatten(2).mT, positions.expand(2, -1, -1)], -1)
    x = model.latents.expand(2, -1, -1)
    for index in range(3):
        reader = model.readers[min(index, 1)]
        x = x + reader.attention(reader.norm(x), reader.source_norm(source))
        x = x + reader.feedforward(reader.feedforward_norm(x))
        for block in model.towers[0]:
            x = x + block.attention(block.norm(x))
            x = x + block.feedforward(block.feedforward_norm(x))
    torch.testing.assert_close(model(images)[:, 1:], x)
    torch.testing.assert_close(model.outputs(images)["classify"], model.heads["classify"].out(x.mean(1)))


@pytest.mark.parametrize(("shared", "readers", "towers"), [(True, 2, 1), (False, 3, 3)])
def test_which_weights_are_shared(shared: bool, readers: int, towers: int):
    model = build("perceiver", **TINY, shared=shared)
    assert (len(model.readers), len(model.towers)) == (readers, towers)


def test_the_gradient_of_a_shared_block_is_the_sum_over_its_uses():
    """The unshared model with equal weights has one gradient per use."""
    torch.manual_seed(0)
    shared = build("perceiver", **TINY).double()
    apart = build("perceiver", **TINY, shared=False).double()
    apart.latents.data.copy_(shared.latents.data)
    apart.heads.load_state_dict(shared.heads.state_dict())
    for index in range(3):
        apart.readers[index].load_state_dict(shared.readers[min(index, 1)].state_dict())
        apart.towers[index].load_state_dict(shared.towers[0].state_dict())
    images = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    for model in (shared, apart):
        model.outputs(images)["classify"].square().sum().backward()
    name = "0.feedforward.inner.weight"
    total = sum(tower.get_parameter(name).grad for tower in apart.towers)
    torch.testing.assert_close(shared.towers[0].get_parameter(name).grad, total)


def test_fourier_positions():
    encode = FourierPositions((9,), 4)
    centre = encode(torch.zeros(1))
    assert centre.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0]
    torch.testing.assert_close(encode.frequencies, torch.tensor([[1.0, 1 + 3.5 / 3, 1 + 7 / 3, 4.5]]))
    assert FourierPositions((224, 224), 64).width + 3 == 261
    assert grid((3, 1), device=torch.device("cpu"), dtype=torch.float32).tolist() == [[-1, 0], [0, 0], [1, 0]]


def test_the_output_does_not_grow_with_the_input_and_the_cost_is_a_straight_line():
    model = build("perceiver", **TINY)
    flops = []
    for size in (100, 200, 300):
        elements, positions = torch.randn(1, size, 3), torch.rand(1, size, 2)
        assert model.encode(elements, positions).shape == (1, 1 + 5, 12)
        flops.append(cost(model, size).flops)
    assert flops[2] - flops[1] == flops[1] - flops[0] > 0


def test_one_axis_for_sound():
    model = build("perceiver", **{**TINY, "image_size": None, "shape": 50, "channels": 1})
    assert model(torch.randn(2, 1, 50)).shape == (2, 6, 12)


def test_wrong_options_and_input_are_refused():
    with pytest.raises(InvalidOption, match="heads must divide the width: 12 is not a multiple of 5"):
        build("perceiver", **{**TINY, "heads": 5})
    with pytest.raises(InvalidInput, match=r"expected \(batch, 3 channels, 4, 6\), got \(2, 1, 4, 6\)"):
        build("perceiver", **TINY)(torch.zeros(2, 1, 4, 6))
    with pytest.raises(InvalidInput, match="expected 2 coordinates per element"):
        build("perceiver", **TINY).encode(torch.zeros(1, 4, 3), torch.zeros(1, 4, 1))
