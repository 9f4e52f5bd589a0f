"""Compiled mechanisms at a second length that is a multiple of their blocks, with heads as projections make them."""

import pytest
import torch

from longspan.attention import build

BLOCKS = [
    ("bigbird", {"block": 4, "random": 1}, False),
    ("sparse", {"stride": 4}, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "causal"), BLOCKS, ids=[name for name, *_ in BLOCKS])
def test_a_second_length_that_needs_no_padding(name: str, options: dict[str, object], causal: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = build(name, heads=2, head_dim=4, causal=causal, max_length=64, **options).double()
    compiled = torch.compile(module, backend="aot_eager", dynamic=True)
    for length in (37, 64):
        q, k, v = (torch.randn(2, length, 2, 4, dtype=torch.float64).transpose(1, 2) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), module(q, k, v), rtol=0, atol=1e-10)
