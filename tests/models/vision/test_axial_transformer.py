"""The Axial Transformer: what each pixel depends on, exact likelihoods, and semi-parallel sampling."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from longspan.audit.counting import count_flops
from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.models.cost import blank, cost, count
from longspan.models.pixel_base import ImageSampling
from longspan.models.vision.axial_transformer import AxialTransformer
from longspan.nn.axial_blocks import AxialBlocks
from longspan.nn.block import Block
from longspan.nn.multihead import MultiHead
from longspan.nn.residual import Residual

TINY: dict[str, Any] = {
    "image_size": (3, 4),
    "channels": 1,
    "levels": 8,
    "width": 16,
    "heads": 2,
    "exterior_layers": 2,
    "outer_layers": 2,
    "inner_layers": 1,
    "dropout": 0.0,
    "output_scale": 1.0,
}


def model_of(**options: Any) -> AxialTransformer:
    torch.manual_seed(0)
    model = build("axial_transformer", **{**TINY, **options}).double().eval()
    assert isinstance(model, AxialTransformer)
    return model


def images(model: AxialTransformer, count: int = 2) -> Tensor:
    shape = (count, *model.size, model.channels)
    return torch.randint(0, model.levels, shape, generator=torch.Generator().manual_seed(1))


def order(model: AxialTransformer) -> list[tuple[int, int, int]]:
    """Row, column and channel of each value, in the order of generation."""
    height, width = model.size
    return [
        (row, column, c) for c, row, column in itertools.product(range(model.channels), range(height), range(width))
    ]


@pytest.mark.parametrize("channels", [1, 2])
def test_a_logit_depends_on_exactly_the_values_before_it(channels: int) -> None:
    """Each value of one channel by itself, then the next channel: both directions, for every pair."""
    model = model_of(channels=channels)
    x = images(model, 1)
    before, places = model(x), order(model)
    for index, place in enumerate(places):
        changed = x.clone()
        changed[(0, *place)] = (changed[(0, *place)] + 3) % 8
        gap = (model(changed) - before)[0].abs().amax(-1)
        depends = [bool(gap[other] > 1e-9) for other in places]
        assert depends == [later > index for later in range(len(places))]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes", [0, 3])
def test_semi_parallel_sampling_is_the_slow_one(channels: int, classes: int) -> None:
    model = model_of(channels=channels, classes=classes, outer_layers=4, inner_layers=2)
    labels = torch.tensor([0, 2]) if classes else None
    for temperature, rows in ((1.0, 0), (0.7, 2), (0.0, 1), (1.0, 3)):
        fast, slow = (
            sample(
                ImageSampling(
                    2,
                    labels=labels,
                    known=images(model, 1),
                    rows=rows,
                    temperature=temperature,
                    generator=torch.Generator().manual_seed(4),
                )
            )
            for sample in (model.sample, model.sample_slow)
        )
        assert torch.equal(fast, slow)
        assert torch.equal(fast[:, :rows], images(model, 1)[:, :rows].expand(2, -1, -1, -1))


def test_images_that_are_wider_than_high_and_other_mechanisms_are_sampled_alike() -> None:
    for size, attention in (((5, 2), "softmax"), ((2, 5), ["linear", "softmax"])):
        model = model_of(image_size=size, attention=attention)
        fast, slow = (
            sample(ImageSampling(3, generator=torch.Generator().manual_seed(4)))
            for sample in (model.sample, model.sample_slow)
        )
        assert torch.equal(fast, slow)


def dense(block: Block, x: Tensor, keep: Tensor) -> Tensor:
    """A block without feed-forward layer by attention over all pixels, with a mask."""
    mixer = block.mixer
    y = block.around_mixer.norm(x)
    q, k, v = (mixer.project[name](y).unflatten(-1, (2, -1)).transpose(1, 2) for name in "qkv")
    heads = scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return x + mixer.out(heads.transpose(1, 2).flatten(2))


def test_a_layer_is_attention_over_all_pixels_with_the_mask_of_its_axis() -> None:
    torch.manual_seed(0)
    height, width = 3, 5
    row, column = (
        Block(MultiHead(8, heads=2, causal=causal), None, residual=lambda: Residual(8)).double()
        for causal in (False, True)
    )
    same_row, above = (torch.zeros(15, 15, dtype=torch.bool) for _ in range(2))
    for i, j in itertools.product(range(15), repeat=2):
        same_row[i, j] = i // width == j // width
        above[i, j] = i % width == j % width and j // width <= i // width
    x = torch.randn(2, height, width, 8, dtype=torch.float64)
    expected = dense(column, dense(row, x.flatten(1, 2), same_row), above).view_as(x)
    blocks = AxialBlocks([row], [column])
    torch.testing.assert_close(blocks(x), expected, rtol=0, atol=1e-12)
    state, pieces = blocks.start(2, width, dtype=x.dtype, device=x.device), []
    for piece in x.split([1, 2], 1):
        out, state = blocks.extend(piece, state)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=0, atol=1e-12)


def test_a_channel_does_not_read_the_channels_after_it() -> None:
    model = model_of(channels=3)
    x = images(model)
    before = model(x)
    for channel in range(3):
        changed = x.clone()
        changed[..., channel] = (changed[..., channel] + 1) % 8
        after = model(changed)
        torch.testing.assert_close(after[..., :channel, :], before[..., :channel, :], rtol=0, atol=1e-12)
        for later in range(channel + 1, 3):
            assert not torch.isclose(after[..., later, :], before[..., later, :]).all(-1).any()


def test_the_likelihood_sums_to_one_over_all_images() -> None:
    model = model_of(image_size=(2, 1), channels=2, levels=3)
    every = torch.tensor(list(itertools.product(range(3), repeat=4))).view(-1, 2, 1, 2)
    assert (-model.nats(every)).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_nats_are_those_of_the_logits_and_training_draws_one_channel_of_each_image() -> None:
    model = model_of(channels=3)
    x = images(model, 8)
    values = model(x).log_softmax(-1).gather(-1, x[..., None])[..., 0]
    by_channel = -values.sum((1, 2))
    torch.testing.assert_close(model.nats(x), by_channel.sum(-1))
    torch.manual_seed(3)
    drawn = torch.stack([model.training_nats(x) for _ in range(4)])
    chosen = torch.isclose(drawn[..., None], 3 * by_channel)  # draws images channels
    assert (chosen.sum(-1) == 1).all() and chosen.any(0).any(0).all()  # every channel at some time
    grey = model_of()
    torch.testing.assert_close(grey.training_nats(images(grey)), grey.nats(images(grey)))


def test_a_new_model_knows_nothing_and_learns() -> None:
    torch.manual_seed(0)
    model = build("axial_transformer", **{**TINY, "output_scale": 1e-10, "channels": 3})
    assert isinstance(model, AxialTransformer)
    x = images(model)
    torch.testing.assert_close(model.nats(x), torch.full((2,), 36 * math.log(8)), rtol=1e-4, atol=0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.training_nats(x).mean().backward()
        optimizer.step()
    assert model.nats(x).max() < 0.5 * 36 * math.log(8)


@pytest.mark.parametrize(("name", "width", "side"), [("axial-imagenet-32", 1536, 32), ("axial-imagenet-64", 2048, 64)])
def test_the_parameters_of_the_released_models(name: str, width: int, side: int) -> None:
    block = 6 * (width**2 + width) + 4 * width  # q, k, v, out, two layers of the feed-forward layer, two norms
    tables = (256 + 2 * 2 * side) * width  # values, and the rows and columns of the exterior and of the decoders
    around = 9 * 6 * width + width + 2 * width + 256 * width + 256  # convolution, last norm, logits
    with blank():
        assert sum(count(build(name)).values()) == 24 * block + tables + around


def test_the_cost_is_counted_and_attention_grows_by_the_power_of_one_and_a_half() -> None:
    sizes = {**TINY, "hidden": 24, "channels": 3}
    model = build("axial_transformer", **sizes)
    assert cost(model, 12).flops == count_flops(lambda: model(images(model, 1)))
    attention = [
        cost(build("axial_transformer", **{**sizes, "image_size": side}), side**2).parts["attention"].flops
        for side in (16, 32)
    ]
    # Unmasked layers grow by 4^1.5; masked ones a little less, since half a diagonal is left out.
    assert math.log(attention[1] / attention[0], 4) == pytest.approx(1.5, abs=0.03)
    with pytest.raises(InvalidInput, match="3 × 4 = 12 for this model, not 13"):
        cost(model, 13)


def test_no_tensor_has_all_pairs_of_pixels() -> None:
    """At 32 × 32 pixels and width 8, the largest tensor of a step is far below N²."""
    model = build("axial_transformer", **{**TINY, "image_size": 32, "width": 8, "heads": 1})
    largest = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    assert isinstance(model, AxialTransformer)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.nats(images(model, 1)).sum().backward()
    assert largest < 1024**2 / 8


def test_progress_counts_every_value() -> None:
    model, seen = model_of(channels=3), []
    model.sample(ImageSampling(2, known=images(model, 1), rows=1, progress=seen.append))
    assert sum(seen) == 2 * model.tokens == 2 * 36


def test_wrong_options_and_input_are_refused() -> None:
    with pytest.raises(InvalidOption, match="outer_layers alternate rows and columns: give an even number, not 3"):
        model_of(outer_layers=3)
    with pytest.raises(InvalidOption, match="that along rows and that along columns, or one for both, not 3"):
        model_of(attention=["softmax"] * 3)
    with pytest.raises(InvalidInput, match=r"expected images \(batch, 3, 4, 1\), got \(1, 4, 3, 1\)"):
        model_of()(torch.zeros(1, 4, 3, 1, dtype=torch.long))
    with pytest.raises(InvalidInput, match="this model needs a label from 0 to 2 for each image: 2, got"):
        model_of(classes=3)(images(model_of()), torch.tensor([1]))
    with pytest.raises(InvalidInput, match="from 0 to 2 for each image, got 0 to 3"):
        model_of(classes=3)(images(model_of()), torch.tensor([0, 3]))
    with pytest.raises(InvalidInput, match="this model enlarges no images; leave out source"):
        model_of().sample(ImageSampling(1, source=images(model_of(), 1)))
    with pytest.raises(InvalidInput, match="expected 1 image to complete, or 3, got 2"):
        model_of().sample(ImageSampling(3, known=images(model_of()), rows=1))
    with pytest.raises(InvalidOption, match="the temperature must be 0 or more, not -1"):
        ImageSampling(1, temperature=-1)
    with pytest.raises(InvalidOption, match="expected at least 1 image to generate, not 0"):
        ImageSampling(0)
