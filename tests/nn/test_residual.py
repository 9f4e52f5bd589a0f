import pytest
import torch
from torch import nn

from longspan.errors import UnknownName
from longspan.models import build
from longspan.nn.residual import Residual


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_the_three_norm_positions(x: torch.Tensor, norm: str):
    pre, post, none = (Residual(8, norm=norm, norm_position=where) for where in ("pre", "post", "none"))
    torch.testing.assert_close(pre(x, double), x + 2 * pre.norm(x))
    torch.testing.assert_close(post(x, double), post.norm(x + 2 * x))
    torch.testing.assert_close(none(x, double), 3 * x)
    assert not list(none.parameters())


def test_post_output_is_normalised_and_pre_keeps_the_stream(x: torch.Tensor):
    out = Residual(8, norm_position="post")(x, double)
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 3), atol=1e-6, rtol=0)
    assert torch.equal(Residual(8, norm_position="pre")(x, torch.zeros_like), x)


def test_dropout_is_on_the_branch_only(x: torch.Tensor):
    residual = Residual(8, norm_position="none", dropout=0.5)
    torch.manual_seed(0)
    added = residual(x, torch.ones_like) - x
    assert set(added.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(residual.eval()(x, torch.ones_like), x + 1)


def test_the_sublayer_may_be_a_module(x: torch.Tensor):
    assert Residual(8)(x, nn.Linear(8, 8)).shape == x.shape


def test_unknown_norm_and_norm_position_are_refused():
    with pytest.raises(UnknownName, match=r"'prr'.*did you mean 'pre'"):
        Residual(8, norm_position="prr")
    with pytest.raises(UnknownName, match=r"'batch'.*known: layer, layer_no_bias, none, rms, rms_offset"):
        Residual(8, norm="batch")


def test_drop_path_skips_whole_examples_and_scales_the_others():
    torch.manual_seed(0)
    around = Residual(4, norm_position="none", drop_path=0.25)
    x = torch.zeros(4000, 3, 4)
    change = around(x, lambda y: y + 1)
    values = change[:, 0, 0]
    assert torch.equal(change, values[:, None, None].expand_as(change))
    assert torch.equal(values.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs((values == 0).double().mean() - 0.25) < 0.02
    assert torch.equal(around.eval()(x, lambda y: y + 1), torch.ones_like(x))


def test_the_rate_of_drop_path_rises_with_the_layers():
    model = build("encoder", vocabulary=11, width=8, heads=2, hidden=16, layers=3, drop_path=0.2)
    assert [block.around_mixer.drop_path for block in model.stack.layers()] == [0.0, 0.1, 0.2]
