"""Nyströmformer here and there: full attention and landmarks, the convolution, every head."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.encoders import HEADS, labels
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers import NystromformerConfig
from transformers.models.nystromformer import modeling_nystromformer

from longspan import hub
from longspan.errors import Unsupported
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
    "num_landmarks": 4,
    "segment_means_seq_len": 4,
    "conv_kernel_size": 5,
}


def nystromformer(end: str = "Model", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    config = NystromformerConfig(**{**SMALL, **given})
    model = random_model(getattr(modeling_nystromformer, f"Nystromformer{end}"), config, dtype)
    for module in model.modules():
        if hasattr(module, "init_option"):
            module.init_option = "exact"  # "original": one number for the whole batch, whatever it holds
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("length", [3, 17])
def test_equal_numbers_of_landmarks_and_tokens_mean_full_attention(
    folder: Path, tmp_path: Path, length: int, dtype: torch.dtype
) -> None:
    theirs = nystromformer(dtype=dtype)
    found = loaded(theirs, folder)
    ids, _ = padded(40, length=length)
    with torch.no_grad():
        expected = theirs(ids, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            found.model(ids)
    for own, other in zip(seen.states, expected.hidden_states, strict=True):
        assert_close(own, other)
    for block, own, other in zip(found.model.stack.blocks, seen.maps, expected.attentions, strict=True):
        assert_close(own - block.mixer.mechanism._convolution_by_definition(length), other)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_landmarks_are_the_means_of_segments(folder: Path, tmp_path: Path) -> None:
    theirs = nystromformer(segment_means_seq_len=24)
    found = loaded(theirs, folder)
    ids, _ = padded(40, length=24)
    with torch.no_grad():
        assert_close(found.model(ids), theirs(ids).last_hidden_state)
    assert found.model.stack.blocks[0].mixer.mechanism.options.landmarks == 4
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_padding_changes_nothing_here(folder: Path) -> None:
    theirs = nystromformer()
    model: Any = loaded(theirs, folder).model
    ids, mask = padded(40, length=12)
    with torch.no_grad():
        together = model(ids, key_mask=mask)
        for row, real in enumerate(mask.sum(1).tolist()):
            alone = theirs(ids[row : row + 1, :real]).last_hidden_state
            assert_close(together[row : row + 1, :real], alone)
        theirs_together = theirs(ids, attention_mask=mask).last_hidden_state
    # Theirs convolves the values of padding too.
    assert float((theirs_together - together)[mask].abs().max()) > 0.01


@pytest.mark.parametrize("task", HEADS)
def test_heads_equal_theirs_and_go_back_bit_for_bit(folder: Path, tmp_path: Path, task: str) -> None:
    theirs = nystromformer(HEADS[task], **labels(task))
    found = loaded(theirs, folder)
    ids, _ = padded(40)
    model: Any = found.model
    with torch.no_grad():
        if task == "choose":
            own, expected = model.choose(ids[None]), theirs(ids[None]).logits
        else:
            out, own = theirs(ids), model.outputs(ids)[task]
            expected = torch.stack([out.start_logits, out.end_logits], -1) if task == "span" else out.logits
    assert not found.fresh and not found.unused
    assert_close(own, expected)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "given", [{"inv_coeff_init_option": True}, {"conv_kernel_size": 4}, {"segment_means_seq_len": 10}]
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any]) -> None:
    nystromformer().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(Unsupported, match=next(iter(given))):
        hub.load(folder)
