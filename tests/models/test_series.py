"""A Transformer of series, with any causal attention: no later place is read, and forecasts are the same in any way."""

import pytest
import torch

from longspan.attention import registry as attention
from longspan.audit.settings import small
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build
from longspan.models.series import SeriesTransformer
from longspan.models.series_base import SeriesColumns

CAUSAL = [name for name in attention.names() if attention.find(name).supports.causal]
SIZES = {"layers": 2, "width": 16, "heads": 2, "hidden": 32, "dropout": 0.0, "position": "none"}


def transformer(name: str = "softmax", **options: object) -> SeriesTransformer:
    setting = {"name": name, **small(name)[0]}
    model = build("series_transformer", **{**SIZES, "attention": setting, "max_length": 64, **options})
    assert isinstance(model, SeriesTransformer)
    return model.double().eval()


@pytest.mark.parametrize("name", CAUSAL)
def test_a_forecast_is_the_loop_that_reads_its_own_values(name: str) -> None:
    model = transformer(name, values=2, known=3)
    series, known = torch.randn(2, 12, 2).double(), torch.randn(2, 15, 3).double()
    rows = series
    for _ in range(4):  # the definition: the whole series again, with what was predicted
        ahead = model(rows, known[:, : rows.shape[1]])[:, -1:]
        rows = torch.cat([rows, ahead], 1)
    torch.testing.assert_close(model.forecast(series, 4, known), rows[:, 12:], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", CAUSAL)
def test_no_later_value_is_read(name: str) -> None:
    model = transformer(name)
    series = torch.randn(1, 16, 1).double()
    changed = series.clone()
    changed[:, 10:] += 5
    assert torch.equal(model(series)[:, :10].round(decimals=9), model(changed)[:, :10].round(decimals=9))


@pytest.mark.parametrize("kind", ["series_transformer", "regressor"])
def test_relative_values_know_no_level(kind: str) -> None:
    """A series that is shifted gives the same forecast, shifted."""
    options = SIZES if kind == "series_transformer" else {"width": 8}
    model = build(kind, **options, level="relative", mean=[3.0], deviation=[2.0]).double().eval()
    series = torch.randn(2, 9, 1).double()
    torch.testing.assert_close(model.forecast(series + 100, 3), model.forecast(series, 3) + 100)
    torch.testing.assert_close(model(series + 100), model(series) + 100)
    # By hand: differences from the first value in, a change from the last one out.
    states = model.states((series - series[:, :1]) / 2)
    torch.testing.assert_close(model(series), series + 2 * model.head(states))


def test_statistics_are_options() -> None:
    model = build("series_transformer", **SIZES, values=1, known=1, mean=[3.0, 1.0], deviation=[2.0, 4.0])
    assert model.mean.tolist() == [3.0, 1.0] and model.deviation.tolist() == [2.0, 4.0]
    with pytest.raises(InvalidOption, match="mean must have 2 numbers, values and then known, not 1"):
        build("series_transformer", **SIZES, values=1, known=1, mean=[3.0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(Unsupported, match="series self-attention, layer 0: inducing has no causal form"):
        build("series_transformer", **SIZES, attention="inducing")
    with pytest.raises(InvalidOption, match=r"window \+ horizon - 1 is 40, but max_length is 32"):
        build("series_transformer", **SIZES, max_length=32, columns=SeriesColumns(window=30, horizon=11))
    with pytest.raises(InvalidInput, match="holds at most 8 time steps, and 9 were given"):
        build("series_transformer", **SIZES, max_length=8)(torch.zeros(1, 9, 1))
    with pytest.raises(InvalidOption, match="a model of numbers has no tables"):
        build("series_transformer", **SIZES, segments=2)
