"""Position codes: similarity, shift, frequencies, biases, and models with changed positions."""

import pytest
import torch
from tests.inspect.measures.small import loaded, subject

from longspan.errors import InvalidOption, Unsupported
from longspan.inspect.measures.position_changes import measure_changes, moved
from longspan.inspect.measures.positions import (
    bare_positions,
    by_offset,
    codes,
    model_positions,
    share_by_offset,
    shift_error,
    similarity,
)
from longspan.nn.positions import SinusoidalPositions


def test_sinusoidal_codes_know_the_offset_alone():
    table, shift = bare_positions("sinusoidal:384", 200)
    cosines = table.values["cosine_by_offset"]
    assert [cosines[offset] for offset in (1, 10, 100)] == pytest.approx([0.973, 0.678, 0.439], abs=5e-4)
    assert table.values["share_by_offset"]["this table"] == pytest.approx(1)
    assert shift.values["shifts"]["1"]["paper"] < 1e-10 < 0.5 < shift.values["shifts"]["1"]["shifted_exponent"]


@pytest.mark.parametrize("shift", [1, 7, 50])
def test_the_slide_s_exponent_has_no_linear_shift(shift: int):
    assert shift_error(64, shift, "interleaved") < 1e-9 and shift_error(64, shift, "shifted_exponent") > 0.5


def test_a_random_table_knows_nothing_once_the_main_diagonal_is_left_out():
    generator = torch.Generator().manual_seed(0)
    matrix = similarity(torch.randn(512, 384, generator=generator, dtype=torch.float64))
    assert share_by_offset(matrix) < 0.01
    assert by_offset(matrix)[0] == pytest.approx(1)
    assert codes(SinusoidalPositions(6), 4).dtype == torch.float64


def test_rotary_frequencies():
    (found,) = bare_positions("rotary:64", 2048)
    cosines = found.values["mean_cosine"]
    wanted = {"base 10000": (0.966, 0.658, 0.559, 0.279), "base 100000": (0.971, 0.722, 0.559, 0.398)}
    for name, numbers in wanted.items():
        assert [cosines[name][key] for key in ("1", "10", "100", "1000")] == pytest.approx(numbers, abs=5e-4)
    assert found.values["turns"][0] == pytest.approx(2048 / (2 * torch.pi))


def test_scaled_frequencies_stand_beside_the_plain_ones():
    scaling = {"kind": "linear", "factor": 4.0}
    (found,) = model_positions(loaded("decoder", position="rotary", rotary_scaling=scaling).model, 64)
    assert {"base 10000 scaled", "base 10000 unscaled"} <= set(found.values["mean_cosine"])
    plain = bare_positions("rotary:8", 64)[0].values["turns"]
    assert found.values["turns"] == pytest.approx([turns / 4 for turns in plain])


def test_biases_by_offset():
    (found,) = bare_positions("alibi:8", 16)
    assert found.values["table"][0][0] == pytest.approx(-0.5 * 15) and found.values["table"][7][15] == 0
    (learned,) = model_positions(loaded("encoder", position="relative").model, None)
    assert learned.title == "Bias by offset (RelativeBias)" and len(learned.values["table"]) == 2


@pytest.mark.parametrize(("position", "matters"), [("rotary", False), ("learned", True), ("sinusoidal", True)])
def test_only_absolute_positions_care_about_a_shift(position: str, matters: bool):
    options = {"max_length": 200} if position == "learned" else {}
    asked = subject("decoder", position=position, **options)
    asked.model.double()
    found = measure_changes(asked).values["changes"]
    change = found["shifted by 64"]["output_change"]
    assert change > 1e-4 if matters else change < 1e-12
    assert found["as they are"]["output_change"] == 0 and found["all 0"]["output_change"] > 1e-4


def test_moved_positions_are_those_of_the_forward_pass():
    asked = subject("decoder", position="rotary")
    model, ids = asked.model.double(), asked.passages.ids
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), moved(model, order):
        changed = model(ids)
    torch.testing.assert_close(changed, model(ids, positions=order.expand(len(ids), -1)))


def test_what_is_refused():
    with pytest.raises(InvalidOption, match="expected rotary:NUMBER, such as rotary:64, got 'rotary:x'"):
        bare_positions("rotary:x", 8)
    with pytest.raises(Unsupported, match="this 'decoder' has no position codes"):
        model_positions(loaded("decoder", position="none").model, None)
    with pytest.raises(Unsupported, match="biases depend on offsets alone"):
        measure_changes(subject("decoder", position="alibi"))
