"""What holds for models of every kind and with every mechanism: recomputed activations, mixed precision."""

from collections.abc import Callable

import pytest
import torch
from tests.models.every import KINDS, of_kind, of_mechanism, read
from torch import Tensor

from longspan.attention import registry as attention
from longspan.attention.base import Attention
from longspan.models import registry
from longspan.models.base import CausalModel, Model
from longspan.train.recompute import recompute

COUNTS = {"elmo", "electra"}  # the sizes of their tensors depend on numbers: different words, chosen places
DECIDES = {"reformer", "routing"}  # rounding may change what they choose to read
BUILDS: list[tuple[str, Callable[..., Model]]] = [
    *((name, of_kind) for name in KINDS),
    *((name, of_mechanism) for name in attention.names()),
]
FIXED = [(name, make) for name, make in BUILDS if name not in COUNTS]
every = pytest.mark.parametrize(("name", "make"), BUILDS, ids=[name for name, _ in BUILDS])


def test_every_kind_of_model_is_tested() -> None:
    assert {*KINDS, "word2vec"} == set(registry.names())


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def slopes(model: Model, out: Tensor) -> list[Tensor | None]:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return list(torch.autograd.grad(wide(out).square().mean(), weights, allow_unused=True))


def decodes(model: Model) -> bool:
    return all(part.supports.streaming for part in model.modules() if isinstance(part, Attention) and part.causal)


@every
def test_recomputed_activations_give_the_same_gradients(name: str, make: Callable[..., Model]) -> None:
    found = []
    for again in (False, True):
        model = make(name).double().train()
        if again:
            recompute(model)
        out = read(model, torch.float64)
        extra = model.auxiliary_loss()
        found.append([out, extra, *slopes(model, out if extra is None else out + extra)])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_mixed_precision_is_near_single_precision(name: str, make: Callable[..., Model], dtype: torch.dtype) -> None:
    model = make(name).eval()
    expected = read(model)
    with torch.autocast("cpu", dtype):
        out = read(model)
    true, ours = slopes(model, expected), slopes(model, out)
    for slope in ours:
        assert slope is None or slope.isfinite().all()
    assert out.isfinite().all()
    if name in DECIDES:
        return
    assert (out.float() - expected).norm() < 0.05 * expected.norm()
    size = torch.stack([slope.norm() for slope in true if slope is not None]).norm()
    assert [slope is None for slope in ours] == [slope is None for slope in true]
    gap = torch.stack([(a - b).norm() for a, b in zip(ours, true) if a is not None and b is not None]).norm()
    assert gap < 0.1 * size


@pytest.mark.parametrize(
    ("name", "make"),
    [build for build in BUILDS if build[0] not in COUNTS],
    ids=[n for n, _ in BUILDS if n not in COUNTS],
)
def test_forward_and_decoding_on_meta(name: str, make: Callable[..., Model]) -> None:
    model = make(name)
    expected = read(model).shape
    model = model.to("meta").eval()
    assert model.device.type == "meta"
    out = read(model)
    assert out.device.type == "meta" and out.shape == expected
    if not isinstance(model, CausalModel) or not decodes(model):
        return
    ids = torch.zeros(2, 9, dtype=torch.long, device="meta")
    state = model.start(2, source=ids if model.reads_source else None)
    for piece in ids.split([5, 1, 3], dim=1):
        logits, state = model.extend(piece, state)
        assert logits.device.type == "meta" and logits.shape[:2] == piece.shape


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_positions_inside_attention_under_autocast(position: str) -> None:
    """Rotated heads are float32 beside values that are rounded; decoding agrees too."""
    model = of_kind("decoder", position=position).eval()
    ids = torch.arange(42).view(2, 21) % 11
    with torch.no_grad():
        expected = model(ids)
        with torch.autocast("cpu", torch.bfloat16):
            whole, (first, state) = model(ids), model.extend(ids[:, :9], model.start(2))
            second, _ = model.extend(ids[:, 9:], state)
    for found in (whole, torch.cat([first, second], 1)):
        assert (found - expected).norm() < 0.05 * expected.norm()
