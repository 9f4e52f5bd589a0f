"""The blocks of the Set Transformer: their definitions, and invariance to order and padding."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, relu

from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.nn.set_transformer import ISAB, MAB, PMA, SAB

BATCH, WIDTH, HEADS, SIZE = 3, 12, 3, 10
HEAD_DIM = WIDTH // HEADS
VARIANTS = pytest.mark.parametrize("variant", ["paper", "released"])


def hidden(size: int = SIZE, width: int = WIDTH) -> Tensor:
    return torch.randn(BATCH, size, width, dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)


def stir(module: nn.Module) -> nn.Module:
    """Weights as after training: biases and norms that start at 0 and 1 would hide a fault."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module.double().eval()


def attention_by_hand(block: MAB, x: Tensor, y: Tensor, scale: float) -> Tensor:
    q, k, v = (block.attention.project[name](part) for name, part in (("q", x), ("k", y), ("v", y)))
    read = []
    for own in torch.arange(WIDTH).split(HEAD_DIM):
        read.append(torch.softmax(q[..., own] @ k[..., own].mT * scale, -1) @ v[..., own])
    return torch.cat(read, -1)


def norm(x: Tensor, module: nn.Module) -> Tensor:
    return layer_norm(x, (WIDTH,), module.weight, module.bias)


@pytest.mark.parametrize(("x_width", "y_width"), [(WIDTH, WIDTH), (7, WIDTH), (WIDTH, 5), (7, 5)])
def test_mab_is_that_of_the_paper(x_width: int, y_width: int):
    block = stir(MAB(WIDTH, HEADS, x_width=x_width, y_width=y_width))
    x, y = hidden(width=x_width), hidden(6, y_width)
    residual = x if x_width == WIDTH else block.attention.project["q"](x)
    h = residual + block.attention.out(attention_by_hand(block, x, y, WIDTH**-0.5))
    h = norm(h, block.around_attention.norm)
    rff = block.feedforward.outer(relu(block.feedforward.inner(h)))
    close(block(x, y), norm(h + rff, block.around_feedforward.norm))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("x_width", "y_width"), [(WIDTH, WIDTH), (7, 5)])
def test_mab_as_released(x_width: int, y_width: int, normed: bool):
    given = {"norm": "layer"} if normed else {}
    block = stir(MAB(WIDTH, HEADS, x_width=x_width, y_width=y_width, variant="released", **given))
    x, y = hidden(width=x_width), hidden(6, y_width)
    o = block.attention.project["q"](x) + attention_by_hand(block, x, y, WIDTH**-0.5)
    o = norm(o, block.around_attention.norm) if normed else o
    o = o + relu(block.feedforward[0](o))
    close(block(x, y), norm(o, block.around_feedforward.norm) if normed else o)


def test_the_scale_is_that_of_the_full_width():
    """Golden numbers: one query, two keys, scores 4 and 0 before the scale, 2 heads of 2 in a width of 4."""
    block = MAB(4, 2, variant="released")
    with torch.no_grad():
        for linear in block.attention.project.values():
            linear.weight.copy_(torch.eye(4))
            linear.bias.zero_()
        block.feedforward[0].weight.zero_()
        block.feedforward[0].bias.zero_()
    x = torch.tensor([[[2.0, 0.0, 2.0, 0.0]]])
    y = torch.tensor([[[2.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]]])
    weight = 1 / (1 + math.exp(-4 / math.sqrt(4)))  # by the width of a head it would be exp(-4 / sqrt(2))
    expected = torch.tensor([[[2 + 2 * weight, 0.0, 2 + 2 * weight, 0.0]]])
    torch.testing.assert_close(block(x, y), expected)


@VARIANTS
def test_isab_and_pma_are_made_of_mabs(variant: str):
    isab, pma = stir(ISAB(WIDTH, HEADS, 4, variant=variant)), stir(PMA(WIDTH, HEADS, 2, variant=variant))
    x = hidden()
    summary = isab.gather(isab.points.expand(BATCH, -1, -1), x)
    close(isab.summary(x), summary)
    close(isab(x), isab.spread(x, summary))
    inner = pma.feedforward(x) if variant == "paper" else x
    close(pma(x), pma.block(pma.seeds.expand(BATCH, -1, -1), inner))
    assert pma(x).shape == (BATCH, 2, WIDTH)


# What sets ask


@VARIANTS
@pytest.mark.parametrize("x_width", [WIDTH, 5])
def test_the_order_of_a_set_means_nothing(variant: str, x_width: int):
    x, order = hidden(width=x_width), torch.randperm(SIZE)
    for block in (
        SAB(WIDTH, HEADS, x_width=x_width, variant=variant),
        ISAB(WIDTH, HEADS, 4, x_width=x_width, variant=variant),
    ):
        stir(block)
        close(block(x[:, order]), block(x)[:, order])
    if x_width == WIDTH:
        pma = stir(PMA(WIDTH, HEADS, 2, variant=variant))
        close(pma(x[:, order]), pma(x))


@VARIANTS
def test_repeating_every_element_of_a_set_changes_nothing(variant: str):
    x = hidden()
    twice = torch.cat([x, x], 1)
    isab, pma = stir(ISAB(WIDTH, HEADS, 4, variant=variant)), stir(PMA(WIDTH, HEADS, 2, variant=variant))
    sab = stir(SAB(WIDTH, HEADS, variant=variant))
    close(isab.summary(twice), isab.summary(x))
    close(isab(twice)[:, :SIZE], isab(x))
    close(sab(twice)[:, :SIZE], sab(x))
    close(pma(twice), pma(x))


@VARIANTS
def test_sets_of_several_sizes_in_one_batch(variant: str):
    sizes = [SIZE, 4, 1]
    mask = torch.arange(SIZE) < torch.tensor(sizes)[:, None]
    x = hidden().requires_grad_()
    for block in (SAB(WIDTH, HEADS, variant=variant), ISAB(WIDTH, HEADS, 4, variant=variant)):
        stir(block)
        out = block(x, key_mask=mask)
        assert bool((out[~mask] == 0).all())
        for row, size in enumerate(sizes):
            close(out[row, :size], block(x[row : row + 1, :size])[0])
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        assert bool((gradient[~mask] == 0).all()) and bool((gradient[mask] != 0).any(-1).all())
        close(block(torch.where(mask[..., None], x, 1e4), key_mask=mask), out)
    pma = stir(PMA(WIDTH, HEADS, 2, variant=variant))
    out = pma(x, key_mask=mask)
    for row, size in enumerate(sizes):
        close(out[row], pma(x[row : row + 1, :size])[0])
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert bool((gradient[~mask] == 0).all())


@VARIANTS
def test_an_empty_set_gives_finite_numbers(variant: str):
    x, mask = hidden(), torch.zeros(BATCH, SIZE, dtype=torch.bool)
    for block in (SAB(WIDTH, HEADS, variant=variant), ISAB(WIDTH, HEADS, variant=variant), PMA(WIDTH, HEADS)):
        assert bool(stir(block)(x, key_mask=mask).isfinite().all())


def test_with_one_point_all_rows_are_equal_before_the_residual():
    isab, x = stir(ISAB(WIDTH, HEADS, 1)), hidden()
    rows = isab.spread.attention(x, isab.summary(x))
    close(rows, rows[:, :1].expand_as(rows))
    assert not torch.allclose(isab(x), isab(x)[:, :1])


# Parameters


@pytest.mark.parametrize("x_width", [WIDTH, 5])
def test_parameters_of_the_paper(x_width: int):
    d, w = WIDTH, x_width
    mab = lambda x, y: (x * d + d) + 2 * (y * d + d) + (d * d + d) + 2 * (d * d + d) + 4 * d  # noqa: E731
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(SAB(d, HEADS, x_width=w)) == mab(w, w)
    assert count(ISAB(d, HEADS, 7, x_width=w)) == 7 * d + mab(d, w) + mab(w, d)  # nothing is shared
    assert count(PMA(d, HEADS, 2)) == 2 * d + mab(d, d) + 2 * (d * d + d)
    assert count(SAB(d, HEADS, hidden=30)) == mab(d, d) - 2 * (d * d + d) + 2 * 30 * d + 30 + d


@pytest.mark.parametrize("x_width", [WIDTH, 5])
def test_parameters_as_released(x_width: int):
    d, w = WIDTH, x_width
    mab = lambda x, y: (x * d + d) + 2 * (y * d + d) + (d * d + d)  # noqa: E731
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(SAB(d, HEADS, x_width=w, variant="released")) == mab(w, w)
    assert count(ISAB(d, HEADS, 7, x_width=w, variant="released")) == 7 * d + mab(d, w) + mab(w, d)
    assert count(PMA(d, HEADS, 2, variant="released")) == 2 * d + mab(d, d)
    assert count(SAB(d, HEADS, variant="released", norm="layer")) == mab(d, d) + 4 * d


def test_learned_rows_start_within_the_bound_of_xavier():
    points = ISAB(64, 4, 100).points
    bound = math.sqrt(6 / (100 * 64 + 64))
    assert 0.9 * bound < points.abs().max() <= bound and abs(points.mean()) < 0.1 * bound


# Refusals


def test_invalid_input_is_refused():
    with pytest.raises(InvalidOption, match="heads must divide the width: 12 is not a multiple of 5"):
        SAB(12, 5)
    with pytest.raises(InvalidOption, match="points must be at least 1, not 0"):
        ISAB(12, 3, 0)
    with pytest.raises(InvalidOption, match="seeds must be at least 1, not 0"):
        PMA(12, 3, 0)
    with pytest.raises(UnknownName, match="no variant is called 'release'; did you mean 'released'"):
        MAB(12, 3, variant="release")
    with pytest.raises(InvalidOption, match="hidden is for variant='paper'"):
        PMA(12, 3, variant="released", hidden=5)
    with pytest.raises(InvalidInput, match=r"width 12"):
        SAB(12, 3).double()(hidden(width=7))
