"""The Vision Transformer: patches, positions that stretch, any mechanism, and what is refused."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from longspan.audit.counting import count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build, load
from longspan.models.cost import cost
from longspan.models.vision.vit import fuse
from longspan.nn.patches import PatchEmbedding

TINY = {"width": 16, "layers": 2, "heads": 2, "hidden": 24, "image_size": (8, 12), "patch_size": 4, "dropout": 0.0}


def images(height: int = 8, width: int = 12, channels: int = 3, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, channels, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("patch", [(4, 4), (2, 3), (3, 5)])
def test_patches_are_a_convolution_with_the_patch_as_its_stride(patch: tuple[int, int]) -> None:
    layer = PatchEmbedding((8, 12), patch, 3, 16, class_token=False, positions=False).double()
    weight = layer.linear.weight.unflatten(1, (3, *patch))
    expected = nn.functional.conv2d(images(), weight, layer.linear.bias, stride=patch)
    torch.testing.assert_close(layer(images()), expected.flatten(2).mT, rtol=0, atol=1e-12)


def test_the_class_token_is_first_and_has_a_position() -> None:
    model = build("vit", **TINY).double().eval()
    nn.init.normal_(model.embedding.token)
    x = model.embedding(images())
    assert x.shape == (2, 7, 16) and model.embedding.tokens == 7
    torch.testing.assert_close(x[:, 0], (model.embedding.token + model.embedding.position.weight[0]).expand(2, -1))
    assert model(images()).shape == (2, 7, 16)


def test_without_positions_the_order_of_patches_does_not_matter() -> None:
    model = build("vit", **TINY, position="none", tasks=["classify"]).double().eval()
    whole = images()
    turned = torch.cat([whole[..., 4:8, :], whole[..., :4, :]], 2)
    torch.testing.assert_close(model.outputs(whole)["classify"], model.outputs(turned)["classify"])
    assert model(images(16, 8)).shape == (2, 9, 16)  # and images are of any size


def test_positions_are_interpolated_for_other_images() -> None:
    layer = PatchEmbedding((8, 12), (4, 4), 3, 16)
    table = layer.position.weight
    assert layer.positions((2, 3)) is table
    grid = table[1:].T.reshape(1, 16, 2, 3)
    same = nn.functional.interpolate(grid, size=(2, 3), mode="bicubic", align_corners=False)
    torch.testing.assert_close(same, grid)  # so that leaving out the step changes nothing
    wide = layer.positions((4, 3))
    assert wide.shape == (13, 16) and torch.equal(wide[0], table[0])
    expected = nn.functional.interpolate(grid, size=(4, 3), mode="bicubic", align_corners=False)
    torch.testing.assert_close(wide[1:], expected.flatten(2)[0].T)
    with pytest.raises(InvalidInput, match=r"expected images of 8 × 12 pixels, got 16 × 12; resize them, or give"):
        layer(images(16, 12).float())


def test_pixels_past_the_last_whole_patch_are_not_read() -> None:
    layer = PatchEmbedding((8, 12), (4, 4), 3, 16).double()
    more = images(11, 15)
    out = layer(more, interpolate=True)
    more[..., 8:, :] = float("nan")
    more[..., 12:] = float("nan")
    assert torch.equal(layer(more, interpolate=True), out)
    assert torch.equal(out, layer(more[..., :8, :12]))


@pytest.mark.parametrize(
    "attention",
    ["window", "performer", {"name": "linformer", "rank": 7}, {"name": "axial", "width": 3}, ["softmax", "nystrom"]],
    ids=str,
)
def test_any_mechanism_reads_the_patches(attention: object) -> None:
    model = build("vit", **TINY, attention=attention, tasks=["classify"]).double()
    loss = model.outputs(images())["classify"].square().sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_declared_cost_equals_the_counted_one() -> None:
    model = build("vit", **TINY)
    run = lambda: model(images().float()[:1])  # noqa: E731
    kept = count_kept(run, [*model.parameters(), *model.buffers()]) + run().numel()
    assert (cost(model, 7).flops, cost(model, 7).bytes // 4) == (count_flops(run), kept)


def test_the_body_of_the_base_model_without_head_and_with_pooler(preset) -> None:
    whole = sum(parameter.numel() for parameter in preset("vit-base-16").parameters())
    body = whole - (768 + 1) * 1000
    assert (whole, body) == (86_567_656, 85_798_656)
    assert body + 768**2 + 768 == 86_389_248  # as Hugging Face's ViTModel


def test_folder(tmp_path: Path) -> None:
    options = {**TINY, "tasks": [{"task": "classify", "labels": 5}, {"task": "pool", "activation": "tanh", "inner": 6}]}
    model = build("vit", **options, channels=1, attention=[{"name": "window", "window": 2}]).double().eval()
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.options == model.options
    for task, out in model.outputs(images(channels=1)).items():
        assert torch.equal(again.outputs(images(channels=1))[task], out)
    assert model.outputs(images(channels=1))["pool"].shape == (2, 6)


def test_refusals() -> None:
    model = build("vit", **TINY)
    with pytest.raises(InvalidInput, match=r"\(batch, 3 channels, height, width\), got \(2, 1, 8, 12\)"):
        model(images(channels=1).float())
    with pytest.raises(InvalidInput, match=r"got \(3, 8, 12\)"):
        model(images().float()[0])
    with pytest.raises(InvalidInput, match=r"floating-point type, got torch.uint8; try images / 255"):
        model(torch.zeros(1, 3, 8, 12, dtype=torch.uint8))
    with pytest.raises(InvalidInput, match="at least one patch of 4 × 4, got 3 × 12"):
        model(images(3, 12).float(), interpolate=True)
    with pytest.raises(InvalidOption, match="an image of 8 × 12 has no whole patch of 16 × 4"):
        build("vit", **{**TINY, "patch_size": (16, 4)})
    with pytest.raises(InvalidOption, match="image_size must be a number, or height and width"):
        build("vit", **{**TINY, "image_size": (8, 8, 8)})
    with pytest.raises(InvalidOption, match="reads the class token"):
        build("vit", **TINY, class_token=False, tasks=["classify"])
    with pytest.raises(InvalidOption, match="the head 'masked' needs a model with a vocabulary"):
        build("vit", **TINY, tasks=["masked"])
    with pytest.raises(InvalidOption, match="inner needs an activation; give one, or leave out inner"):
        build("vit", **TINY, tasks=[{"task": "classify", "inner": 4}])
    found = build("vit", **TINY, class_token=False, tasks=[{"task": "classify", "pool": "mean"}])
    assert found.outputs(images().float())["classify"].shape == (2, 2)


def test_it_learns_where_a_bright_patch_is() -> None:
    model = build("vit", **TINY, channels=1, tasks=[{"task": "classify", "labels": 6, "dropout": 0.0}])
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    places = torch.arange(48) % 6
    given = 0.1 * torch.randn(48, 1, 8, 12)
    for image, place in zip(given, places.tolist()):
        image[0, place // 3 * 4 :][:4, place % 3 * 4 :][:, :4] += 1
    for _ in range(60):
        loss = nn.functional.cross_entropy(model.outputs(given)["classify"], places)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert torch.equal(model.outputs(given)["classify"].argmax(-1), places)


def test_a_head_of_zeros_gives_every_label_one_probability() -> None:
    model = build("vit", **{**TINY, "tasks": [{"task": "classify", "labels": 5}]}).eval()
    for weight in model.heads["classify"].out.parameters():
        torch.nn.init.zeros_(weight)
    logits = model.outputs(torch.randn(2, model.options.channels, *model.embedding.image))["classify"]
    torch.testing.assert_close(logits.softmax(-1), torch.full((2, 5), 0.2))


DISTILLED = {**TINY, "distillation": True, "tasks": [{"task": "classify", "labels": 5, "dropout": 0.0}]}


def test_the_distillation_token_has_its_position_and_its_head():
    model = build("vit", **DISTILLED).double().eval()
    given = torch.randn(2, model.options.channels, *model.embedding.image, dtype=torch.float64)
    states = model(given)
    assert states.shape[1] == model.embedding.tokens == 2 + math.prod(model.embedding.grid)
    label, teacher = model.student_logits(given, "classify")
    torch.testing.assert_close(label, model.heads["classify"].out(states[:, 0]))
    torch.testing.assert_close(teacher, model.teacher_head(states[:, 1]))


def test_predictions_join_the_probabilities_of_both_heads():
    """The paper adds the two softmaxes; the released code averages the logits. Here they choose different labels."""
    label, teacher = torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([[0.0, -9.0, 0.5]])
    summed = fuse(label, teacher, "softmax").exp()
    torch.testing.assert_close(summed, (label.softmax(-1) + teacher.softmax(-1)) / 2)
    assert summed.argmax() == 1 and fuse(label, teacher, "logits").argmax() == 2


def test_interpolation_keeps_the_positions_of_both_tokens():
    model = build("vit", **DISTILLED)
    rows, columns = model.embedding.grid
    table = model.embedding.positions((rows + 1, columns + 2))
    assert torch.equal(table[:2], model.embedding.position.weight[:2])
    assert len(table) == 2 + (rows + 1) * (columns + 2)
    with pytest.raises(InvalidOption, match="the distillation token follows the class token"):
        build("vit", **{**DISTILLED, "class_token": False, "tasks": None})
