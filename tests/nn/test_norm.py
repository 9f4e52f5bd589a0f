import pytest
import torch
from torch import nn

from longspan.errors import UnknownName
from longspan.nn.norm import NORMS, build_norm


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_layer_norm_of_1_2_3_4_has_the_biased_variance():
    out = build_norm("layer", 4, eps=0.0)(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(out, torch.tensor([-1.3416, -0.4472, 0.4472, 1.3416]), atol=5e-5, rtol=0)


def test_rms_norm_divides_by_the_root_mean_square_and_keeps_the_mean():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(build_norm("rms", 4, eps=0.0)(x), x / 7.5**0.5)


def test_none_is_the_identity():
    x = torch.randn(2, 3, 4)
    assert build_norm("none", 4)(x) is x


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_each_token_by_itself(kind: str):
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    norm = build_norm(kind, 8).double()
    torch.testing.assert_close(norm(x)[1, 3], norm(x[1, 3]))
    changed = x.clone()
    changed[0, 1] += 7
    assert torch.equal(norm(changed)[0, 2:], norm(x)[0, 2:])


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(kind: str, dtype: torch.dtype):
    # The square of 300 does not fit into float16, and 4096 terms lose all digits of bfloat16.
    x = (300 + torch.randn(4, 4096)).to(dtype)
    out = build_norm(kind, 4096).to(dtype)(x)
    wanted = build_norm(kind, 4096)(x.float())
    torch.testing.assert_close(out.float(), wanted, atol=2 * torch.finfo(dtype).eps, rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("kind", sorted(NORMS))
def test_epsilon_is_used(kind: str):
    norm = build_norm(kind, 4, eps=1e-12)
    assert isinstance(norm, nn.Identity) or norm.eps == 1e-12


def test_unknown_norm_names_the_nearest():
    with pytest.raises(UnknownName, match=r"'layr'.*did you mean 'layer'"):
        build_norm("layr", 4)
