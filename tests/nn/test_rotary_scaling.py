"""Scaled rotary frequencies, by what each kind promises; tests/hub/test_llama.py has Hugging Face's tables."""

import math

import pytest
import torch

from longspan.errors import InvalidOption
from longspan.models import build
from longspan.nn.rotary import Rotary
from longspan.nn.rotary_scaling import RotaryScaling, amplitude, frequencies

PLAIN = frequencies(64, 10000.0)
TURNS = 8192 * PLAIN / (2 * math.pi)


def test_linear_is_the_same_as_nearer_positions():
    x = torch.randn(1, 2, 5, 64, dtype=torch.float64)
    scaled = Rotary(64, scaling=RotaryScaling(kind="linear", factor=4.0))
    near = Rotary(64)(x[:, :, [0, 4]], positions=torch.tensor([[0, 1]]))
    torch.testing.assert_close(scaled(x)[:, :, [0, 4]], near)


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_slow_turns_are_divided_and_fast_ones_left_alone(kind: str):
    scaling = RotaryScaling(kind=kind, factor=8.0, original_length=8192, low=1.0, high=4.0, round_bounds=False)
    ratio = PLAIN / frequencies(64, 10000.0, scaling)
    torch.testing.assert_close(ratio[TURNS > 4], torch.ones_like(ratio[TURNS > 4]))
    torch.testing.assert_close(ratio[TURNS < 1], torch.full_like(ratio[TURNS < 1], 8.0))
    between = ratio[(TURNS > 1) & (TURNS < 4)]
    assert len(between) and ((between > 1) & (between < 8)).all() and (between.diff() > 0).all()


def test_only_yarn_changes_the_amplitude():
    assert amplitude(None) == amplitude(RotaryScaling(factor=4.0)) == 1.0
    assert amplitude(RotaryScaling(kind="yarn", factor=4.0, original_length=16)) == pytest.approx(1.1386, abs=1e-4)
    scaling = RotaryScaling(kind="yarn", factor=4.0, original_length=16, amplitude=2.0)
    x = torch.randn(1, 1, 3, 8)
    torch.testing.assert_close(Rotary(8, scaling=scaling)(x).norm(dim=-1), 2 * x.norm(dim=-1))


def test_decoding_continues_with_the_same_angles():
    scaling = {"kind": "llama3", "factor": 4.0, "original_length": 8}
    model = build("decoder", width=16, heads=2, layers=2, position="rotary", rotary_scaling=scaling).double().eval()
    ids = torch.randint(0, 256, (2, 12))
    state = model.start(2)
    first, state = model.extend(ids[:, :5], state)
    second, _ = model.extend(ids[:, 5:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), model(ids))


@pytest.mark.parametrize(
    "given,said",
    [
        ({"kind": "dynamic"}, "one of linear, llama3, yarn"),
        ({"kind": "llama3"}, "give original_length"),
        ({"kind": "yarn", "original_length": 8, "low": 4.0, "high": 1.0}, "low 4 must be under high 1"),
        ({"factor": 0.5}, "at least 1"),
    ],
)
def test_invalid_options_are_refused(given: dict, said: str):
    with pytest.raises(InvalidOption, match=said):
        RotaryScaling(**given)
