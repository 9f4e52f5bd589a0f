"""Senses of words in context: occurrences, separation, and models that must not tell them apart."""

from pathlib import Path

import pytest
import torch
from tests.inspect.measures.small import loaded

from longspan.errors import InvalidInput, Unsupported
from longspan.inspect.measures.contextual import measure_senses, pca, read_occurrences, separation
from longspan.inspect.measures.senses import occurrence, read_senses, sample_senses, sense_set
from longspan.inspect.measures.static_words import measure_analogies, measure_similarity
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word_table import WordTable


def test_the_package_s_words():
    sets = {each.word: each for each in sample_senses()}
    assert list(sets) == ["water", "bank", "bat", "spring"]
    assert [each.one_sense for each in sets.values()] == [True, False, False, False]
    for found in sets.values():
        for each in found.occurrences:
            assert each.sentence[each.start : each.stop] == found.word
        counts = [sum(each.sense == sense for each in found.occurrences) for sense in found.senses]
        assert len(counts) == 2 and min(counts) >= 4


def test_occurrences_are_found_by_characters():
    text = "Banks bank on the riverbank; the bank's bank failed."
    assert occurrence("bank", "money", text).start == text.index("bank on")
    assert occurrence("bank", "money", text, 2).start == text.index("bank failed")
    assert occurrence("crane", "bird", "Two cranes flew.").stop == len("Two cranes")
    with pytest.raises(InvalidInput, match=r"'bank' is not in the sentence 'The embankment\.'"):
        occurrence("bank", "river", "The embankment.")
    with pytest.raises(InvalidInput, match="'bank' is only 1 time in the sentence"):
        occurrence("bank", "river", "The bank.", 1)


def test_separation_by_hand():
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = separation(vectors, ["a", "a", "b", "b"])
    assert (found.within, found.between, found.gap, found.nearest, found.silhouette) == pytest.approx((1, 0, 1, 1, 1))
    same = separation(torch.ones(4, 2), ["a", "a", "b", "b"])
    assert (same.gap, same.silhouette) == pytest.approx((0, 0)) and same.nearest == pytest.approx(1 / 3)  # chance
    points, share = pca(torch.randn(6, 9, generator=torch.Generator().manual_seed(0)))
    assert points.shape == (6, 2) and 0 < share < 1


SENTENCES = [
    ("river", "the mud of the harbour wall was wet"), ("river", "gulls left the harbour wall before dawn"),
    ("money", "he shook two notes at the harbour wall"), ("money", "the last man paid the harbour wall for bait"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer", "elmo"])
def test_the_token_alone_is_the_same_in_every_sentence(kind: str):
    found = sense_set("harbour", SENTENCES)
    pretrained = loaded(kind)
    result = measure_senses(pretrained, found, loaded(kind).model)
    assert result.values["static"]["within"] == pytest.approx(1) == result.values["static"]["between"]
    if kind == "elmo":  # its layer 0 has no positions
        assert result.values["layers"][0]["gap"] == pytest.approx(0, abs=1e-6)
    assert len(result.values["layers"]) == 3 and abs(result.values["layers"][-1]["gap"]) < 0.2
    assert len(result.values["similarity"]) == 4 and 0 < result.values["pca"]["explained"] <= 1


def test_pieces_of_a_word_are_averaged():
    pretrained = loaded("encoder")
    each = occurrence("embankment", "wall", "the embankment of the harbour")
    read = read_occurrences(pretrained, [each])
    assert pretrained.tokenizer is not None
    encoded = pretrained.tokenizer.encode(each.sentence)
    places = [i for i, (a, b) in enumerate(encoded.offsets) if a >= each.start and b <= each.stop and b > a]
    assert len(places) > 1
    with torch.no_grad():
        states = pretrained.model.layer_states(torch.tensor([encoded.ids]))  # type: ignore[operator]
    torch.testing.assert_close(read.layers[-1][0], states[-1][0, places].mean(0))
    with pytest.raises(Unsupported, match="vectors in context come from"):
        read_occurrences(loaded("electra"), [each])


def test_files_of_sentences(tmp_path: Path):
    path = tmp_path / "senses.tsv"
    path.write_text(
        "# word, sense, sentence\nbank#1\triver\tA bank by the bank.\nbank\triver\tThe bank.\nbank\tmoney\tA bank.\n"
        "bank\tmoney\tMy bank.\nsea\t=one\tThe sea.\nsea\t=one\tA sea.\nsea\t=two\tMy sea.\nsea\t=two\tOur sea.\n"
    )
    bank, sea = read_senses(path)
    assert bank.occurrences[0].start == 14 and bank.senses == ["river", "money"] and not bank.one_sense
    assert sea.one_sense and sea.senses == ["one", "two"]
    for text, message in (
        ("", "senses.tsv has no sentences"),
        ("bank\triver\n", "line 1: expected word, sense and sentence with tabs between them"),
        ("bank\triver\tThe shore.\n", "line 1: 'bank' is not in the sentence 'The shore.'"),
        ("bank\triver\tThe bank.\n", "'bank' has one sense, 'river'; give at least 2"),
        ("bank\ta\tA bank.\nbank\tb\tA bank.\n", "the sense 'a' of 'bank' has 1 sentence; give at least 2"),
        ("bank#x\ta\tA bank.\n", "line 1: expected bank#NUMBER, got 'bank#x'"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=message.replace("[", r"\[")):
            read_senses(path)


def test_static_vectors(tmp_path: Path):
    vectors = torch.tensor([[1.0, 0.0, 0.1], [1.0, 1.0, 0.0], [-1.0, 0.0, 0.1], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    table = WordTable(Vocabulary(["man", "king", "woman", "queen", "tree"], [0] * 5), vectors)
    questions, pairs = tmp_path / "q.txt", tmp_path / "pairs.txt"
    questions.write_text(": family\nman king woman queen\nking man queen woman\nman king aunt uncle\n")
    pairs.write_text("man king 9\nman tree 2\nman uncle 4\n")
    found = measure_analogies(table, questions).values["3CosAdd"]
    assert (found["asked"], found["skipped"], found["accuracy"]) == (2, 1, 1.0)
    assert found["accuracy_neighbour"] == 1.0  # in so small a table the control is as good
    assert measure_similarity(table, [pairs]).values["files"] == [
        {"file": "pairs.txt", "correlation": pytest.approx(1.0), "covered": 2, "pairs": 3}
    ]
