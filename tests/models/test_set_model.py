"""The Set Transformer: invariance, padding, the control, and what is refused."""

from typing import Any

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.models.cost import cost

TINY: dict[str, Any] = {"features": 3, "width": 16, "heads": 2, "points": 4, "seeds": 2, "outputs": 5}
FORMS = [{}, {"points": 0}, {"pool": "mean", "encoder": "rows", "decoder_layers": 0}, {"variant": "released"}]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_order_and_the_padding_of_a_set_do_not_matter(form: dict[str, Any]):
    torch.manual_seed(0)
    model = build("set_transformer", **{**TINY, **form}).double().eval()
    elements = torch.randn(2, 9, 3, dtype=torch.float64)
    out = model(elements)
    assert out.shape == (2, 2, 5)
    torch.testing.assert_close(model(elements[:, torch.randperm(9)]), out)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    torch.testing.assert_close(model(elements, key_mask=mask)[1:], model(elements[1:, :6]))


def test_a_set_of_copies_is_the_set():
    """Inducing points and attention pooling take weighted means, which copies of every element leave as they are."""
    model = build("set_transformer", **TINY).double().eval()
    elements = torch.randn(1, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(model(elements.repeat(1, 3, 1)), model(elements))


def test_the_cost_grows_with_the_set_and_without_points_with_its_square():
    flops = [cost(build("set_transformer", **TINY), size).flops for size in (1000, 2000, 3000)]
    assert flops[2] - flops[1] == flops[1] - flops[0]  # a straight line
    dense = build("set_transformer", **{**TINY, "points": 0})
    whole = [cost(dense, size).flops for size in (1000, 2000, 3000)]
    assert whole[2] - 2 * whole[1] + whole[0] > 0


def test_wrong_options_and_input_are_refused():
    with pytest.raises(InvalidOption, match="the mean is one row"):
        build("set_transformer", **{**TINY, "pool": "mean"})
    with pytest.raises(InvalidInput, match=r"expected sets \(batch, size, 3 features\), got \(2, 4, 2\)"):
        build("set_transformer", **TINY)(torch.zeros(2, 4, 2))
