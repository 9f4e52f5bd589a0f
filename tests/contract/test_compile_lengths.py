"""Compiled mechanisms at a second length that is a multiple of their blocks, with heads as projections make them."""

import pytest
import torch

from longspan.attention import build

# Those whose blocks are padded to a multiple; every mechanism is compiled at two lengths by the audit's check.
BLOCKS = [
    ("bigbird", {"block": 4, "random": 1}, False),
    ("sparse", {"stride": 4}, True),
    ("window", {"window": 3}, False),
    ("sinkhorn", {"block": 4, "noise": 0.0, "combine": "sorted"}, False),
    ("memory_compressed", {"stride": 4}, False),
    ("linformer", {"rank": 8, "projection": "convolution"}, False),
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
