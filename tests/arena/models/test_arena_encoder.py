"""The shell against what is published of it, and against what it must not depend on."""

from typing import Any

import pytest
import torch

from longspan.arena import settings
from longspan.arena.models import registry as arena_models
from longspan.arena.models.arena_encoder import ArenaEncoder, recurrent_width
from longspan.arena.models.state_size import state_bytes
from longspan.errors import InvalidInput, InvalidOption

SIZES = settings.shell(2, 2, 16, 16, 24, dropout=0.0, attention_dropout=0.0)
NEEDS = {"length": 12, "vocabulary": 9, "classes": 3}


def small(name: str = "dense", needs: Any = None, **sizes: Any) -> ArenaEncoder:
    torch.manual_seed(0)
    return arena_models.build(name, {**SIZES, **sizes}, **{**NEEDS, **(needs or {})}).eval()


def tokens(batch: int = 4, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 9, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("task", "needs", "count", "printed"),
    [
        ("listops", {"length": 2000, "vocabulary": 17, "classes": 10}, 8_948_746, "8.95"),
        ("text", {"length": 1000, "vocabulary": 257, "classes": 2}, 3_486_722, "3.49"),
        ("image", {"length": 1024, "vocabulary": 256, "classes": 10}, 248_458, "0.25"),
        ("pathfinder", {"length": 1024, "vocabulary": 256, "classes": 2}, 26_530, "0.027"),
        ("pathx", {"length": 16384, "vocabulary": 256, "classes": 2}, 537_954, "0.54"),
    ],
)
def test_the_base_has_the_parameters_of_the_released_one(task: str, needs: Any, count: int, printed: str):
    model = arena_models.build("dense", settings.find("released", task).shell, **needs)
    assert arena_models.parameters(model) == count
    assert f"{count / 1e6:.{len(printed.partition('.')[2])}f}" == printed


def test_the_position_in_front_is_one_more_and_starts_at_zero():
    model, ids = small(), tokens()
    states, mask = model.states(ids)
    assert states.shape == (4, 13, 16) and mask is None
    assert not model.embedding(torch.full((1, 1), model.cls_id)).any()
    _, mask = model.states(ids, torch.zeros_like(ids, dtype=torch.bool))
    assert mask is not None and mask[:, 0].all() and not mask[:, 1:].any()
    for pool in ("mean", "max", "first"):
        assert small(pool=pool).states(ids)[0].shape == (4, 12, 16)
    assert arena_models.parameters(model) - arena_models.parameters(small(pool="mean")) == 16


@pytest.mark.parametrize("pool", ["cls", "mean", "max", "first"])
@pytest.mark.parametrize("name", arena_models.names())
def test_padding_changes_nothing(name: str, pool: str):
    model, ids = small(name, pool=pool), tokens(length=7)
    padded = torch.nn.functional.pad(ids, (0, 5))
    mask = torch.arange(12).expand(4, 12) < 7
    other = padded.masked_fill(~mask, 5)
    alone = model(ids, key_mask=mask[:, :7])
    torch.testing.assert_close(model(padded, key_mask=mask), alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(other, key_mask=mask), alone, atol=1e-5, rtol=1e-5)


def test_two_texts_are_read_by_one_encoder_and_compared():
    model, one, other = small(needs={"texts": 2, "classes": 2}), tokens(seed=1), tokens(seed=2)
    first, second = model.vector(one), model.vector(other)
    read, swapped = model.compared(first, second), model.compared(second, first)
    assert read.shape == (4, 4 * 16) == (4, model.head[0].in_features)
    assert [layer.out_features for layer in model.head] == [24, 12, 2]
    a, b, product, difference = read.split(16, -1)
    assert torch.equal(swapped, torch.cat([b, a, product, -difference], -1))
    assert model(one, other_ids=other).shape == (4, 2)
    assert small(needs={"texts": 2}, interaction=False).head[0].in_features == 2 * 16
    with pytest.raises(InvalidInput, match="other_ids"):
        model(one)
    with pytest.raises(InvalidInput, match="other_ids"):
        small()(one, other_ids=other)


def test_zero_is_padding_only_with_zero_is_pad():
    ids = tokens()
    ids[:, 5] = 0
    changed = ids.clone()
    ours, released = small(pool="mean"), small(pool="mean", zero_is_pad=True)
    assert ours.states(ids)[1] is None
    mask = released.states(ids)[1]
    assert mask is not None and torch.equal(mask, ids > 0)
    changed[:, 5] = 3
    assert not torch.allclose(ours(ids), ours(changed))
    ids[:, 0] = 0
    mask = small(zero_is_pad=True).states(ids)[1]
    assert mask is not None and not mask[:, :2].any()  # the position in front goes with the first token


def test_causal_mechanisms_read_both_ways():
    for name in ("sparse", "retention", "gated_linear"):
        model, ids = small(name), tokens()
        other = ids.clone()
        other[:, -1] = ids[:, -1] % 8 + 1
        states, changed = model.states(ids)[0], model.states(other)[0]
        assert not torch.allclose(states[:, 0], changed[:, 0], atol=1e-6), name
    with pytest.raises(InvalidOption, match="two at least"):
        small("retention", heads=1, head_dim=16)


def test_intensities_lie_on_a_line():
    model = small(inputs="values", pool="mean", needs={"spare": 1, "vocabulary": 256})
    table = model.embedding(torch.arange(257)[None])[0]
    torch.testing.assert_close(table[128] - table[127], table[1] - table[0], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(table[256] - table[255], table[1] - table[0])
    assert model(torch.randint(0, 256, (2, 12))).shape == (2, 3)


def test_added_projections_are_shared_by_default():
    base = arena_models.parameters(small())
    assert arena_models.parameters(small("longformer")) == base
    assert arena_models.parameters(small("longformer", tied_streams=False)) == base + 2 * 3 * 16 * 16


def test_recurrent_networks_have_no_more_parameters_than_attention():
    for cell in ("lstm", "gru"):
        assert 0.9 < arena_models.parameters(small(cell)) / arena_models.parameters(small()) <= 1
        inner = recurrent_width(cell, 64, 4 * 64 * 64)
        layer = torch.nn.LSTM if cell == "lstm" else torch.nn.GRU
        used = sum(each.numel() for each in layer(64, inner, bidirectional=True).parameters()) + 2 * inner * 64
        more = (
            sum(each.numel() for each in layer(64, inner + 1, bidirectional=True).parameters()) + 2 * (inner + 1) * 64
        )
        assert used <= 4 * 64 * 64 < more


def test_a_model_without_a_mask_has_no_id_for_it():
    with pytest.raises(InvalidInput, match="spare=1"):
        _ = small().mask_id
    assert small(needs={"spare": 1}).mask_id == 10 and small(pool="mean", needs={"spare": 1}).mask_id == 9


def test_images_may_have_positions_by_row_and_column():
    model = small(position="rotary_grid", pool="max", head_dim=8, needs={"grid": (3, 4)})
    assert model.options.axes == (3, 4) and small(needs={"grid": (3, 4)}).options.axes is None
    ids = tokens()
    taller = small(position="rotary_grid", pool="max", head_dim=8, needs={"grid": (4, 3)})
    assert not torch.allclose(model(ids), taller(ids), atol=1e-4)  # the same weights, the same pixels in other rows
    with pytest.raises(InvalidOption, match="shifts every row of the grid"):
        small(position="rotary_grid", needs={"grid": (3, 4)})
    with pytest.raises(InvalidOption, match="need axes"):
        small(position="rotary_grid", pool="mean")


def test_each_token_has_its_logits_and_reads_no_padding():
    model, ids = small(pool="each"), tokens()
    assert model(ids).shape == (4, 12, 3)
    real = torch.ones_like(ids, dtype=torch.bool)
    real[:, 9:] = False
    other = torch.where(real, ids, 1)
    torch.testing.assert_close(model(ids, key_mask=real)[:, :9], model(other, key_mask=real)[:, :9])
    with pytest.raises(InvalidOption, match="labels at every token are of one text"):
        small(pool="each", needs={"texts": 2})


@torch.no_grad()
def test_the_short_convolution_joins_a_token_with_those_before_it():
    convolution = small(convolution=3).convolution
    assert convolution is not None and small().convolution is None
    x = torch.randn(2, 12, 16)
    rows = [
        torch.cat([x[:, t - 2 + n] if t - 2 + n >= 0 else torch.zeros(2, 16) for n in range(3)], 1) for t in range(12)
    ]
    expected = x + torch.stack([convolution.maps(row) for row in rows], 1)
    torch.testing.assert_close(convolution(x), expected)
    real = torch.ones(2, 12, dtype=torch.bool)
    real[:, 4] = False
    changed = x.clone()
    changed[:, 4] = 7.0
    differs = (convolution(changed, real) - convolution(x, real)).abs().amax((0, 2)) > 1e-6
    assert differs.nonzero()[:, 0].tolist() == [4]  # a masked token changes no other


@pytest.mark.parametrize(
    ("name", "each_layer"),
    [
        ("dense", 2 * 100 * 16 * 4),  # keys and values of all tokens
        ("window", 2 * 12 * 16 * 4),  # of the 12 before: 100 // 8
        ("linformer", 2 * 16 * 16 * 4),  # of 16 rows
        ("nystrom", (2 * 12 + 33) * 16 * 4),  # of 12 landmarks, and the values within the convolution
        ("linear", 2 * (8 * 8 + 8) * 4),  # two heads: sums of outer products and of keys
        ("retention", 2 * 8 * 8 * 4),
        ("lstm", 2 * 2 * 4 * recurrent_width("lstm", 16, 4 * 16 * 16)),  # both directions, hidden and cell
        ("inducing", None),
    ],
)
def test_the_state_is_what_a_layer_carries_on(name: str, each_layer: int | None):
    found = state_bytes(small(name, {"length": 100}, pool="each"), 100)
    if each_layer is None:
        assert found is None
    else:
        scales = 2 * 2 * 4 if name in ("linear", "retention") else 0  # linear scans keep a scale per head
        assert found == 2 * each_layer + scales
