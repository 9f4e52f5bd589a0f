"""The code that advice prints runs as it stands."""

import tomllib

import pytest

from longspan.attention import names
from longspan.measure.requirements import Requirements, candidates
from longspan.measure.usage import python, recipe
from longspan.models import build

SIZE = {"length": 256, "heads": 2, "head_dim": 8}
QUESTIONS = {
    "plain": Requirements(**SIZE, images=True),
    "causal": Requirements(**SIZE, causal=True, batch=2),
    "decoding": Requirements(**SIZE, decode=True),
    "cross": Requirements(**SIZE, keys=300, padding=True),
}
ASKED = [(kind, case) for kind, question in QUESTIONS.items() for case in candidates(question)[0]]


@pytest.mark.parametrize(("kind", "case"), ASKED, ids=[f"{kind}-{case.mechanism}" for kind, case in ASKED])
def test_the_printed_code_runs_and_builds_the_case(kind: str, case):
    found: dict[str, object] = {}
    exec(python(case), found)
    expected = {"plain": (1, 256, 16), "causal": (2, 256, 16), "decoding": (1, 1, 16), "cross": (1, 256, 16)}
    assert tuple(found["y"].shape) == expected[kind]
    built = found["attention"]
    assert built.causal == case.causal and all(
        getattr(built.options, name) == case.options[name] for name in case.options
    )


def test_every_mechanism_is_measured_at_least_once():
    assert {case.mechanism for _, case in ASKED} == set(names())


@pytest.mark.parametrize("name", ["window", "reformer", "routing", "axial"])
def test_the_line_of_a_recipe_builds_a_model(name: str):
    case = Requirements(length=4096, causal=True).case(name)
    line = recipe(case)
    assert line is not None
    body = {"vocabulary": 8, "width": 16, "heads": 2, "layers": 2, "hidden": 16, "max_length": 4096}
    assert build("decoder", **body, **tomllib.loads(line)).name == "decoder"
    assert recipe(Requirements(length=4096, keys=8).case("softmax")) is None
    assert tomllib.loads(recipe(Requirements(length=32768).case("reformer")) or "") == {
        "attention": [{"name": "reformer", "buckets": [32, 32]}]
    }
    assert tomllib.loads(recipe(Requirements(length=4096).case("axial")) or "") == {
        "attention": [{"name": "axial", "width": 64, "axis": -1}, {"name": "axial", "width": 64, "axis": 0}]
    }
