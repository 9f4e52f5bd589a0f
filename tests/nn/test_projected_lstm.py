"""The LSTM layer with a projection."""

import pytest
import torch

from longspan.errors import InvalidOption
from longspan.nn.projected_lstm import ProjectedLstm


def layers(clip: float, projection: int = 4) -> tuple[ProjectedLstm, ProjectedLstm]:
    """The fused one, and the one that goes step by step, with the same weights."""
    torch.manual_seed(0)
    fused, stepwise = (ProjectedLstm(5, 7, projection, clip=bound).double() for bound in (None, clip))
    stepwise.load_state_dict(fused.state_dict())
    return fused, stepwise


@pytest.mark.parametrize("projection", [4, 7])
@pytest.mark.parametrize("lengths", [None, torch.tensor([6, 3, 0])])
def test_fused_and_stepwise_lstm_are_equal(projection: int, lengths: torch.Tensor | None):
    fused, stepwise = layers(100.0, projection)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    state = tuple(torch.randn_like(part) for part in fused.start(3))
    (out, after), (other, other_after) = fused(x, state, lengths), stepwise(x, state, lengths)
    torch.testing.assert_close(out, other, rtol=0, atol=1e-12)
    torch.testing.assert_close(after, other_after, rtol=0, atol=1e-12)
    if lengths is not None:
        assert (out[1, 3:] == 0).all() and (out[2] == 0).all()
        assert all(torch.equal(part[2], given[2]) for part, given in zip(after, state))
        alone, alone_after = fused(x[1:2, :3], tuple(part[1:2] for part in state))
        torch.testing.assert_close(out[1:2, :3], alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(tuple(part[1:2] for part in after), alone_after, rtol=0, atol=1e-12)


def test_nothing_leaves_the_bounds():
    _, stepwise = layers(0.05)
    out, (h, c) = stepwise(10 * torch.randn(2, 6, 5, dtype=torch.float64), stepwise.start(2))
    assert out.abs().max() <= 0.05 and c.abs().max() == 0.05 and torch.equal(out[:, -1], h)


def test_a_projection_wider_than_the_cells():
    with pytest.raises(InvalidOption, match=r"the projection \(8\) must not be wider than the 7 cells"):
        ProjectedLstm(5, 7, 8)
