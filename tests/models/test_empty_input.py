"""A batch of nothing, or texts of nothing, are refused in one line by every model and by MultiHead."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.attention import build as build_attention
from longspan.errors import InvalidInput
from longspan.models import build, registry
from longspan.nn.multihead import MultiHead

IMAGES = {"image_size": 32, "width": 16, "layers": 1, "heads": 2}
SMALL = {"vocabulary": 20, "width": 16, "layers": 1, "heads": 2}


def ids(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.int64)


# How each model is built, and called with a batch and a length.
CASES: dict[str, tuple[dict[str, Any], Callable[[Any, int, int], Any]]] = {
    "encoder": (SMALL, lambda model, b, n: model(ids(b, n))),
    "decoder": (SMALL, lambda model, b, n: model(ids(b, n))),
    "transformer": (SMALL, lambda model, b, n: model(ids(b, n), ids(b, n))),
    "recurrent": ({"vocabulary": 20, "width": 16}, lambda model, b, n: model(ids(b, n))),
    "regressor": ({}, lambda model, b, n: model(torch.zeros(b, n, model.options.values))),
    "series_transformer": (
        {"width": 16, "layers": 1, "heads": 2, "hidden": 16},
        lambda model, b, n: model(torch.zeros(b, n, model.options.values)),
    ),
    "seq2seq": ({"vocabulary": 20, "width": 16}, lambda model, b, n: model(ids(b, n), ids(b, n))),
    "elmo": ({}, lambda model, b, n: model(torch.zeros(b, n, 50, dtype=torch.int64))),
    "etc_model": (SMALL, lambda model, b, n: model(ids(b, n), ids(b, n))),
    "universal": (SMALL, lambda model, b, n: model(ids(b, n), ids(b, n))),
    "universal_decoder": (SMALL, lambda model, b, n: model(ids(b, n))),
    "universal_encoder": (SMALL, lambda model, b, n: model(ids(b, n))),
    "transformer_xl": (SMALL, lambda model, b, n: model(ids(b, n))),
    "vit": (
        {"image_size": 32, "width": 16, "layers": 1, "heads": 2},
        lambda model, b, n: model(torch.zeros(b, 3, 16 * n, 16 * n), interpolate=True),
    ),
    "resnet": (
        {"width": 8, "blocks": (1,), "spatial": ("convolution",), "nonlocal_blocks": (0,)},
        lambda model, b, n: model(torch.zeros(b, 3, 16 * n, 16 * n)),
    ),
    "set_transformer": ({"width": 16}, lambda model, b, n: model(torch.zeros(b, n, 1))),
    "perceiver": (
        {"width": 16, "latents": 2, "reads": 1, "blocks": 1, "heads": 2, "bands": 2, "image_size": 16},
        lambda model, b, n: model(torch.zeros(b, 3, 16 * n, 16 * n)),
    ),
    "image_decoder": (
        {"width": 16, "layers": 1, "heads": 2, "hidden": 16, "image_size": 2, "channels": 1},
        lambda model, b, n: model(torch.zeros(b, 2 * n, 2 * n, 1, dtype=torch.int64)),
    ),
    "axial_transformer": (
        {"width": 16, "heads": 2, "outer_layers": 2, "inner_layers": 1, "image_size": 2, "channels": 1},
        lambda model, b, n: model(torch.zeros(b, 2 * n, 2 * n, 1, dtype=torch.int64)),
    ),
    "table_transformer": (
        {"width": 16, "layers": 1, "heads": 2, "hidden": 16},
        lambda model, b, n: model(torch.zeros(b, 1)[:, :n], torch.zeros(b, 0, dtype=torch.int64)),
    ),
    "compressive": (SMALL, lambda model, b, n: model(ids(b, n))),
    "electra": (SMALL, lambda model, b, n: model(ids(b, n), ids(b, n), ids(b, n).bool())),
}


def test_every_model_is_tested() -> None:
    assert set(CASES) == set(registry.names()) - {"word2vec"}  # it has no forward: it reads sentences


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("name", list(CASES))
def test_empty_input_is_refused(name: str, batch: int, length: int) -> None:
    options, call = CASES[name]
    with pytest.raises(InvalidInput) as caught:
        call(build(name, **options), batch, length)
    text = str(caught.value)
    assert ("at least" in text or "needs a long input" in text) and "\n" not in text


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_multihead(batch: int, length: int) -> None:
    layer = MultiHead(16, build_attention("softmax", heads=2, head_dim=8))
    text = f"must hold at least one sequence of at least one position, not \\({batch}, {length}, 16\\)"
    with pytest.raises(InvalidInput, match=f"x {text}"):
        layer(torch.zeros(batch, length, 16))
    if batch:
        with pytest.raises(InvalidInput, match=f"context {text}"):
            layer(torch.zeros(2, 3, 16), torch.zeros(batch, length, 16))


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_decoding(batch: int, length: int) -> None:
    model = build("decoder", **SMALL).eval()
    with pytest.raises(InvalidInput, match="x must hold at least one sequence of at least one position"):
        model.extend(ids(batch, length), model.start(batch))


def test_an_empty_batch_is_refused_by_mechanisms() -> None:
    nothing = torch.zeros(0, 2, 3, 8)
    with pytest.raises(InvalidInput, match="there must be at least one sequence, not a batch of 0"):
        build_attention("softmax", heads=2, head_dim=8)(nothing, nothing, nothing)
