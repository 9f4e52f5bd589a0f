"""Options are checked when they are created; errors are one line."""

from dataclasses import FrozenInstanceError, dataclass

import pytest

from longspan import config
from longspan.config import Options, option
from longspan.errors import InvalidInput, InvalidOption, LongspanError, UnknownName, Unsupported, suggest


@dataclass(frozen=True, kw_only=True)
class Sample(Options):
    count: int = option(3, "how many", low=1, high=9)
    rate: float = option(0.5, "how fast", low=0.0)
    most: int = option(4, "at the most", high=7)
    kind: str = option("a", "which", choices=("a", "b"))
    spread: int | tuple[int, ...] = option(1, "one or several", low=1, high=4)
    limit: float | None = option(None, "none or a number", low=1)
    flag: bool = option(False, "whether")
    maybe: str | None = option(None, "which, or none", choices=("x", "y"))
    memory: float = option(0.9, "under one", low=0, below=1)
    passes: float | None = option(None, "some", above=0, high=1e6)
    shift: float = option(0.0, "any")
    seed: int = option(0, "any whole number")


def test_defaults_fit_themselves():
    sample = Sample()
    assert (sample.count, sample.rate, sample.kind, sample.spread, sample.limit) == (3, 0.5, "a", 1, None)


@pytest.mark.parametrize(
    "given",
    [
        {"count": 1},
        {"count": 9},
        {"rate": 0},
        {"rate": 2},
        {"most": -100},
        {"most": 7},
        {"kind": "b"},
        {"spread": 4},
        {"spread": (1, 4, 2)},
        {"limit": 1},
        {"limit": 1.5},
        {"limit": None},
        {"flag": True},
        {"maybe": "y"},
        {"maybe": None},
        {"memory": 0},
        {"passes": 1e-9},
        {"passes": 1e6},
        {"shift": -1e300},
        {"seed": 2**63 - 1},
    ],
    ids=str,
)
def test_what_fits(given: dict):
    sample = config.make(Sample, given, "sample")
    assert all(getattr(sample, name) == value for name, value in given.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "option count must be 1 to 9, not 0"),
        ({"count": 10}, "option count must be 1 to 9, not 10"),
        ({"count": 2.0}, "option count must be int, not 2.0 (float)"),
        ({"count": True}, "option count must be int, not True (bool)"),
        ({"count": "3"}, "option count must be int, not '3' (str)"),
        ({"count": None}, "option count must be int, not None (NoneType)"),
        ({"rate": -0.1}, "option rate must be at least 0, not -0.1"),
        ({"rate": True}, "option rate must be float, not True (bool)"),
        ({"rate": float("nan")}, "option rate must be at least 0, not nan"),
        ({"most": 8}, "option most must be at most 7, not 8"),
        ({"kind": "c"}, "option kind must be one of a, b, not 'c'"),
        ({"kind": 1}, "option kind must be str, not 1 (int)"),
        ({"spread": 0}, "option spread must be 1 to 4, not 0"),
        ({"spread": (1, 5)}, "option spread must be 1 to 4, not (1, 5)"),
        (
            {"spread": "1,2"},
            "option spread must be int or a tuple of int, not '1,2' (str); write a list in brackets, text in quotes: "
            '[1, 2] or ["a", "b"]',
        ),
        ({"spread": ()}, "option spread must be int or a tuple of int, not () (tuple)"),
        ({"spread": (1, "2")}, "option spread must be int or a tuple of int, not (1, '2') (tuple)"),
        ({"spread": (1, True)}, "option spread must be int or a tuple of int, not (1, True) (tuple)"),
        ({"limit": 0.5}, "option limit must be at least 1, not 0.5"),
        ({"limit": "no"}, "option limit must be float or none, not 'no' (str)"),
        ({"flag": 1}, "option flag must be bool, not 1 (int)"),
        ({"memory": 1}, "option memory must be at least 0 and below 1, not 1"),
        ({"passes": 0}, "option passes must be above 0 and at most 1e+06, not 0"),
        ({"passes": float("inf")}, "option passes must be above 0 and at most 1e+06, not inf"),
        ({"rate": float("inf")}, "option rate must be a finite number, not inf"),
        ({"shift": float("nan")}, "option shift must be a finite number, not nan"),
        ({"shift": 10**400}, f"option shift must fit into 64 bits, not {10**400}"),
        ({"seed": 2**70}, "option seed must fit into 64 bits, not 1180591620717411303424"),
        ({"maybe": "z"}, "option maybe must be one of x, y, not 'z'"),
    ],
    ids=str,
)
def test_what_does_not_fit(given: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        config.make(Sample, given, "sample")
    assert str(raised.value) == message
    with pytest.raises(InvalidOption):
        Sample(**given)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(InvalidOption) as raised:
        config.make(Sample, {"cuont": 3}, "sample")
    assert str(raised.value) == "sample has no option 'cuont': did you mean 'count'?"
    with pytest.raises(InvalidOption) as raised:
        config.make(Sample, {"zzz": 3}, "sample")
    assert str(raised.value) == (
        "sample has no option 'zzz': known: count, flag, kind, limit, maybe, memory, most, passes, rate, seed, "
        "shift, spread"
    )


def test_an_owner_without_options():
    with pytest.raises(InvalidOption) as raised:
        config.make(Options, {"any": 1}, "bare")
    assert str(raised.value) == "bare has no option 'any': it has no options"
    assert config.make(Options, {}, "bare") == Options()


@dataclass(frozen=True, kw_only=True)
class Renamed(Options):
    size: int = option(3, "how large", low=1, formerly="largeness")
    inner: Sample = option(Sample, "nested")


def test_an_option_is_read_by_its_former_name():
    assert config.make(Renamed, {"largeness": 5}, "renamed") == Renamed(size=5)
    assert config.current_names(Renamed, {"largeness": 5, "other": 1}, "renamed") == {"size": 5, "other": 1}
    assert config.plain(Renamed(size=5))["size"] == 5  # written by its current name only
    assert [item["name"] for item in config.describe(Renamed)] == ["size", "inner"]
    with pytest.raises(InvalidOption) as raised:
        config.make(Renamed, {"largeness": 0}, "renamed")
    assert str(raised.value) == "option size must be at least 1, not 0"


def test_an_option_given_by_both_its_names_is_an_error():
    with pytest.raises(InvalidOption) as raised:
        config.make(Renamed, {"largeness": 5, "size": 5}, "renamed")
    assert str(raised.value) == "renamed has both size and its former name largeness; keep size"


def test_options_are_frozen_and_by_keyword():
    with pytest.raises(FrozenInstanceError):
        Sample().count = 4
    with pytest.raises(TypeError):
        Sample(4)
    assert Sample(count=4) == Sample(count=4) != Sample()
    assert hash(Sample(count=4)) == hash(Sample(count=4))


def test_describe_is_what_the_command_line_prints():
    described = config.describe(Sample)
    assert [item["name"] for item in described] == [
        "count",
        "rate",
        "most",
        "kind",
        "spread",
        "limit",
        "flag",
        "maybe",
        "memory",
        "passes",
        "shift",
        "seed",
    ]
    assert described[0] == {
        "name": "count",
        "type": "int",
        "default": 3,
        "help": "how many",
        "low": 1,
        "high": 9,
        "choices": None,
    }
    assert described[3]["choices"] == ("a", "b")
    assert [item["type"] for item in described[4:8]] == [
        "int or a tuple of int",
        "float or none",
        "bool",
        "str or none",
    ]
    assert described[8]["below"] == 1 and described[9]["above"] == 0
    assert config.describe(Options) == []


def test_suggest():
    assert suggest("windo", ["window", "softmax"]) == "did you mean 'window'?"
    assert suggest("qqq", ["window", "softmax"]) == "known: softmax, window"
    assert suggest("qqq", []) == "none are known"


@pytest.mark.parametrize(
    ("name", "known", "nearest"),
    [
        ("gtp2", ["gpt2", "bert"], "gpt2"),  # exchanged
        ("windows", ["window", "sparse"], "window"),
        ("half", ["halves", "none"], "halves"),
        ("sparse-enwik", ["sparse", "sparse-enwik8"], "sparse-enwik8"),
        ("Longformer", ["longformer", "linformer"], "longformer"),
        ("performr", ["reformer", "performer"], "performer"),
    ],
)
def test_a_slip_of_the_pen(name: str, known: list[str], nearest: str):
    assert suggest(name, known) == f"did you mean {nearest!r}?"


@pytest.mark.parametrize(
    ("name", "other"),
    [("modernbert", "camembert"), ("mamba", "mbart"), ("t5", "led"), ("deberta", "albert"), ("opt", "gpt2")],
)
def test_another_thing_is_not_suggested(name: str, other: str):
    assert suggest(name, [other]) == f"known: {other}"


def test_of_many_names_the_nearest_five_are_listed():
    many = [f"{kind}-{number}" for kind in ("gpt", "bert", "vision") for number in range(40)]
    assert suggest("visual", many) == "of 120 names, the nearest are vision-0, vision-1, vision-2, vision-3, vision-4"


@pytest.mark.parametrize("kind", [Unsupported, InvalidInput, InvalidOption, UnknownName])
def test_every_error_is_a_longspan_error_and_a_value_error(kind: type):
    assert issubclass(kind, LongspanError) and issubclass(kind, ValueError)
