"""Documents of sentences and the texts that are cut from them (spec section 17)."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from longspan.data.text import sentence_pairs
from longspan.data.text.corpora import (
    Corpus,
    plain_documents,
    read_documents,
    sentences,
    wikitext_documents,
    write_corpus,
)
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.errors import InvalidInput, InvalidOption


def corpus(folder: Path, documents: list[list[int]]) -> Corpus:
    """Documents of sentences of so many words, each word a token that says where it stands."""
    count = sum(map(sum, documents))
    words = iter(f"w{number}" for number in range(count))
    texts = [[" ".join(next(words) for _ in range(size)) for size in document] for document in documents]
    tokenizer = learn(TokenizerOptions(kind="wordpiece", size=60), [" ".join(map(" ".join, texts))])
    return write_corpus(folder / "train", texts, tokenizer, "here")


@pytest.fixture(scope="module")
def long_documents(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    generator = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("long")
    return corpus(folder, [list(generator.integers(1, 9, size=500)) for _ in range(12)])


def document_of(found: Corpus, place: int) -> int:
    sentence = int(np.searchsorted(found.borders, place, side="right")) - 1
    return int(np.searchsorted(found.firsts, sentence, side="right")) - 1


def test_positives_follow_and_negatives_come_from_other_documents(long_documents: Corpus) -> None:
    found = sentence_pairs.plan(long_documents, "next", 40, short=0.1, seed=0, epoch=0)
    borders = set(long_documents.borders.tolist())
    for a, b, c, d, label in found.rows.tolist():
        assert {a, b, c, d} <= borders and a < b and c < d
        if label == 0:
            assert b == c and document_of(long_documents, a) == document_of(long_documents, c)
        else:
            assert document_of(long_documents, a) != document_of(long_documents, c)


def test_the_share_of_negatives_is_a_half_on_long_documents(tmp_path: Path) -> None:
    found = corpus(tmp_path, [[3] * 3000 for _ in range(3)])
    made = [sentence_pairs.plan(found, "next", 120, short=0.0, seed=1, epoch=epoch) for epoch in range(30)]
    labels = np.concatenate([each.rows[:, 4] for each in made])
    last = sum(len(found) for _ in made)  # a last sentence may stand alone, and is negative then
    assert abs(labels.mean() - 0.5) < 0.02 + last / len(labels)


def test_documents_of_one_sentence_give_negatives_only(tmp_path: Path) -> None:
    found = sentence_pairs.plan(corpus(tmp_path, [[4], [5], [6]]), "next", 32, short=0.1, seed=0, epoch=0)
    assert found.negatives == 1.0 and len(found) == 3


def test_no_sentence_is_lost(long_documents: Corpus) -> None:
    for kind in sentence_pairs.KINDS:
        found = sentence_pairs.plan(long_documents, kind, 40, short=0.1, seed=3, epoch=1)
        seen = np.zeros(len(long_documents.tokens), dtype=bool)
        for a, b, c, d, label in found.rows.tolist():
            seen[a:b] = True
            if label == 0 or kind == "order":
                seen[c:d] = True
        assert seen.all(), kind


def test_texts_fit_and_a_tenth_is_shorter(long_documents: Corpus) -> None:
    length = 256
    for kind in sentence_pairs.KINDS:
        generator = np.random.default_rng(0)
        found = sentence_pairs.plan(long_documents, kind, length, short=0.1, seed=0, epoch=0)
        room = length - (2 if kind == "none" else 3)
        sizes = []
        for number in range(len(found)):
            first, second, _ = found.at(number)
            first, second = sentence_pairs.cut(first, second, room, generator)
            sizes.append(len(first) + len(second))
        assert max(sizes) <= room
        assert 0.03 < np.mean(np.array(sizes) < room - 60) < 0.15, kind


def test_sentence_order_swaps_half_of_the_pairs(long_documents: Corpus) -> None:
    found = sentence_pairs.plan(long_documents, "order", 40, short=0.0, seed=0, epoch=0)
    assert abs(found.negatives - 0.5) < 0.1
    for a, b, c, d, label in found.rows.tolist():
        assert (d == a) if label else (b == c)


def test_a_document_of_one_sentence_has_no_order(tmp_path: Path) -> None:
    found = sentence_pairs.plan(corpus(tmp_path, [[4], [3, 3, 3]]), "order", 32, short=0.0, seed=0, epoch=0)
    assert found.rows[:, 4].tolist().count(-100) == 1


def test_plans_are_functions_of_seed_and_epoch(long_documents: Corpus) -> None:
    first, again, other = (
        sentence_pairs.plan(long_documents, "next", 40, short=0.1, seed=0, epoch=epoch).rows for epoch in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first[:50], other[:50])


def test_the_longer_span_is_cut() -> None:
    generator = np.random.default_rng(0)
    fronts = []
    for _ in range(400):
        first, second = sentence_pairs.cut(sentence_pairs.Span(0, 30), sentence_pairs.Span(50, 60), 25, generator)
        assert (len(first), len(second)) == (15, 10)
        fronts.append(first.start)
    assert abs(np.mean(fronts) - 7.5) < 0.5
    first, second = sentence_pairs.cut(sentence_pairs.Span(0, 30), sentence_pairs.Span(50, 70), 25, generator)
    assert (len(first), len(second)) == (13, 12)  # equally long, the second gives first


def test_a_sentence_longer_than_a_text_goes_on_in_the_next(tmp_path: Path) -> None:
    found = sentence_pairs.plan(corpus(tmp_path, [[100, 2], [3]]), "none", 12, short=0.0, seed=0, epoch=0)
    spans = [found.at(number)[0] for number in range(len(found))]
    assert max(map(len, spans)) <= 10
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]


def test_one_document_has_no_negatives(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds one document"):
        sentence_pairs.plan(corpus(tmp_path, [[3, 3]]), "next", 32, short=0.0, seed=0, epoch=0)


# Files


def test_sentences_of_a_paragraph() -> None:
    assert sentences('He said " Go away ! " Then , c . 1200 , he left . Why ? No') == [
        'He said " Go away ! "',
        "Then , c . 1200 , he left .",
        "Why ?",
        "No",
    ]
    assert sentences("a role @-@ playing game of 1 @,@ 000 parts .") == ["a role-playing game of 1,000 parts ."]


def test_articles_begin_at_headings_between_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "wiki.tokens.gz"
    lines = ["", " = One = ", "", " Ab cd . Ef gh . ", " = 10 looks like one = ", "", " = = Part = = ", "", " E . ", "",
             " = Two = ", "", " F . "]  # fmt: skip
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert list(wikitext_documents(path)) == [["Ab cd .", "Ef gh .", "= 10 looks like one =", "E ."], ["F ."]]


def test_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("One.\nTwo.\n\n\nThree.\n", encoding="utf-8")
    assert list(plain_documents(path)) == [["One.", "Two."], ["Three."]]
    found = read_documents(None, {"train": str(path), "held_out": None, "test": None}, None, 0.5)
    assert [list(found[split]()) for split in ("train", "held_out")] == [[["One.", "Two."]], [["Three."]]]


def test_what_is_wrong_with_files(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("One.\nTwo.\n", encoding="utf-8")
    given = {"train": str(path), "held_out": None, "test": None}
    with pytest.raises(InvalidInput, match="1 documents, too few"):
        read_documents(None, given, None, 0.1)
    with pytest.raises(InvalidOption, match="one of the two"):
        read_documents("wikitext2", given, None, 0.1)
    with pytest.raises(InvalidOption, match="no documents of sentences"):
        read_documents("text8", {**given, "train": None}, tmp_path, 0.1)
    tokenizer = learn(TokenizerOptions(kind="wordpiece", size=60), ["a"])
    with pytest.raises(InvalidInput, match="here is empty"):
        write_corpus(tmp_path / "out", [], tokenizer, "here")


def test_unknown_words_of_wikitext_are_one_token(tmp_path: Path) -> None:
    tokenizer = learn(TokenizerOptions(kind="wordpiece", size=60), ["some words here"])
    made = write_corpus(tmp_path / "train", [["some <unk> words"]], tokenizer, "here")
    ids = made.tokens[:].tolist()
    assert ids.count(tokenizer.unk) == 1
    assert tokenizer.decode([number for number in ids if number != tokenizer.unk]) == "some words"


@pytest.mark.data
def test_wikitext2_has_as_many_articles_as_published() -> None:
    if "LONGSPAN_DATA" not in os.environ:
        pytest.skip("LONGSPAN_DATA names no folder")
    root = Path(os.environ["LONGSPAN_DATA"])
    counts = [
        sum(1 for _ in wikitext_documents(root / f"wikitext2/wiki.{name}.tokens.gz")) for name in ("valid", "test")
    ]
    assert counts == [60, 60]
