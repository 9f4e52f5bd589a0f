"""The non-local block: each form against a double loop over the pixels, and identity at the start."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, scaled_dot_product_attention

from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.nn.nonlocal_block import NonLocalBlock, relu_pairs

FORMS = ("embedded", "gaussian", "dot", "concatenation")


def block(form: str = "embedded", channels: int = 6, **options: Any) -> NonLocalBlock:
    """A block whose parameters are far from their initial values, in float64."""
    torch.manual_seed(0)
    layer = NonLocalBlock(channels, form=form, **options).double()  # type: ignore[arg-type]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def by_hand(layer: NonLocalBlock, x: Tensor, source: Tensor, scale: float = 1.0) -> Tensor:
    """y, before the output convolution, pixel by pixel (Wang et al. 2018, equations 1 to 5)."""
    theta = x if layer.query is None else layer.query(x)
    phi = source if layer.key is None else layer.key(source)
    g = layer.value(source)
    (queries, keys, values), rows = (part.flatten(2)[0].T for part in (theta, phi, g)), []
    for query in queries:
        if layer.form in ("embedded", "gaussian"):
            weights = torch.stack([(query @ key * scale).exp() for key in keys])
            normaliser = weights.sum()
        elif layer.form == "dot":
            weights, normaliser = torch.stack([query @ key * scale for key in keys]), len(keys)
        else:
            both = [torch.cat([query, key]) @ layer.weights.flatten() for key in keys]
            weights, normaliser = torch.relu(torch.stack(both)), len(keys)
        rows.append(sum(weight * value for weight, value in zip(weights, values, strict=True)) / normaliser)
    return torch.stack(rows).T.unflatten(1, x.shape[2:])[None]


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_its_double_loop(form: str, subsample: bool):
    layer = block(form, norm=False, subsample=subsample)
    x = torch.randn(1, 6, 4, 5, dtype=torch.float64, requires_grad=True)
    source = max_pool2d(x, 2) if subsample else x
    expected = x + layer.out(by_hand(layer, x, source))
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)
    leaves = [x, *layer.parameters()]
    weight = torch.randn_like(x)
    mine = torch.autograd.grad((layer(x) * weight).sum(), leaves)
    theirs = torch.autograd.grad((expected * weight).sum(), leaves)
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-9)


def test_the_released_scale_divides_by_the_root_of_the_inner_width():
    layer = block("embedded", norm=False, scaled=True)
    x = torch.randn(1, 6, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x + layer.out(by_hand(layer, x, x, 3**-0.5)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_new_block_is_the_identity_and_learns(form: str, norm: bool):
    layer = NonLocalBlock(8, form=form, norm=norm)  # type: ignore[arg-type]
    x = torch.randn(3, 8, 5, 4)
    y = layer(x)
    assert torch.equal(y, x)
    y.square().sum().backward()
    assert (layer.norm if norm else layer.out).weight.grad.abs().max() > 0


@pytest.mark.parametrize(("axes", "shape"), [(1, (9,)), (2, (4, 6)), (3, (3, 4, 6))])
def test_sequences_maps_and_videos(axes: int, shape: tuple[int, ...]):
    layer = block(axes=axes, subsample=True).eval()
    x = torch.randn(2, 6, *shape, dtype=torch.float64)
    assert layer(x).shape == x.shape
    order = torch.randperm(2)
    torch.testing.assert_close(layer(x)[order], layer(x[order]))


def test_a_video_is_pooled_in_space_and_keeps_its_frames():
    layer = block(axes=3, subsample=True)
    assert layer.pool(torch.zeros(1, 6, 5, 4, 6)).shape == (1, 6, 5, 2, 3)


def test_the_softmax_form_is_one_head_of_attention_with_scale_1():
    layer = block("embedded", norm=False)
    x = torch.randn(2, 6, 4, 5, dtype=torch.float64)
    q, k, v = (part(x).flatten(2).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    heads = scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).unflatten(2, (4, 5))
    torch.testing.assert_close(layer(x), x + layer.out(heads))


@pytest.mark.parametrize("form", FORMS)
def test_pooling_changes_the_keys_and_no_shape(form: str):
    x = torch.randn(1, 6, 4, 6, dtype=torch.float64)
    pooled, whole = block(form, norm=False, subsample=True), block(form, norm=False)
    assert pooled(x).shape == whole(x).shape == x.shape
    assert {name: weight.shape for name, weight in pooled.state_dict().items()} == {
        name: weight.shape for name, weight in whole.state_dict().items()
    }


def test_relu_pairs_is_the_sum_over_all_pairs():
    a, b, values = torch.randn(2, 5), torch.randn(2, 7), torch.randn(2, 7, 3)
    a[0, 0], b[0, 0] = 1.0, -1.0  # exactly 0
    a, b, values = (part.double().requires_grad_() for part in (a, b, values))
    naive = torch.relu(a[:, :, None] + b[:, None]) @ values
    torch.testing.assert_close(relu_pairs(a, b, values), naive)
    mine = torch.autograd.grad(relu_pairs(a, b, values).square().sum(), (a, b, values))
    theirs = torch.autograd.grad(naive.square().sum(), (a, b, values))
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other)


def test_wrong_input_is_refused():
    with pytest.raises(UnknownName, match="no form of a non-local block is called 'gausian'; did you mean 'gaussian'"):
        NonLocalBlock(4, form="gausian")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="axes must be 1"):
        NonLocalBlock(4, axes=4)
    with pytest.raises(InvalidInput, match=r"expected \(batch, 6 channels, height, width\), got \(2, 4, 3, 3\)"):
        block()(torch.zeros(2, 4, 3, 3, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="subsample pools 2 × 2 pixels"):
        block(subsample=True)(torch.zeros(2, 6, 1, 3, dtype=torch.float64))


def test_half_precision_is_summed_in_float32():
    torch.manual_seed(0)
    a, b, values = torch.randn(1, 50), torch.randn(1, 3000), torch.rand(1, 3000, 4)
    half = [part.bfloat16() for part in (a, b, values)]
    exact = relu_pairs(*(part.float() for part in half))
    mine = relu_pairs(*half)
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine.float(), exact, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("form", FORMS)
def test_autocast_is_close_and_compilation_equal_at_two_sizes(form: str):
    layer = NonLocalBlock(8, form=form, norm=False)  # type: ignore[arg-type]
    torch.nn.init.normal_(layer.out.weight)
    compiled = torch.compile(layer, backend="eager", dynamic=True)
    for size in ((4, 5), (6, 7)):
        x = torch.randn(2, 8, *size)
        torch.testing.assert_close(compiled(x), layer(x))
        with torch.autocast("cpu", torch.bfloat16):
            half = layer(x)
        torch.testing.assert_close(half.float(), layer(x), rtol=0.1, atol=0.1)
