"""Shape annotations hold: the library runs with them checked, and a wrong shape is caught."""

import subprocess
import sys

import pytest

# In a process of its own, because the hook must stand before longspan is imported.
CODE = """
import sys
import types

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep673Exception

unchecked = []
strict = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as everywhere in typing


def check(function):
    try:
        return strict(function)
    except BeartypeDecorHintPep673Exception:  # beartype knows `Self` only where it is given the whole class
        unchecked.append(function.__qualname__)
        return function


sys.modules["checker"] = types.ModuleType("checker")
sys.modules["checker"].check = check
hook = jaxtyping.install_import_hook("longspan", "checker.check")

import torch
from jaxtyping import jaxtyped

from longspan.attention import build, find, names
from longspan.attention.mechanisms.softmax import SCORES
from longspan.shapes import Output, Queries, Values

torch.set_num_threads(1)
ran = []


def width(stream, length, key_heads):
    if stream.kind == "heads":
        return torch.randn(2, 4 if stream.like == "q" else key_heads, length, 8)
    if stream.kind == "mask":
        return torch.arange(length).expand(2, length) < 2
    if stream.kind == "ids":
        return torch.arange(length).expand(2, length) % 2
    return torch.randn(2, length, 32)


def run(name, **options):
    supports = find(name).supports
    for causal in (False, True):
        if not (supports.causal if causal else supports.bidirectional):
            continue
        for masked in (False, True):
            for key_heads in (4, 2) if supports.grouped else (4,):
                sizes = {"heads": 4, "head_dim": 8, "max_length": 256, "key_heads": key_heads}
                attention = build(name, **sizes, causal=causal, **options)
                q, k, v = (torch.randn(2, heads, 13, 8) for heads in (4, key_heads, key_heads))
                side = {"streams": {stream.name: width(stream, 13, key_heads) for stream in attention.streams}}
                if masked and supports.key_mask:
                    side["key_mask"] = torch.arange(13) < torch.tensor([[13], [9]])
                if masked and supports.bias:
                    side["bias"] = torch.randn(4, 25)
                assert attention(q, k, v, **side).shape == (2, 4, 13, 8)
                attention.oracle(q, k, **side)
                if attention.supports.map:
                    attention.weights(q, k, **side)
                attention.reference(q, k, v, **side)
                attention.cost(13, 13)
                if causal and supports.streaming:
                    out, state = attention.extend(q, k, v, attention.start(2), **side)
                    assert out.shape == (2, 4, 13, 8)
    ran.append(name)


for name in names():
    run(name)
for score in SCORES:
    run("softmax", score=score)
run("window", window=3, dilation=(1, 2, 1, 3))
run("etc", global_tokens=3, radius=2, hard="both")
run("memory_compressed", layer="local", block=4)
assert set(ran) == set(names())
assert all(name.endswith(("select", "apart", "detach")) for name in unchecked), unchecked

# The check is really on, in the library ...
from longspan.attention.base import Shape

attention = find("softmax")(Shape(heads=4, head_dim=8))
attention.attend = lambda q, k, v, extras: v[:, :, :-1]  # one row short
q = torch.randn(2, 4, 13, 8)
try:
    attention(q, q, q)
except jaxtyping.TypeCheckError as error:
    assert "Attention.forward" in str(error), error
else:
    raise SystemExit("a forward that gives one row too few was not caught")


# ... and in a function annotated with the same shapes.
@jaxtyped(typechecker=beartype)
def good(q: Queries, v: Values) -> Output:
    return q.new_zeros(*q.shape[:3], v.shape[3])


@jaxtyped(typechecker=beartype)
def bad(q: Queries, v: Values) -> Output:
    return v


good(torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 7, 3))
bad(torch.zeros(2, 4, 7, 8), torch.zeros(2, 4, 7, 3))  # here the shapes happen to agree
for q, v in (
    (torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 7, 3)),  # another length
    (torch.zeros(2, 4, 7, 8), torch.zeros(2, 2, 7, 3)),  # other heads
):
    try:
        bad(q, v)
    except jaxtyping.TypeCheckError:
        continue
    raise SystemExit("a wrong return shape was not caught")
try:
    good(torch.zeros(2, 4, 5, 8, dtype=torch.long), torch.zeros(2, 4, 7, 3))
except jaxtyping.TypeCheckError:
    pass
else:
    raise SystemExit("a wrong type was not caught")
print("ran", *sorted(set(ran)))
"""


@pytest.mark.slow
def test_every_mechanism_runs_with_its_shapes_checked():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("ran ") and {"softmax", "window"} <= set(done.stdout.split())
