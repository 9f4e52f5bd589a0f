"""The naive softmax is the fused one, weights in memory and all."""

import pytest
import torch

from longspan.attention.base import Shape
from longspan.attention.mechanisms.softmax import SoftmaxAttention
from longspan.errors import Unsupported
from longspan.measure.footprint import saved_bytes
from longspan.measure.naive import Naive, materialise
from longspan.models.encoder import Encoder


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_it_equals_the_fused_kernel(causal: bool, padded: bool):
    torch.manual_seed(0)
    shape = Shape(heads=2, head_dim=8)
    given = [torch.randn(3, 2, 17, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.rand(3, 17) > 0.3 if padded else None
    outs, grads = [], []
    for kind in (SoftmaxAttention, Naive):
        out = kind(shape, causal=causal)(*given, key_mask=mask)
        outs.append(out)
        grads.append(torch.autograd.grad(out.square().sum(), given))
    torch.testing.assert_close(*outs)
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


def test_a_model_becomes_naive_and_stays_the_same_function():
    torch.manual_seed(0)
    model = Encoder(Encoder.Options(vocabulary=17, width=16, heads=2, layers=3, max_length=32, dropout=0.0)).eval()
    names, ids = list(model.state_dict()), torch.randint(17, (2, 32))
    before = model(ids)
    assert materialise(model) == 3 and materialise(model) == 0
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(ids), before)


def test_its_weights_are_kept_for_the_backward_pass():
    length, heads = 128, 2
    given = [torch.randn(1, heads, length, 4, requires_grad=True) for _ in range(3)]
    weights = heads * length * length * 4
    naive, fused = (kind(Shape(heads=heads, head_dim=4)) for kind in (Naive, SoftmaxAttention))
    assert saved_bytes(lambda: naive(*given).sum()) >= weights
    assert saved_bytes(lambda: fused(*given).sum()) < weights / 4


def test_unsupported_options_are_refused():
    naive = Naive(Shape(heads=2, head_dim=8), Naive.Options(score="dot"))
    with pytest.raises(Unsupported, match="scaled products"):
        naive(*torch.randn(3, 1, 2, 4, 8))
