"""Names of implementations: one for equal settings, options checked when they are registered."""

import subprocess
import sys
from typing import Any

import pytest
from tests.hub.transformers_interface.families import family

from longspan.errors import InvalidOption, LongspanError, UnknownName
from longspan.hub import register
from longspan.hub.transformers_interface.names import Implementation


@pytest.mark.parametrize(
    ("mechanism", "options", "name"),
    [
        ("performer", {}, "longspan:performer"),
        ("window", {"window": 256}, "longspan:window?window=256"),
        ("window", {"window": 8, "dilation": (1, 2)}, "longspan:window?dilation=1,2&window=8"),
        ("window", {"dilation": (3,)}, "longspan:window?dilation=3,"),
        ("performer", {"kind": "relu"}, "longspan:performer?kind=relu"),
        ("linear", {"layers": 1, "packing": False}, "longspan:linear?layers=1,&packing=false"),
        ("cosformer", {"max_length": 99}, "longspan:cosformer?max_length=99"),
        ("softmax", {"scale": 0.5}, "longspan:softmax?scale=0.5"),
    ],
)
def test_a_name_and_back(mechanism: str, options: dict[str, Any], name: str) -> None:
    assert register(mechanism, **options) == name
    assert Implementation.read(name) == Implementation.of(mechanism, options)
    assert register(name) == name


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("longspan:windw", UnknownName, "no attention is called 'windw': did you mean 'window'?"),
        ("longspan:window?windw=3", InvalidOption, "window has no option 'windw': did you mean 'window'?"),
        ("longspan:window?window=0", InvalidOption, "option window must be at least 1, not 0"),
        ("longspan:window?window", InvalidOption, "options are written key=value and joined by &, each once"),
        ("longspan:window?window=3&window=4", InvalidOption, "'window=4' is not"),
        ("longspan:linear?layers=-1", InvalidOption, "layers are numbers from 0 on, not"),
        ("longspan:linear?max_length=0", InvalidOption, "max_length must be an int of at least 1, not 0"),
        ("longspan:linear?packing=3", InvalidOption, "packing must be true or false, not 3"),
        ("longspan:window?dropout=0.1", InvalidOption, "leave out dropout"),
    ],
)
def test_a_wrong_name_is_refused(name: str, kind: type[Exception], message: str) -> None:
    model = family("bert")
    with pytest.raises(kind) as by_model:
        model.set_attn_implementation(name)
    assert message in str(by_model.value)


def test_one_spelling() -> None:
    with pytest.raises(LongspanError, match=r"write 'longspan:window\?dilation=2&window=3' for 'longspan:window\?w"):
        family("bert").set_attn_implementation("longspan:window?window=3&dilation=2")


def test_every_mechanism_has_a_name() -> None:
    from longspan.attention.registry import ATTENTION

    assert {f"longspan:{name}" for name in ATTENTION.entries} <= set(register())


def test_longspan_does_not_import_transformers() -> None:
    code = "import sys, longspan, longspan.hub; print('transformers' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
