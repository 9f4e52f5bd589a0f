"""What the tests of encoders share: states, maps and heads here and there, and the folder back."""

from pathlib import Path
from typing import Any

import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded
from torch import Tensor

from longspan.hub import Pretrained
from longspan.nn.recorder import recording

HEADS = {
    "masked": "ForMaskedLM",
    "classify": "ForSequenceClassification",
    "regress": "ForSequenceClassification",
    "choose": "ForMultipleChoice",
    "tag": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}


def texts(side: str = "right", length: int = 12, padding: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids and mask; padding has its id where a model counts positions by it."""
    ids, mask = padded(40, side=side, length=length)
    return ids if padding is None else ids.masked_fill(~mask, padding), mask


def assert_same_states(theirs: Any, folder: Path, back: Path, **given: Any) -> Pretrained:
    """States and maps with padding on both sides, and the folder back, bit for bit."""
    found = loaded(theirs, folder)
    for side in ("right", "left"):
        ids, mask = texts(side, **given)
        with torch.no_grad():
            expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
            with recording(found.model.stack) as seen:
                found.model(ids, key_mask=mask)
        assert len(seen.states) == len(expected.hidden_states)
        for own, other in zip(seen.states, expected.hidden_states):
            assert_close(own, other, mask)
        assert len(seen.maps) == len(expected.attentions)
        for own, other in zip(seen.maps, expected.attentions):
            assert_close(own.transpose(1, 2), other.transpose(1, 2).to(own.dtype), mask)
    assert_round_trip(found, folder, type(theirs), back)
    return found


def assert_same_head(theirs: Any, found: Pretrained, task: str, **given: Any) -> None:
    """The output of one head at real tokens."""
    ids, mask = texts(**given)
    assert not found.fresh and {*found.unused} <= {"lm_head.bias"}  # not tied: the decoder's is used
    model: Any = found.model
    with torch.no_grad():
        if task == "choose":
            rows = (tensor.view(1, 3, -1) for tensor in (ids, mask))
            choices, masks = rows
            assert_close(model.choose(choices, key_mask=masks), theirs(choices, attention_mask=masks.long()).logits)
            return
        out = theirs(ids, attention_mask=mask)
        own = model.outputs(ids, key_mask=mask)[task]
    expected = torch.stack([out.start_logits, out.end_logits], -1) if task == "span" else out.logits
    assert_close(own, expected, mask if own.dim() == 3 else None)


def labels(task: str) -> dict[str, int]:
    """The number of labels that a class of theirs has for a task."""
    return {"num_labels": {"regress": 1, "span": 2}.get(task, 3)}
