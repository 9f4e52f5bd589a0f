"""Examples in batches of nearly one length, tables with their lines, and windows."""

from pathlib import Path

import numpy as np
import pytest

from longspan.data.examples import Example, Examples
from longspan.data.text.tables import rows
from longspan.data.text.windows import most_context, windows
from longspan.errors import InvalidInput


def skewed(count: int = 1000) -> list[Example]:
    lengths = np.random.default_rng(0).geometric(0.05, size=count)
    return [Example([1] * int(length), [0] * int(length), {"label": at % 2}) for at, length in enumerate(lengths)]


def test_an_epoch_has_every_example_once_and_little_padding() -> None:
    data = Examples(skewed(), 16, seed=3)
    first, second = data.batches(0), data.batches(1)
    assert sorted(number for batch in first for number in batch) == list(range(1000))
    assert first != second and first == Examples(skewed(), 16, seed=3).batches(0)
    assert data.waste() < 0.10
    order = np.random.default_rng(1).permutation(1000)
    parts = [data.lengths[order[start : start + 16]] for start in range(0, 1000, 16)]
    assert 1 - data.lengths.sum() / sum(len(part) * part.max() for part in parts) > 0.5  # without buckets


def test_what_is_padded_is_masked_and_does_not_count() -> None:
    made = Examples(
        [Example([5, 6, 7], [0, 1, 1], each={"targets": [1, 2, 3]}), Example([5], [0], each={"targets": [1]})],
        2,
        padding=9,
        shuffle=False,
    ).load([0, 1], 0)
    assert made["ids"].tolist() == [[5, 6, 7], [5, 9, 9]]
    assert made["mask"].tolist() == [[True] * 3, [True, False, False]]
    assert made["targets"].tolist() == [[1, 2, 3], [1, -100, -100]]


def test_the_fingerprint_knows_labels_and_order() -> None:
    examples = [Example([1, 2], [0, 0], {"label": 0}), Example([3], [0], {"label": 1})]
    other = [examples[0], Example([3], [0], {"label": 0})]
    prints = {
        Examples(examples, 1).fingerprint(),
        Examples(other, 1).fingerprint(),
        Examples(examples, 1, seed=1).fingerprint(),
    }
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n"one, ""two""",x\nthree,y\n'),
        ("a.tsv", '\ufefftext\tlabel\none, "two"\tx\nthree\ty\n'),
        ("a.jsonl", '{"text": "one, \\"two\\"", "label": "x"}\n{"label": "y", "text": "three"}\n'),
    ],
)
def test_tables_of_all_kinds_say_the_same(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = list(rows(tmp_path / name, ["text", "label"]))
    assert [(row.fields["text"], row.fields["label"]) for row in found] == [('one, "two"', "x"), ("three", "y")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "", "no rows"),
        ("a.csv", "text,label\n", "no rows"),
        ("a.csv", 'text,label\nok,x\n"open,y\n', "not CSV"),
        ("a.tsv", "text\tlabel\none\tx\ntwo\n", "line 3: 1 fields"),
        ("a.tsv", "texts\tlabel\none\tx\n", "line 1, has no column 'text'; it has 'texts', 'label'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', "line 2: not JSON"),
        ("a.jsonl", '{"text": "a"}\n', "line 1, has no field 'label'; it has 'text'"),
    ],
)
def test_a_bad_table_is_named_with_its_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInput, match=said) as error:
        list(rows(tmp_path / name, ["text", "label"]))
    assert str(tmp_path / name) in str(error.value)


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\nok\tx\n\xff\xfe\ty\n")
    with pytest.raises(InvalidInput, match="line 3: not UTF-8"):
        list(rows(tmp_path / "a.tsv", ["text", "label"]))


def test_windows_step_by_the_stride_and_a_token_is_read_where_it_has_most_context() -> None:
    spans = windows(10, 6, 3)
    assert spans == [(0, 6), (3, 9), (6, 10)]
    assert windows(4, 6, 3) == [(0, 4)]
    assert [most_context(place, spans) for place in range(10)] == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
