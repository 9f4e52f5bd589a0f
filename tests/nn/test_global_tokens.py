"""Which tokens a task singles out."""

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.nn.global_tokens import mark, question

IDS = torch.tensor([[0, 5, 6, 2, 2, 7, 8, 2], [0, 5, 2, 2, 7, 2, 1, 1]])
REAL = IDS != 1
SMALL = {"vocabulary": 9, "width": 8, "heads": 2, "hidden": 8, "layers": 1, "padding": 1, "segments": 2}


def places(marked: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in marked]


def test_marks() -> None:
    assert places(mark("first", IDS, None, None)) == places(mark("first", IDS, REAL, None)) == [[0], [0]]
    assert places(mark("first", IDS.flip(1), REAL.flip(1), None)) == [[0], [2]]
    assert places(mark("question", IDS, REAL, 2)) == [[0, 1, 2], [0, 1]]
    assert places(mark("answer", IDS, REAL, 2) & REAL) == [[5, 6, 7], [4, 5]]
    assert places(question(IDS, 2)) == [[0, 1, 2, 3], [0, 1, 2]]


def test_a_question_needs_its_separator() -> None:
    with pytest.raises(InvalidInput, match="give the option separator"):
        mark("question", IDS, None, None)
    with pytest.raises(InvalidInput, match=r"text 0 has no separator \(id 6\), which ends its question"):
        question(IDS[1:], 6)


def test_outputs_mark_what_tasks_ask_for_unless_it_is_given() -> None:
    """Of several tasks, what any of them asks for; the states alone are as the caller says."""
    torch.manual_seed(0)
    tasks = [{"task": "classify", "global_tokens": "first"}, {"task": "span", "global_tokens": "question"}]
    model = build("encoder", **SMALL, attention={"name": "longformer", "window": 1}, separator=2, tasks=tasks).eval()
    both = {"global_mask": mark("question", IDS, REAL, 2)}
    none = {"global_mask": torch.zeros_like(REAL)}
    out, same, without = (model.outputs(IDS, key_mask=REAL, streams=streams) for streams in (None, both, none))
    assert all(torch.equal(out[task], same[task]) for task in out)
    assert not torch.allclose(out["classify"], without["classify"])
    assert torch.equal(model(IDS, key_mask=REAL), model(IDS, key_mask=REAL, streams=none))


def test_a_question_is_the_first_segment_and_holds_no_answer() -> None:
    torch.manual_seed(0)
    model = build("encoder", **SMALL, separator=2, tasks=[{"task": "span", "question": True}]).eval()
    out = model.outputs(IDS, key_mask=REAL)["span"]
    given = model.outputs(IDS, key_mask=REAL, segments=(~question(IDS, 2)).long())["span"]
    assert torch.equal(out, given)
    assert places(out[..., 0] < -1e5) == [[1, 2, 3], [1, 2]]


@pytest.mark.parametrize(
    "kind,head,said",
    [
        ("encoder", {"task": "classify", "global_tokens": "first"}, "such as longformer"),
        ("encoder", {"task": "tag", "question": True}, "question is of the task 'span'"),
        ("encoder", {"task": "classify", "hidden": 4}, "hidden is of heads for each token"),
        ("decoder", {"task": "span", "question": True}, "only an encoder's heads"),
    ],
    ids=["no mechanism", "no span", "a text", "a decoder"],
)
def test_heads_that_do_not_fit(kind: str, head: dict, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        build(kind, **SMALL, tasks=[head])
