"""ResNet: torchvision's form, attention in place of convolutions, non-local blocks that start as identity."""

from typing import Any

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.models.cost import cost
from longspan.nn.local_attention2d import LocalAttention2d
from longspan.nn.nonlocal_block import NonLocalBlock

TINY: dict[str, Any] = {
    "blocks": (2, 2),
    "width": 8,
    "heads": 2,
    "kernel": 3,
    "spatial": ("convolution", "convolution"),
    "nonlocal_blocks": (0, 0),
    "stem": "small",
    "tasks": [{"task": "classify", "labels": 3, "dropout": 0.0}],
}


def test_the_parameters_have_torchvisions_names():
    names = {name for name in build("resnet", **TINY).state_dict() if "num_batches" not in name}
    block = {
        f"{kind}{index}.{part}"
        for kind, parts in (("conv", ["weight"]), ("bn", ["weight", "bias", "running_mean", "running_var"]))
        for index in (1, 2, 3)
        for part in parts
    }
    assert {f"layer1.1.{name}" for name in block} <= names
    assert {"conv1.weight", "bn1.running_var", "layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias"} <= names


def test_the_head_reads_the_mean_of_the_last_map():
    model = build("resnet", **TINY).double().eval()
    images = torch.randn(2, 3, 9, 12, dtype=torch.float64)
    expected = model.heads["classify"].out(model.features(images).mean((2, 3)))
    torch.testing.assert_close(model.outputs(images)["classify"], expected)


def test_a_stage_of_attention_has_no_wide_convolution():
    model = build("resnet", **{**TINY, "spatial": ("convolution", "attention")})
    kinds = [type(block.conv2) for block in model.layer2]
    assert kinds == [LocalAttention2d, LocalAttention2d] and model.layer1[0].conv2.kernel_size == (3, 3)
    assert model.features(torch.randn(1, 3, 8, 8)).shape == (1, 64, 4, 4)


@pytest.mark.parametrize(("count", "places"), [(1, [3]), (2, [2, 5])])
def test_where_non_local_blocks_are(count: int, places: list[int]):
    """One is before the last residual block; more are after every second one."""
    options = {**TINY, "blocks": (2, 4), "nonlocal_blocks": (0, count)}
    kinds = [isinstance(block, NonLocalBlock) for block in build("resnet", **options).layer2]
    assert [index for index, nonlocal_block in enumerate(kinds) if nonlocal_block] == places


def test_a_new_non_local_block_changes_nothing():
    torch.manual_seed(0)
    plain = build("resnet", **TINY).eval()
    model = build("resnet", **{**TINY, "nonlocal_blocks": (0, 1)}).eval()
    renamed = {name.replace("layer2.1", "layer2.2"): value for name, value in plain.state_dict().items()}
    missing = model.load_state_dict(renamed, strict=False)
    assert not missing.unexpected_keys and all(name.startswith("layer2.1.") for name in missing.missing_keys)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(images), plain(images))


def test_the_cost_is_that_of_a_counted_pass():
    found = cost(build("resnet", **{**TINY, "tasks": None}), 64)
    stem = 2 * 64 * 27 * 8
    first = 2 * 64 * (8 * 8 + 72 * 8 + 8 * 32 + 8 * 32) + 2 * 64 * (32 * 8 + 72 * 8 + 8 * 32)
    second = 2 * 64 * 32 * 16 + 2 * 16 * (144 * 16 + 16 * 64 + 32 * 64) + 2 * 16 * (64 * 16 + 144 * 16 + 16 * 64)
    assert found.flops == stem + first + second and found.bytes > 0
    with pytest.raises(InvalidInput, match="60 is not a square"):
        cost(build("resnet", **TINY), 60)


def test_wrong_options_and_input_are_refused():
    with pytest.raises(InvalidOption, match="spatial needs 2 values, one per stage, not 1"):
        build("resnet", **{**TINY, "spatial": ("attention",)})
    with pytest.raises(InvalidOption, match="option spatial must be one of convolution, attention, not 'conv'"):
        build("resnet", **{**TINY, "spatial": ("conv", "attention")})
    with pytest.raises(InvalidOption, match="stage 2 of 4 blocks has 0, 1 or 2 non-local blocks"):
        build("resnet", **{**TINY, "blocks": (2, 4), "nonlocal_blocks": (0, 3)})
    with pytest.raises(InvalidInput, match=r"expected images \(batch, 3 channels, height, width\), got \(1, 1, 8, 8\)"):
        build("resnet", **TINY)(torch.zeros(1, 1, 8, 8))
    with pytest.raises(InvalidInput, match="try images / 255"):
        build("resnet", **TINY)(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
