"""Tags for words: files, pieces, windows."""

from pathlib import Path

import pytest
from tests.tasks.small import pretrained, run, tokenizer

from longspan import hub
from longspan.data.text.windows import around
from longspan.errors import InvalidInput
from longspan.tasks import tag
from longspan.tasks.predict import predict

LINES = (
    "-DOCSTART- -X- O O\n\nAnna NNP B-NP I-PER\nlives VBZ B-VP O\nin IN B-PP O\n"
    "Paris NNP B-NP I-LOC\nLondon NNP B-NP B-LOC\n\n"
)


def write(path: Path, content: str = LINES, repeat: int = 20) -> Path:
    path.write_text(content * repeat, encoding="utf-8")
    return path


def test_old_tags_become_new_ones_and_documents_are_no_sentences(tmp_path: Path) -> None:
    (found,) = tag.sentences(write(tmp_path / "a.conll", repeat=1))
    assert found.words == ["Anna", "lives", "in", "Paris", "London"] and found.line == 3
    assert found.tags == ["B-PER", "O", "O", "B-LOC", "B-LOC"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Anna B-PER\nlives\n", "line 2: expected a word"),
        ("Anna PER\n", "line 1: 'PER' is not a tag"),
        ("\n", "no sentences"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        tag.sentences(write(tmp_path / "a.conll", content, 1))


def test_the_first_piece_of_each_word_stands_for_it() -> None:
    own = tokenizer()
    words = ["Anna", "goodot", "\u200b", "in", "Zürich!"]
    ids, begins = tag.pieces(words, own)
    assert [word for word in begins if word >= 0] == [0, 1, 2, 3, 4]
    assert len(ids) == len(begins) > len(words)
    assert own.token(ids[begins.index(1)]) == "good" and own.token(ids[begins.index(1) + 1]).startswith("##")


@pytest.mark.parametrize("count", [1, 29, 30, 31, 61, 2000])
def test_every_word_has_its_target_in_exactly_one_window(count: int) -> None:
    own = tokenizer()
    edge = around(own, pair=False)
    made = tag.examples(["goodot"] * count, list(range(count)), 0, own, edge, length=32)
    targets = [target for each in made for target in each.each["targets"] if target >= 0]
    assert sorted(targets) == list(range(count))
    assert all(len(each) <= 32 and each.ids[0] == own.cls and each.ids[-1] == own.sep for each in made)


def test_tags_are_learned_and_long_sentences_have_as_many_as_words(tmp_path: Path) -> None:
    task = {"name": "tag", "train": str(write(tmp_path / "a.conll")), "length": 32, "batch": 8}
    figures = run(tmp_path / "run", task, {"from": str(pretrained(tmp_path / "body"))})
    assert figures["f1"] == 1.0 and figures["strict_f1"] == 1.0
    found = hub.load(tmp_path / "run" / "model")
    lines = ["Anna lives in Paris", "", "Anna lives in " * 500]
    said = predict(found, lines)
    assert [len(each["tags"]) for each in said] == [4, 0, 1500]
    assert said[0]["tags"] == ["B-PER", "O", "O", "B-LOC"]
