"""Which tokens are global for a task."""

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.nn.global_tokens import global_mask, question_mask

IDS = torch.tensor([[0, 5, 6, 2, 2, 7, 8, 2], [0, 5, 2, 2, 7, 2, 1, 1]])
REAL = IDS != 1
SMALL = {"vocabulary": 9, "width": 8, "heads": 2, "hidden": 8, "layers": 1, "padding": 1, "segments": 2}


def places(marked: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in marked]


def test_marks() -> None:
    assert places(global_mask("first", IDS, None, None)) == places(global_mask("first", IDS, REAL, None)) == [[0], [0]]
    assert places(global_mask("first", IDS.flip(1), REAL.flip(1), None)) == [[0], [2]]
    assert places(global_mask("question", IDS, REAL, 2)) == [[0, 1, 2], [0, 1]]
    assert places(global_mask("answer", IDS, REAL, 2) & REAL) == [[5, 6, 7], [4, 5]]
    assert places(question_mask(IDS, 2)) == [[0, 1, 2, 3], [0, 1, 2]]


def test_a_question_needs_its_separator() -> None:
    with pytest.raises(InvalidInput, match="give its id as the option separator"):
        global_mask("question", IDS, None, None)
    with pytest.raises(InvalidInput, match=r"text 0 has no separator \(id 6\) to end its question"):
        question_mask(IDS[1:], 6)


def test_global_tokens_follow_the_task_unless_given() -> None:
    """With several tasks, those of any of them; `forward` uses only what the caller gives."""
    torch.manual_seed(0)
    tasks = [{"task": "classify", "global_tokens": "first"}, {"task": "span", "global_tokens": "question"}]
    model = build("encoder", **SMALL, attention={"name": "longformer", "window": 1}, separator=2, tasks=tasks).eval()
    both = {"global_mask": global_mask("question", IDS, REAL, 2)}
    none = {"global_mask": torch.zeros_like(REAL)}
    out, same, without = (model.outputs(IDS, key_mask=REAL, streams=streams) for streams in (None, both, none))
    assert all(torch.equal(out[task], same[task]) for task in out)
    assert not torch.allclose(out["classify"], without["classify"])
    assert torch.equal(model(IDS, key_mask=REAL), model(IDS, key_mask=REAL, streams=none))


def test_a_question_is_the_first_segment_and_holds_no_answer() -> None:
    torch.manual_seed(0)
    model = build("encoder", **SMALL, separator=2, tasks=[{"task": "span", "question": True}]).eval()
    out = model.outputs(IDS, key_mask=REAL)["span"]
    given = model.outputs(IDS, key_mask=REAL, segments=(~question_mask(IDS, 2)).long())["span"]
    assert torch.equal(out, given)
    assert places(out[..., 0] < -1e5) == [[1, 2, 3], [1, 2]]


@pytest.mark.parametrize(
    "kind,head,said",
    [
        ("encoder", {"task": "classify", "global_tokens": "first"}, "such as longformer"),
        ("encoder", {"task": "tag", "question": True}, "question is an option of the task 'span'"),
        ("encoder", {"task": "classify", "hidden": 4}, "hidden is an option of token tasks"),
        ("decoder", {"task": "span", "question": True}, "are for the heads of an encoder"),
    ],
    ids=["no mechanism", "no span", "a text", "a decoder"],
)
def test_invalid_heads_are_refused(kind: str, head: dict, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        build(kind, **SMALL, tasks=[head])
