"""What is kept of a model's maps, against the maps themselves, at an odd length: 300."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.models.every import of_kind
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.attention.registry import find, names
from longspan.audit.settings import small
from longspan.errors import InvalidInput
from longspan.inspect import maps
from longspan.inspect.looking import look
from longspan.inspect.records import Dense, ProductFactors, Record, Rows, SoftmaxFactors, decode, encode
from longspan.inspect.tiles import allowed, tile
from longspan.models.base import Model
from longspan.nn.recorder import recording

LENGTH = 300
LONG = 1000
EVERYTHING = np.arange(LENGTH)
# Mechanisms of encoders here (causal ones are decoders), each with what its detail is.
DETAILS: dict[str, type] = {
    "softmax": SoftmaxFactors,
    "window": SoftmaxFactors,
    "linear": ProductFactors,
    "performer": ProductFactors,
    "hedgehog": ProductFactors,
    "cosformer": ProductFactors,
    "retention": ProductFactors,
    "linformer": ProductFactors,
    "nystrom": ProductFactors,
    "longformer": SoftmaxFactors,  # no global tokens here
}


def model_with(name: str, **options: Any) -> Model:
    kind = "decoder" if not find(name).supports.bidirectional else "encoder"
    setting = {"name": name, **small(name)[0]}
    return of_kind(kind, attention=setting, max_length=640, layers=1, **options).eval()


def ids_of(length: int = LENGTH) -> list[int]:
    return [(7 * i * i + 3 * i) % 11 for i in range(length)]


def measured(model: Model, length: int = LENGTH) -> Tensor:
    """The maps of the first layer (heads, queries, keys), from `weights`."""
    with recording(model.stack) as seen, torch.no_grad():
        model(torch.tensor([ids_of(length)]))
    return seen.maps[0][0]


def pooled(weights: np.ndarray, cell: int, how: Any) -> np.ndarray:
    missing = [(0, -size % cell) for size in weights.shape]
    cells = np.pad(weights, missing, constant_values=np.nan)
    cells = cells.reshape(cells.shape[0] // cell, cell, cells.shape[1] // cell, cell)
    return how(cells.transpose(0, 2, 1, 3).reshape(cells.shape[0], cells.shape[2], -1))


WITH_MAPS = [name for name in names() if name not in ("memory_compressed", "inducing")]


@pytest.mark.parametrize("name", WITH_MAPS)
def test_every_mechanism_at_an_odd_length(name: str):
    model = model_with(name)
    weights = measured(model).numpy()
    record = look(model, ids_of())
    (module,) = record.modules
    assert (module.layer, module.kind, module.mechanism) == (0, "self", name)
    assert module.signed == bool((weights < 0).any())
    for head, own in zip(module.heads, weights):
        check_pyramid(head.pyramid, own)
        check_sums(head.sums, own)
        assert isinstance(head.detail, DETAILS.get(name, Dense))
        cells = tile(head.detail, EVERYTHING, EVERYTHING)
        np.testing.assert_allclose(cells, own, rtol=0, atol=1e-5 * max(1.0, np.abs(own).max()))
        if head.pattern is not None:
            check_pattern(head.pattern, own)
    for pooled_over, how in ((module.mean, weights.mean(0)), (module.max, weights.max(0))):
        assert pooled_over is not None
        check_pyramid(pooled_over, how)


def check_pyramid(pyramid: Any, weights: np.ndarray) -> None:
    assert [level.cell for level in pyramid.levels] == [1, 2, 4, 8]
    assert pyramid.scale == pytest.approx(max(1.0, np.abs(weights).max()), rel=2e-3)
    for level in pyramid.levels:
        expected = {
            "max": lambda x: np.nanmax(x, -1),
            "mean": lambda x: np.nanmean(np.abs(x), -1),
            "low": lambda x: -np.nanmin(x, -1),
        }
        for field, how in expected.items():
            codes = getattr(level, field)
            if codes is None:
                assert field == "low" and (weights >= 0).all()
                continue
            true = encode(pooled(weights, level.cell, how), pyramid.scale)
            assert np.abs(codes.astype(int) - true.astype(int)).max() <= 1


def check_sums(sums: Any, weights: np.ndarray) -> None:
    sizes = np.abs(weights.astype(np.float64))
    mass = sizes.sum(1, keepdims=True)
    shares = np.divide(sizes, mass, out=np.zeros_like(sizes), where=mass > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    np.testing.assert_allclose(sums.received, weights.sum(0), atol=1e-3)
    np.testing.assert_allclose(sums.entropy, -(shares * logs).sum(1), atol=1e-4)
    offsets = [np.trace(weights, offset) for offset in range(1 - LENGTH, LENGTH)]
    np.testing.assert_allclose(sums.offsets, offsets, atol=1e-3)
    near = [np.trace(weights, offset) / LENGTH for offset in (-1, 0, 1)]
    np.testing.assert_allclose([sums.previous, sums.self, sums.next], near, atol=1e-5)
    assert sums.first == pytest.approx(weights[:, 0].mean(), abs=1e-5)
    np.testing.assert_allclose(sums.peak, weights.max(1), atol=1e-5)
    np.testing.assert_allclose(weights[EVERYTHING, sums.peak_key], sums.peak, atol=1e-5)


def check_pattern(pattern: Any, weights: np.ndarray) -> None:
    """What was read lies inside what could be read."""
    could = pattern.cells if pattern.rule is None else allowed(pattern.rule, EVERYTHING, EVERYTHING)
    assert could.shape == weights.shape
    assert not (weights[~could] != 0).any()


@pytest.mark.parametrize("name", ["reformer", "routing", "sinkhorn"])
def test_buckets_say_who_could_meet(name: str):
    model = model_with(name)
    weights, (module,) = measured(model).numpy(), look(model, ids_of()).modules
    for head, own in zip(module.heads, weights):
        queries = head.pattern.buckets
        keys = queries if head.pattern.key_buckets is None else head.pattern.key_buckets
        assert queries.shape[1] == keys.shape[1] == LENGTH
        meets = (queries[:, :, None] == keys[:, None, :]).any(0)
        if name == "reformer":  # a token reads only tokens that share a bucket in some round
            assert not (own[~meets] != 0).any()
        else:  # most of the mass: a cluster takes others' tokens too, and a block is a mixture
            assert own[meets].sum() > own[~meets].sum() * meets.mean() / (1 - meets.mean())


@pytest.mark.parametrize(("name", "options"), [("memory_compressed", {}), ("inducing", {})])
def test_mechanisms_without_a_map_say_so(name: str, options: dict[str, Any]):
    (module,) = look(model_with(name), ids_of(40)).modules
    assert module.standing == "none" and module.heads == ()
    assert module.sentence.startswith("No map: ")
    assert module.pattern is not None and module.pattern.cells is not None


def test_predictions_are_the_same_with_and_without_watching():
    model = of_kind("decoder").eval()
    ids = torch.tensor([ids_of(40)])
    before = model(ids)
    look(model, ids_of(40))
    assert torch.equal(model(ids), before)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_long_sparse_maps_are_listed_by_rows():
    model = model_with("reformer")
    weights = measured(model, 600).numpy()
    (module,) = look(model, ids_of(600)).modules
    for head, own in zip(module.heads, weights):
        assert isinstance(head.detail, Rows) and head.detail.keys.dtype == np.uint16
        some = np.array([599, 3, 77])
        np.testing.assert_allclose(tile(head.detail, some, np.arange(600)), own[some], atol=1e-6)
        assert head.pyramid.levels[0].cell == 2


def test_long_dense_maps_without_factors_have_no_detail():
    model = of_kind("encoder", attention={"name": "softmax", "score": "additive"}, max_length=640, layers=1, heads=1)
    seen = maps(model, ids_of(515))
    assert [head.detail for head in seen.record.modules[0].heads] == [None]
    with pytest.raises(InvalidInput, match="head 0 has no detail, only overviews"):
        seen.maps[0]


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // max(1, out.element_size()))
        return out


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_no_whole_map_is_ever_in_memory(name: str):
    length = 4096
    model = of_kind("encoder", attention={"name": name}, layers=1, position="none").eval()
    with Largest() as largest:
        look(model, ids_of(length))
    assert largest.numbers < length * length / 4  # of each of the two heads


def test_codes_are_within_three_per_cent():
    values = np.logspace(-6, 0, 10_000)
    assert np.abs(decode(encode(values)) / values - 1).max() < 0.0277
    assert encode(np.array([0.0, 1e-7, -1.0, 1.0, 1e-6, 3.0])).tolist() == [0, 0, 0, 255, 1, 255]


@pytest.mark.parametrize("half", [False, True])
def test_a_small_page_keeps_the_heads_that_were_asked_for(half: bool):
    model = of_kind("encoder", layers=2, heads=4, width=64, max_length=1100).eval()
    record: Record = look(model, ids_of(LONG), size=1_000_000 if half else 40_000_000, heads=[(1, 1)])
    kinds = {head.detail.q.dtype for module in record.modules for head in module.heads if head.detail is not None}
    assert (np.dtype(np.float16) in kinds) == half  # beside float32, for heads with large scores
    assert (1, 1) in record.budget.detailed
    assert record.budget.spent <= record.budget.size * 0.68
    assert len(record.budget.detailed) + record.budget.omitted == 8
    weights = measured(model, LONG)
    (first,) = [head for head in record.modules[0].heads if head.detail is not None][:1]
    some = np.array([0, 499, 999])
    true = weights[first.index][some].numpy()
    got = tile(first.detail, some, np.arange(LONG))
    np.testing.assert_allclose(got, true, rtol=0, atol=3e-3 if half else 1e-5)
    np.testing.assert_allclose(got.sum(1), 1, atol=1e-4)
