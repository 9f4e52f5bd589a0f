import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.attention.kernels.top_k import largest


@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 2**31))
def test_it_equals_sorting(length: int, share: float, seed: int):
    x = torch.randn(2, 3, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    count = max(1, round(share**3 * length))  # few more often than many
    values, places = largest(x, count)
    assert torch.equal(places.sort(-1).values, x.argsort(-1, descending=True)[..., :count].sort(-1).values)
    assert torch.equal(values, x.gather(-1, places))


def test_hidden_entries_are_chosen_only_after_all_others():
    x = torch.full((1, 500), -torch.inf)
    x[0, [3, 77, 499]] = torch.tensor([-5.0, 2.0, 0.0])
    values, places = largest(x, 10)
    real = values > -torch.inf
    assert sorted(places[real].tolist()) == [3, 77, 499] and int(real.sum()) == 3
