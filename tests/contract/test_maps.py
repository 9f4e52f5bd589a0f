"""Maps as columns and as factors: equal to `weights`, for every mechanism in every form."""

import pytest
import torch
from forms import SUBJECTS, Inputs, identity
from torch import Tensor

from longspan.attention.map_factors import MapFactors
from longspan.attention.registry import build
from longspan.audit.subjects import MechanismSubject
from longspan.errors import Unsupported

LENGTH = 45
FACTORED = {"softmax", "window", "linear", "performer", "retention", "cosformer", "linformer", "nystrom", "hedgehog"}


@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_columns_and_factors_give_the_measured_map(subject: MechanismSubject):
    attention, inputs = subject.fresh().module, Inputs(subject, length=LENGTH, dtype=torch.float64)
    q, k, _ = inputs.heads()
    given = {"key_mask": inputs.mask, "streams": inputs.streams}
    if not attention.supports.map:
        with pytest.raises(Unsupported, match=f"^{attention.name} transforms its values"):
            attention.weights(q, k, **given)
        return
    weights = attention.weights(q, k, **given)
    blocks = list(attention.map_columns(q, k, **given))
    assert [begin for begin, _ in blocks] == list(range(0, LENGTH, attention.shape.value_dim))
    assert torch.equal(torch.cat([block for _, block in blocks], -1), weights)  # bit for bit
    factors = attention.map_factors(q, k, **given)
    options = vars(attention.options)
    # a tanh between query and key, or of their product; two sets of keys
    other = options.get("score") == "additive" or options.get("softcap") is not None or bool(options.get("sinks"))
    windowed = attention.name == "longformer" and not inputs.streams  # a sample without global tokens
    assert (factors is not None) == (windowed or (attention.name in FACTORED and not other))
    if factors is not None:
        check_factors(factors, weights)


def check_factors(factors: MapFactors, weights: Tensor) -> None:
    batch, heads = weights.shape[:2]
    assert factors.shape == tuple(weights.shape)
    rows = list(factors.row_blocks(multiple=4, cells=batch * heads * LENGTH * 9))  # 9 rows at most, so 8
    assert [begin for begin, _ in rows] == list(range(0, LENGTH, 8))
    torch.testing.assert_close(torch.cat([block for _, block in rows], 2), weights, rtol=1e-9, atol=1e-10)
    some, other = torch.tensor([44, 3, 17]), torch.tensor([0, 2, 30, 44, 9])
    expected = weights[:, :, some][..., other]
    torch.testing.assert_close(factors.tile(some, other), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_factors_with_a_bias_and_shared_keys(name: str):
    attention = build(name, heads=4, head_dim=8, causal=True).double()
    q, k, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((1, 4, 33, 8), (1, 4, 33, 8), (4, 65)))
    if attention.supports.grouped:
        k = k[:, :2]
    factors = attention.map_factors(q, k, bias=bias)
    assert factors is not None
    torch.testing.assert_close(factors.tile(torch.arange(33), torch.arange(33)), attention.weights(q, k, bias=bias))


def test_persistent_vectors_leave_only_columns():
    attention = build("softmax", heads=2, head_dim=8).double()
    attention.add_persistent(3)
    q, k = torch.randn(2, 1, 2, 20, 8, dtype=torch.float64)
    assert attention.map_factors(q, k) is None
    assert torch.allclose(attention.weights(q, k), attention.oracle(q, k)[..., :20])


def test_longformer_without_global_tokens_is_a_window():
    attention = build("longformer", heads=2, head_dim=8, window=4, capacity=4).double()
    q, k = torch.randn(2, 1, 2, 30, 8, dtype=torch.float64)
    factors = attention.map_factors(q, k)
    assert factors is not None
    torch.testing.assert_close(factors.tile(torch.arange(30), torch.arange(30)), attention.weights(q, k))


def test_cross_attention_has_factors_too():
    attention = build("performer", heads=2, head_dim=8, features=16).double()
    q, k = torch.randn(1, 2, 5, 8, dtype=torch.float64), torch.randn(1, 2, 19, 8, dtype=torch.float64)
    factors = attention.map_factors(q, k)
    assert factors is not None
    torch.testing.assert_close(factors.tile(torch.arange(5), torch.arange(19)), attention.weights(q, k))
