"""The recurrent language model and the regressor of series."""

import math
from datetime import date
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build, load
from longspan.models.classics.recurrent import (
    RecurrentLanguageModel,
    SeriesRegressor,
    calendar_features,
    cyclic,
    fold,
    text_loss,
    unroll,
)
from longspan.nn.recurrent import CELLS

TINY = {"vocabulary": 11, "width": 8, "layers": 2, "init_bound": 0.5}


def ids(batch: int = 2, length: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_the_medium_model():
    with torch.device("meta"):
        model = build("recurrent", vocabulary=10_000)
        tied = build("recurrent", vocabulary=10_000, tied=True)
    layers = 2 * (4 * 650 * (650 + 650) + 2 * 4 * 650)
    assert sum(p.numel() for p in model.parameters()) == 2 * 10_000 * 650 + 10_000 + layers
    assert sum(p.numel() for p in tied.parameters()) == 10_000 * 650 + layers
    assert model.recurrent.dropout.p == model.recurrent.layers.dropout == 0.5
    small = RecurrentLanguageModel.build(**{**TINY, "init_bound": 0.05})
    assert all(p.abs().max() <= 0.05 for p in small.parameters())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("tied", [False, True])
def test_reading_in_pieces_equals_reading_at_once(cell: str, tied: bool):
    model = RecurrentLanguageModel.build(**TINY, cell=cell, tied=tied).double().eval()
    text = ids()
    whole = model(text)
    for pieces in ([13], [1] * 13, [4, 1, 6, 2]):
        state, seen = model.start(2), []
        for piece in text.split(pieces, dim=1):
            logits, state = model.extend(piece, state)
            seen.append(logits)
        torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-9)
        assert state.length == 13
    assert state.bytes == model.start(2).bytes == 2 * 2 * 8 * 8 * (2 if cell == "lstm" else 1)
    last, _ = model.extend(text, model.start(2), last=True)
    torch.testing.assert_close(last, whole[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_the_future_changes_nothing(cell: str):
    model = RecurrentLanguageModel.build(**TINY, cell=cell).eval()
    text = ids()
    for place in (1, 7, 12):
        other = text.clone()
        other[:, place] = (other[:, place] + 1) % 11
        assert torch.equal(model(text)[:, :place], model(other)[:, :place])
        assert not torch.equal(model(text)[:, place:], model(other)[:, place:])


@pytest.mark.parametrize("cell", CELLS)
def test_a_left_padded_row_equals_the_row_alone(cell: str):
    model = RecurrentLanguageModel.build(**TINY, cell=cell, learned_start=True).double().eval()
    assert model.left_padding
    text = ids(batch=1, length=6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), text], 1)
    mask = torch.arange(10)[None] >= 4
    torch.testing.assert_close(model(padded, key_mask=mask)[:, 4:], model(text), rtol=0, atol=1e-10)
    state, seen = model.start(1), []
    for piece, real in zip(padded.split([3, 2, 5], 1), mask.split([3, 2, 5], 1)):
        logits, state = model.extend(piece, state, key_mask=real)
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen, 1)[:, 4:], model(text), rtol=0, atol=1e-10)


def test_the_loss_of_streams_does_not_depend_on_the_cuts():
    model = RecurrentLanguageModel.build(**TINY)
    streams = fold(ids(batch=1, length=803)[0], 4)
    assert streams.shape == (4, 200)
    by_35, whole = (math.exp(text_loss(model, streams, steps=steps)) for steps in (35, 200))
    assert by_35 == pytest.approx(whole, abs=1e-4)
    blocks = math.exp(text_loss(model, streams, steps=35, stateful=False))
    assert abs(blocks - whole) > 1e-3  # another number: the first tokens of each block lack their context
    assert model.training


def test_targets_are_inputs_shifted_by_one():
    pieces = list(unroll(torch.arange(10)[None], 4))
    assert [x[0].tolist() for x, _ in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [y[0].tolist() for _, y in pieces] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert fold(torch.arange(11), 2).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_detached_state_keeps_the_graph_short():
    model = RecurrentLanguageModel.build(**{**TINY, "dropout": 0.0})
    state = model.start(2)
    for inputs, targets in unroll(ids(), 4):  # a second backward pass through an old graph would raise
        logits, state = model.extend(inputs, state.detach())
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()


def test_bad_input():
    model = RecurrentLanguageModel.build(**TINY)
    with pytest.raises(InvalidInput, match="got 11 in sample 0 at position 0"):
        model(torch.tensor([[11]]))
    with pytest.raises(InvalidInput, match="reads no source"):
        model.start(1, source=ids())
    with pytest.raises(InvalidInput, match="x has no tokens; give at least one"):
        model.extend(ids(length=0), model.start(2))
    with pytest.raises(InvalidOption, match="tied needs an embedding as wide as the layers: 4 is not 8"):
        RecurrentLanguageModel.build(**TINY, embedding=4, tied=True)
    with pytest.raises(InvalidInput, match="8 streams of at least 2 tokens need a text of 16 tokens"):
        fold(torch.arange(15), 8)


def test_a_folder_stores_the_whole_model(tmp_path: Path):
    for number, options in enumerate(({"cell": "gru", "embedding": 5}, {"tied": True, "forget_bias": 1.0})):
        model = RecurrentLanguageModel.build(**TINY, **options).double().eval()
        model.save(tmp_path / str(number))
        again = load(tmp_path / str(number))
        assert again.options == model.options and torch.equal(again(ids()), model(ids()))


def sines(count: int, length: int, noise: float = 0.1) -> Tensor:
    phase = torch.rand(count, 1) * 2 * math.pi
    clean = torch.sin(phase + torch.arange(length) * 2 * math.pi / 20)
    return (100 + 5 * (clean + noise * torch.randn(count, length)))[..., None]


def test_errors_accumulate_when_predictions_are_read_back():
    model = SeriesRegressor.build(width=16, forget_bias=1.0)
    train, test = sines(16, 60), sines(8, 100)
    model.fit_scale(train)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(120):
        optimiser.zero_grad()
        loss = model.loss(train)
        loss.backward()
        optimiser.step()
    assert loss < 0.1  # of a variance of 1
    errors = model.eval().horizon_errors(test, 50)
    assert errors.teacher_forced.shape == errors.free_running.shape == (50,)
    torch.testing.assert_close(errors.free_running[0], errors.teacher_forced[0])
    assert errors.free_running[-10:].mean() > 1.2 * errors.teacher_forced.mean()
    assert errors.teacher_forced.mean() < 0.3 * test.var()


def test_a_forecast_reads_its_own_values():
    model = SeriesRegressor.build(width=8, known=2, init_bound=0.5).double()
    series, known = torch.randn(2, 5, 1).double(), torch.randn(2, 7, 2).double()
    model.fit_scale(series, known[:, :5])
    ahead = model.forecast(series, 3, known)
    longer = series
    for step in range(3):
        longer = torch.cat([longer, model(longer, known[:, : 5 + step])[:, -1:]], 1)
    torch.testing.assert_close(ahead, longer[:, 5:], rtol=0, atol=1e-12)
    with pytest.raises(InvalidInput, match=r"length \+ horizon - 1 = 7 time steps, not 5"):
        model.forecast(series, 3, known[:, :5])
    with pytest.raises(InvalidInput, match=r"known must be \(batch, length, known\) \(2, 5, 2\), not none"):
        model(series)


def test_the_scale_is_of_the_training_data_and_is_saved(tmp_path: Path):
    model = SeriesRegressor.build(width=8, values=2).eval()
    train = torch.stack([torch.arange(10.0), torch.full((10,), 0.1)], -1)[None]
    model.fit_scale(train)
    assert model.mean.tolist() == pytest.approx([4.5, 0.1]) and model.deviation[1] == 1  # a constant is only centred
    assert model.deviation[0] == pytest.approx(train[0, :, 0].std(correction=0).item())
    model.save(tmp_path)
    again = load(tmp_path)
    assert torch.equal(again.mean, model.mean) and torch.equal(again(train), model(train))


def test_the_units_of_the_data_do_not_matter():
    model, train = SeriesRegressor.build(width=8).double(), torch.randn(2, 9, 1).double()
    model.fit_scale(train)
    guess, loss = model(train), model.loss(train)
    model.fit_scale(train * 100 - 7)
    torch.testing.assert_close(model(train * 100 - 7), guess * 100 - 7)
    torch.testing.assert_close(model.loss(train * 100 - 7), loss)


def test_padding_of_a_series_changes_nothing():
    model = SeriesRegressor.build(width=8, init_bound=0.5).double()
    series = torch.randn(2, 7, 1).double()
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, :3] = False
    model.fit_scale(series, key_mask=mask)
    assert model.mean[0] == pytest.approx(series[mask].mean().item())
    short = series[1:, 3:]
    torch.testing.assert_close(model(series, key_mask=mask)[1:, 3:], model(short), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.loss(series[1:], key_mask=mask[1:]), model.loss(short))
    both = (model.loss(series[:1]) * 6 + model.loss(short) * 3) / 9
    torch.testing.assert_close(model.loss(series, key_mask=mask), both)


def test_calendar_features_are_cyclic():
    rows = calendar_features([date(2023, 12, 31), date(2024, 1, 1), date(2024, 7, 1)])
    assert rows.shape == (3, 7) and rows[:, 6].tolist() == [2023, 2024, 2024]
    assert (rows[0, :6] - rows[1, :6]).norm() < (rows[2, :6] - rows[1, :6]).norm()
    torch.testing.assert_close(rows[1, :4], torch.tensor([0.0, 1, 0, 1]))
    torch.testing.assert_close(cyclic(torch.tensor([0.0, 0.25])), torch.tensor([[0.0, 1], [1, 0]]), rtol=0, atol=1e-6)
