"""MPNet here and there: learned positions and shared biases by distance, every head."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.encoders import HEADS, assert_same_head, assert_same_states, labels
from tests.hub.parity import add, assert_round_trip, loaded, random_model
from transformers import MPNetConfig
from transformers.models.mpnet import modeling_mpnet

from longspan import hub
from longspan.errors import Unsupported

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}


def mpnet(end: str = "Model", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    model = random_model(getattr(modeling_mpnet, f"MPNet{end}"), MPNetConfig(**{**SMALL, **given}), dtype)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_states_and_maps_equal_theirs(folder: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    # 30 tokens are farther apart than the 8 single distances of each direction.
    found = assert_same_states(mpnet(dtype=dtype), folder, tmp_path / "back", padding=1, length=30)
    biases = {id(block.mixer.position) for block in found.model.stack.blocks}
    assert len(biases) == 1


@pytest.mark.parametrize("task", HEADS)
def test_heads_equal_theirs_and_go_back_bit_for_bit(folder: Path, tmp_path: Path, task: str) -> None:
    theirs = mpnet(HEADS[task], **labels(task))
    found = loaded(theirs, folder)
    assert_same_head(theirs, found, task, padding=1)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "given", [{"tie_word_embeddings": False}, {"hidden_act": "relu", "layer_norm_eps": 0.1}], ids=["untied", "relu"]
)
def test_odd_configurations(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = mpnet("ForMaskedLM", **given)
    theirs.lm_head.bias.data.copy_(theirs.lm_head.decoder.bias)  # untied, the first is never used
    found = loaded(theirs, folder)
    assert_same_head(theirs, found, "masked", padding=1)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_old_files_have_position_ids(folder: Path) -> None:
    theirs = mpnet("ForMaskedLM")
    theirs.save_pretrained(folder)
    add(folder, {"mpnet.embeddings.position_ids": torch.arange(40)[None]})
    assert_same_head(theirs, hub.load(folder), "masked", padding=1)


@pytest.mark.parametrize("given", [{"relative_attention_num_buckets": 64}, {"pad_token_id": 0}])
def test_what_the_release_ignores_is_refused(folder: Path, given: dict[str, Any]) -> None:
    mpnet().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(Unsupported, match=next(iter(given))):
        hub.load(folder)
