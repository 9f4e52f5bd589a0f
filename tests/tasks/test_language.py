"""Language modelling on files: what is read, cut and counted."""

import math
from pathlib import Path

import pytest

from longspan.data.text import text_files
from longspan.data.text.corpora import TITLE
from longspan.errors import InvalidInput
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.language import Language, LanguageMetrics

WIKI = (
    "\n = One = \n\n Some words here . \n = not a title = \n\n = = Part = = \n\n More . \n"
    "\n = Two = \n\n Last words . \n"
)


def prepare(folder: Path, **options: object) -> Prepared:
    given = {"tokenizer": {"kind": "characters", "special": False}, "length": 8, "batch": 2, **options}
    return registry.build("language", **given).prepare(DataPaths(None, folder / "work"))


def test_pieces_are_the_text_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "PIECE", 10)
    path = tmp_path / "text"
    for content in ("one\ntwo\n\nthree four five\r\n\n\n\nsix\nseven", "a line without an end " * 20, "\n\n\nab\n\n"):
        path.write_bytes(content.encode())
        pieces = list(text_files.Part(path).pieces())
        assert "".join(pieces) == content
        size = len(content)
        for start, stop in ((0, size // 3), (size // 3, None), (5, 9)):
            assert "".join(text_files.Part(path, start, stop).pieces()) == content[start:stop]
    path.write_bytes(b"one two three\n\nfour five six\n\nseven\n")
    assert len(list(text_files.Part(path).pieces())) == 3


def test_documents_of_wikitext_are_articles(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(WIKI, encoding="utf-8")
    pieces = list(text_files.Part(path).pieces(TITLE))
    assert "".join(pieces) == WIKI
    assert [piece.strip().split("\n")[0].strip() for piece in pieces] == ["= One =", "= Two ="]


def test_the_end_of_a_file_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "text"
    content = "abcde\n\nfgh\n" * 40
    path.write_text(content, encoding="utf-8")
    prepared = prepare(tmp_path, train=str(path), share=0.25)
    assert prepared.facts["train tokens"] == 330 and prepared.facts["held_out tokens"] == 110
    batch = prepared.held_out.load([0], 0)
    assert prepared.tokenizer is not None
    assert prepared.tokenizer.decode(batch["ids"][0].tolist()) == content[330:338]


def test_figures_count_bytes_and_words() -> None:
    figures = LanguageMetrics(nats=10.0, tokens=10, bytes_per_token=2.0, words_per_token=0.5).result()
    assert figures["bits_per_byte"] == pytest.approx(1 / math.log(2) / 2)
    assert figures["perplexity"] == pytest.approx(math.e) and figures["word_perplexity"] == pytest.approx(math.e**2)


def test_words_are_counted_as_wikitext_does(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(WIKI, encoding="utf-8")
    (tmp_path / "other").write_text(" Some words . \n More . \n", encoding="utf-8")
    given = {"train": str(tmp_path / "text"), "held_out": str(tmp_path / "other")}
    prepared = prepare(tmp_path, **given, tokenizer={"kind": "bpe", "size": 260, "special": False})
    objective, tokens = prepared.objective, prepared.facts["held_out tokens"]
    assert objective.words_per_token == pytest.approx(7 / tokens)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["characters", "bytes"])
@pytest.mark.parametrize("special", [False, True])
def test_the_perplexity_of_words_is_not_given_for_characters(tmp_path: Path, kind: str, special: bool) -> None:
    (tmp_path / "text").write_text(WIKI, encoding="utf-8")
    prepared = prepare(tmp_path, train=str(tmp_path / "text"), tokenizer={"kind": kind, "special": special})
    assert prepared.objective.words_per_token is None  # type: ignore[attr-defined]
    assert prepared.objective.bytes_per_token is not None  # type: ignore[attr-defined]


def test_files_with_nothing_in_them(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"text (is empty|has 0 characters)"):
        prepare(tmp_path, train=str(tmp_path / "text"))
    (tmp_path / "good").write_text("words", encoding="utf-8")
    with pytest.raises(InvalidInput, match="text is empty"):
        prepare(tmp_path, train=str(tmp_path / "good"), held_out=str(tmp_path / "text"))
    assert Language.name == "language"
