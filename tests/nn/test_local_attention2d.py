"""Stand-alone local attention: a loop over the pixels, borders, limits, and what the paper's form implies."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.nn.attention2d import Attention2d
from longspan.nn.local_attention2d import AttentionStem, LocalAttention2d


def layer(**options: Any) -> LocalAttention2d:
    torch.manual_seed(0)
    return LocalAttention2d(6, 16, **{"kernel": 5, "heads": 2, **options}).double()


def by_hand(local: LocalAttention2d, x: Tensor) -> Tensor:
    """Ramachandran et al. 2019, equation 4, pixel by pixel."""
    q, k, v = (part(x).unflatten(1, (local.heads, -1)) for part in (local.query, local.key, local.value))
    height, width, reach = *x.shape[2:], local.kernel // 2
    out = torch.zeros_like(q)
    for i in range(height):
        for j in range(width):
            scores, values = [], []
            for a in range(i - reach, i + reach + 1):
                for b in range(j - reach, j + reach + 1):
                    inside = 0 <= a < height and 0 <= b < width
                    if not inside and local.borders == "masked":
                        continue
                    key, value = (t[..., a, b] if inside else torch.zeros_like(q[..., 0, 0]) for t in (k, v))
                    offset = torch.cat([local.rows[:, a - i + reach], local.columns[:, b - j + reach]], -1)
                    scores.append((q[..., i, j] * (key + offset)).sum(-1))
                    values.append(value)
            weights = torch.stack(scores).softmax(0)
            out[..., i, j] = (weights[..., None] * torch.stack(values)).sum(0)
    return out.flatten(1, 2)


@pytest.mark.parametrize("borders", ["masked", "zeros"])
@pytest.mark.parametrize("size", [(9, 12), (3, 2), (7, 15), (1, 1)])
def test_it_is_the_loop_over_pixels(size: tuple[int, int], borders: str):
    local = layer(borders=borders)
    x = torch.randn(2, 6, *size, dtype=torch.float64, requires_grad=True)
    expected = by_hand(local, x)
    torch.testing.assert_close(local(x), expected, rtol=1e-10, atol=1e-10)
    leaves, weight = [x, *local.parameters()], torch.randn_like(expected)
    mine = torch.autograd.grad((local(x) * weight).sum(), leaves)
    theirs = torch.autograd.grad((expected * weight).sum(), leaves)
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-9)


def test_a_kernel_that_covers_the_map_is_global_attention_with_relative_terms():
    local = layer(kernel=9)
    x = torch.randn(1, 6, 4, 5, dtype=torch.float64)
    q, k, v = (part(x).unflatten(1, (2, -1)).flatten(3).mT for part in (local.query, local.key, local.value))
    row, column = torch.arange(20) // 5, torch.arange(20) % 5
    offset = torch.cat(
        [local.rows[:, row[None] - row[:, None] + 4], local.columns[:, column[None] - column[:, None] + 4]], -1
    )
    scores = q @ k.mT + torch.einsum("bhqd,hqkd->bhqk", q, offset)
    out = (scores.softmax(-1) @ v).mT.flatten(1, 2).unflatten(2, (4, 5))
    torch.testing.assert_close(local(x), out, rtol=1e-10, atol=1e-10)


def test_a_shifted_image_gives_a_shifted_output_inside():
    local = layer()
    x = torch.randn(1, 6, 12, 12, dtype=torch.float64)
    shifted = local(x.roll((1, 2), (2, 3)))
    torch.testing.assert_close(shifted[..., 4:-3, 5:-3], local(x).roll((1, 2), (2, 3))[..., 4:-3, 5:-3])


def test_equal_scores_average_the_values_inside_the_image():
    local = layer()
    for parameter in (local.rows, local.columns, local.key.weight):
        torch.nn.init.zeros_(parameter)
    x = torch.randn(1, 6, 6, 8, dtype=torch.float64)
    expected = avg_pool2d(local.value(x), 5, stride=1, padding=2, count_include_pad=False)
    torch.testing.assert_close(local(x), expected)


def test_stride_two_is_attention_and_average_pooling():
    x = torch.randn(2, 6, 8, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(stride=2)(x), avg_pool2d(layer()(x), 2))


def test_grouped_projections_have_a_share_of_the_weights():
    assert layer(grouped=True).query.weight.numel() * 2 == layer().query.weight.numel()


def test_the_stem_mixes_values_by_position_in_its_block():
    torch.manual_seed(0)
    stem = AttentionStem(3, 8, heads=2).double().eval()
    x = torch.randn(1, 3, 8, 4, dtype=torch.float64)
    block = x[0, :, 4:, :].flatten(1).T  # the second block, its 16 pixels
    mixture = ((stem.rows[:, None] + stem.columns) @ stem.mixing.T).softmax(-1).flatten(0, 1)
    matrices = stem.value.weight[..., 0, 0].unflatten(0, (4, 8))
    values = torch.stack([sum(p * m for p, m in zip(mixture[i], matrices, strict=True)) @ block[i] for i in range(16)])
    heads = []
    for part in torch.arange(8).split(4):
        q, k = (block @ conv.weight[part, :, 0, 0].T for conv in (stem.query, stem.key))
        heads.append((q @ k.T).softmax(-1) @ values[:, part])
    out = torch.cat(heads, 1) / (1 + stem.norm.eps) ** 0.5  # batch norm before training
    torch.testing.assert_close(stem(x)[0, :, 1, 0], out.amax(0))


def test_every_pixel_reads_every_pixel_in_the_plain_layer():
    torch.manual_seed(0)
    plain = Attention2d(6, 8, heads=2).double()
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    rows = plain.attention(x.flatten(2).mT)
    torch.testing.assert_close(plain(x).flatten(2).mT, rows)
    order = torch.randperm(15)
    permuted = plain(x.flatten(2)[..., order].unflatten(2, (3, 5)))
    torch.testing.assert_close(permuted.flatten(2), plain(x).flatten(2)[..., order])
    assert Attention2d(6, heads=3, attention="linear")(x.float()).shape == x.shape


def test_wrong_input_is_refused():
    with pytest.raises(InvalidOption, match="kernel must be odd, so that it has a centre, not 4"):
        layer(kernel=4)
    with pytest.raises(InvalidOption, match="16 channels must split into 3 heads of even width"):
        layer(heads=3)
    with pytest.raises(UnknownName, match="no borders are called 'mask'"):
        layer(borders="mask")
    with pytest.raises(InvalidInput, match=r"expected \(batch, 6 channels, height, width\), got \(1, 3, 4, 4\)"):
        layer()(torch.zeros(1, 3, 4, 4, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="multiples of 4"):
        AttentionStem(3, 8)(torch.zeros(1, 3, 6, 8))


def test_autocast_recomputation_and_compilation_at_two_sizes():
    local = layer().float()
    compiled = torch.compile(local, backend="eager", dynamic=True)
    for size in ((9, 12), (14, 8)):
        x = torch.randn(2, 6, *size, requires_grad=True)
        torch.testing.assert_close(compiled(x), local(x))
        again = torch.utils.checkpoint.checkpoint(local, x, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(again.sum(), x), torch.autograd.grad(local(x).sum(), x))
        with torch.autocast("cpu", torch.bfloat16):
            half = local(x)
        torch.testing.assert_close(half.float(), local(x), rtol=0.1, atol=0.1)
