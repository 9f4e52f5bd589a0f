"""Recurrent layers: against cells written out, with padding anywhere, and how far gradients reach."""

import pytest
import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.recurrent import CELLS, Recurrent, initialise_uniform, reversal


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x @ w.T + h @ u.T + b).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, b_u: Tensor) -> Tensor:
    (xr, xz, xc), (hr, hz, hc) = (x @ w.T + b).chunk(3, -1), (h @ u.T + b_u).chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    return (1 - z) * (xc + r * hc).tanh() + z * h


def elman_cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(x @ w.T + h @ u.T + b)


def written_out(layers: Recurrent, x: Tensor) -> Tensor:
    """The equations, step by step and layer by layer."""
    for number in range(layers.layers.num_layers):
        w, u, b, b_u = (
            getattr(layers.layers, f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = c = torch.zeros(len(x), layers.width, dtype=x.dtype)
        steps = []
        for t in range(x.shape[1]):
            if layers.cell == "lstm":
                h, c = lstm_cell(x[:, t], h, c, w, u, b + b_u)
            elif layers.cell == "gru":
                h = gru_cell(x[:, t], h, w, u, b, b_u)
            else:
                h = elman_cell(x[:, t], h, w, u, b + b_u)
            steps.append(h)
        x = torch.stack(steps, 1)
    return x


@pytest.mark.parametrize("cell", CELLS)
def test_the_layers_are_the_equations(cell: str):
    layers = Recurrent(5, 7, cell=cell, layers=2)
    x = torch.randn(3, 9, 5)
    torch.testing.assert_close(layers(x)[0], written_out(layers, x), rtol=0, atol=1e-6)


def assert_same_state(a, b, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a.hidden, b.hidden, rtol=0, atol=tolerance)
    if a.cell is not None:
        torch.testing.assert_close(a.cell, b.cell, rtol=0, atol=tolerance)


MASKS = {
    "left": [0, 0, 1, 1, 1, 1],
    "right": [1, 1, 1, 0, 0, 0],
    "holes": [0, 1, 0, 1, 1, 0],
}


@pytest.mark.parametrize("where", MASKS)
@pytest.mark.parametrize("both", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_is_skipped(cell: str, both: bool, where: str):
    layers = Recurrent(5, 7, cell=cell, layers=2, bidirectional=both).double()
    x = torch.randn(3, 6, 5).double()
    real = torch.tensor([[1] * 6, MASKS[where], [0] * 6]).bool()
    y, state = layers(x, key_mask=real)
    for row in range(2):
        alone, own = layers(x[row : row + 1, real[row]])
        torch.testing.assert_close(y[row, real[row]], alone[0], rtol=0, atol=1e-12)
        assert_same_state(state.select(torch.tensor([row])), own)
    assert (state.hidden[2] == 0).all() and (y[2] == 0).all()
    assert state.length == 6


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("cell", CELLS)
def test_a_masked_step_leaves_the_state_as_it_was(cell: str, length: int):
    layers = Recurrent(5, 7, cell=cell, layers=2)
    _, before = layers(torch.randn(2, 3, 5))
    real = torch.zeros(2, length, dtype=torch.bool)
    real[1] = True
    y, after = layers(torch.randn(2, length, 5), before, key_mask=real)
    assert torch.equal(after.hidden[0], before.hidden[0])
    assert cell != "lstm" or torch.equal(after.cell[0], before.cell[0])
    assert torch.equal(y[0], before.top[0].expand(length, -1))
    assert not torch.equal(after.hidden[1], before.hidden[1])


def test_masked_positions_give_no_gradient():
    layers = Recurrent(5, 7, bidirectional=True).double()
    x = torch.randn(2, 6, 5).double().requires_grad_()
    real = torch.tensor([MASKS["left"], MASKS["holes"]]).bool()
    layers(x, key_mask=real)[0].square().sum().backward()
    assert (x.grad[~real] == 0).all() and (x.grad[real] != 0).all()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("pieces", [[1] * 8, [3, 1, 4]])
def test_reading_in_pieces_equals_reading_at_once(cell: str, pieces: list[int]):
    layers = Recurrent(5, 7, cell=cell, layers=2, learned_start=True).double()
    nn.init.normal_(layers.first_hidden)
    x, real = torch.randn(2, 8, 5).double(), torch.rand(2, 8) < 0.6
    whole, end = layers(x, key_mask=real)
    state, seen = layers.start(2), []
    for piece, mask in zip(x.split(pieces, 1), real.split(pieces, 1)):
        y, state = layers(piece, state, key_mask=mask)
        seen.append(y)
    torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-12)
    assert_same_state(state, end)
    assert state.length == 8


def test_a_detached_state_has_no_history():
    layers = Recurrent(5, 7, layers=2)
    _, state = layers(torch.randn(2, 4, 5))
    cut = state.detach()
    assert state.hidden.requires_grad and not cut.hidden.requires_grad and not cut.cell.requires_grad
    assert torch.equal(cut.hidden, state.hidden) and cut.length == 4


def test_the_two_forget_biases_sum_to_one():
    layers = Recurrent(5, 7, layers=2, forget_bias=1.0)
    for redraw in (False, True):
        if redraw:
            initialise_uniform(layers, 0.05)
        for number in range(2):
            total = getattr(layers.layers, f"bias_ih_l{number}") + getattr(layers.layers, f"bias_hh_l{number}")
            assert (total[7:14] == 1).all() and not (total[:7] == 1).any()


def test_dropout_is_on_every_connection_but_the_recurrent_ones():
    layers = Recurrent(4, 64, layers=2, dropout=0.5)
    x = torch.ones(1, 3, 4)
    y, state = layers(x)
    dropped = y == 0
    assert 0.2 < dropped.float().mean() < 0.8
    assert not (state.hidden == 0).any()  # the state is not dropped, what is handed up is
    torch.testing.assert_close(y[:, -1][~dropped[:, -1]], 2 * state.top[~dropped[:, -1]])
    layers.eval()
    assert torch.equal(layers(x)[0], layers(x)[0])


def reach(cell: str, lags: range) -> Tensor:
    """The norm of dh_T/dh_1 at each lag."""
    torch.manual_seed(0)
    layers = Recurrent(4, 16, cell=cell, forget_bias=1.0 if cell == "lstm" else None).double()
    x = torch.randn(1, max(lags), 4).double()

    def last(hidden: Tensor, lag: int) -> Tensor:
        state = layers.start(1)
        return layers(x[:, :lag], type(state)(hidden, state.cell))[1].hidden.flatten()

    first = torch.zeros(1, 1, 16).double()
    return torch.stack([torch.autograd.functional.jacobian(lambda h, n=n: last(h, n), first).norm() for n in lags])


def test_gradients_of_an_lstm_reach_further():
    lags = range(25, 101, 25)
    elman, lstm = reach("elman", lags), reach("lstm", lags)
    assert lstm[-1] > 10 * elman[-1]
    rates = (elman[1:] / elman[:-1]).log() / 25  # geometric: about the same rate at every lag
    assert (rates < -0.2).all() and rates.max() - rates.min() < 0.2


def test_only_real_tokens_are_reversed():
    real = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    tokens = torch.tensor([[1, 2, 3, 9], [9, 1, 2, 3], [1, 9, 2, 3], [9, 9, 9, 9]])
    index = reversal(real)
    turned = tokens.gather(1, index)
    assert turned.tolist() == [[3, 2, 1, 9], [9, 3, 2, 1], [3, 9, 2, 1], [9, 9, 9, 9]]
    assert torch.equal(turned.gather(1, index), tokens)


def test_invalid_input_is_refused():
    with pytest.raises(InvalidOption, match="cell must be one of elman, lstm, gru, not 'rnn'"):
        Recurrent(5, 7, cell="rnn")
    with pytest.raises(InvalidOption, match="forget_bias needs a forget gate, which only cell lstm has, not gru"):
        Recurrent(5, 7, cell="gru", forget_bias=1.0)
    layers = Recurrent(5, 7)
    with pytest.raises(InvalidInput, match=r"x must be \(batch, length, features 5\), not \(2, 3, 4\)"):
        layers(torch.zeros(2, 3, 4))
    with pytest.raises(InvalidInput, match="x has no tokens; give at least one"):
        layers(torch.zeros(2, 0, 5))
    with pytest.raises(InvalidInput, match="the state is of batch 3, and x of 2"):
        layers(torch.zeros(2, 1, 5), layers.start(3))
    with pytest.raises(InvalidInput, match=r"key_mask must be boolean.*try key_mask.bool\(\)"):
        layers(torch.zeros(2, 3, 5), key_mask=torch.ones(2, 3))
    with pytest.raises(InvalidInput, match=r"key_mask must be \(batch, length\) \(2, 3\), not \(2, 4\)"):
        layers(torch.zeros(2, 3, 5), key_mask=torch.ones(2, 4, dtype=torch.bool))
    both = Recurrent(5, 7, bidirectional=True)
    with pytest.raises(Unsupported, match="bidirectional layers cannot continue from a state"):
        both(torch.zeros(2, 3, 5), both.start(2))
