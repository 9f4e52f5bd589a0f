"""word2vec: section 28 of the specification. Check 5 needs public vectors and is not here."""

import random
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.models import build, load
from longspan.models.classics import skip_gram
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word2vec import Word2Vec

GRID = {"man": "mp", "king": "mr", "woman": "fp", "queen": "fr", "boy": "mpy", "prince": "mry", "girl": "fpy"}
MARKS = {
    "m": ["he", "his", "him", "beard"],
    "f": ["she", "her", "hers", "dress"],
    "r": ["crown", "throne", "palace", "rule"],
    "p": ["street", "work", "house", "walk"],
    "y": ["young", "small", "school"],
}


@cache
def planted() -> list[list[str]]:
    """Sentences of a person and of words that tell sex, rank and age, each by its own."""
    draw = random.Random(0)
    sentences = []
    for _ in range(2000):
        person, marks = draw.choice(list(GRID.items()))
        sentence = [person, *(draw.choice(MARKS[mark]) for mark in marks for _ in range(2))]
        draw.shuffle(sentence)
        sentences.append(sentence)
    return sentences


@cache
def trained() -> Word2Vec:
    corpus = planted()
    return Word2Vec.from_corpus(corpus, dim=16, batch=256, subsample="none", rate=0.05).fit(corpus)


def matrices() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = torch.randn(2, 9, 5, generator=generator, dtype=torch.float64)
    return inputs, outputs


BATCH = torch.tensor([[0, 1], [0, 2], [3, 1], [4, 4]])
NEGATIVES = torch.tensor([[5, 6], [2, 7], [1, 1], [8, 0]])  # three of them are the context itself


def test_negatives_follow_their_law():
    """Check 1: chi-square against count^0.75; 9 degrees of freedom, 27.9 at one in a thousand."""
    counts = [1000, 500, 300, 200, 100, 50, 30, 20, 10, 5]
    sampler = skip_gram.NegativeSampler(counts)
    law = torch.tensor(counts, dtype=torch.float64) ** 0.75
    law /= law.sum()
    drawn = sampler.draw(400, 500, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (400, 500)
    seen = drawn.flatten().bincount(minlength=10)
    assert float(((seen - drawn.numel() * law) ** 2 / (drawn.numel() * law)).sum()) < 27.9


def test_gradients_by_finite_differences():
    """Check 2; and the loss itself, written out."""
    inputs, outputs = (matrix.requires_grad_() for matrix in matrices())
    assert torch.autograd.gradcheck(lambda v, u: skip_gram.loss(v, u, BATCH, NEGATIVES), (inputs, outputs))
    wanted = torch.zeros((), dtype=torch.float64)
    for (centre, context), others in zip(BATCH.tolist(), NEGATIVES.tolist()):
        wanted -= (outputs[context] @ inputs[centre]).sigmoid().log()
        for other in others:
            if other != context:
                wanted -= (-outputs[other] @ inputs[centre]).sigmoid().log()
    torch.testing.assert_close(skip_gram.loss(inputs, outputs, BATCH, NEGATIVES), wanted)


def test_a_step_is_down_the_gradient():
    inputs, outputs = (matrix.requires_grad_() for matrix in matrices())
    skip_gram.loss(inputs, outputs, BATCH, NEGATIVES).backward()
    moved = [matrix.detach().clone() for matrix in (inputs, outputs)]
    skip_gram.update(*moved, BATCH, NEGATIVES, 0.1)
    for matrix, after in zip((inputs, outputs), moved):
        torch.testing.assert_close(after, matrix.detach() - 0.1 * matrix.grad, rtol=0, atol=1e-12)


def test_a_row_met_too_often_moves_by_its_mean():
    inputs, outputs = matrices()
    once, often = [inputs.clone(), outputs.clone()], [inputs.clone(), outputs.clone()]
    skip_gram.update(*once, BATCH[:1], NEGATIVES[:1], 0.1)
    skip_gram.update(*often, BATCH[:1].repeat(100, 1), NEGATIVES[:1].repeat(100, 1), 0.1)
    torch.testing.assert_close(often[0] - inputs, skip_gram.HITS * (once[0] - inputs))
    torch.testing.assert_close(often[1] - outputs, skip_gram.HITS * (once[1] - outputs))


def test_both_rules_of_subsampling():
    """Check 3: at f = 0.01 and t = 0.001, 0.316 by the paper and 0.416 by the code; rare words always stay."""
    frequency = torch.tensor([0.01, 1e-4], dtype=torch.float64)
    assert skip_gram.keep_probability(frequency, 0.001, "paper").tolist() == pytest.approx([0.316, 1], abs=5e-4)
    assert skip_gram.keep_probability(frequency, 0.001, "code").tolist() == pytest.approx([0.416, 1], abs=5e-4)
    words = Vocabulary(["a", "b"], [99, 1])
    kept = [float(Word2Vec.of(words, subsample=rule)._keep(words)[0]) for rule in ("paper", "code", "none")]
    assert kept == pytest.approx([(1e-5 / 0.99) ** 0.5, (1e-3 / 0.99) ** 0.5 + 1e-3 / 0.99, 1])


def windows(tokens: list[int], sentences: list[int], kept: list[int], window: int, **options: bool) -> set:
    found: set = set()
    for seed in range(30):  # enough for every radius to come up
        found |= set(
            map(
                tuple,
                skip_gram.pairs(
                    torch.tensor(tokens),
                    torch.tensor(sentences),
                    torch.tensor(kept) > 0,
                    window=window,
                    generator=torch.Generator().manual_seed(seed),
                    **options,
                ).tolist(),
            )
        )
    return found


def test_windows():
    """They end with the sentence; dropped words leave a gap, or none and the window widens."""
    near = {(0, 1), (1, 2), (0, 2), (3, 4)}
    assert windows([0, 1, 2, 3, 4], [0, 0, 0, 1, 1], [1] * 5, 2, widen=True) == near | {(b, a) for a, b in near}
    assert windows([0, 1, 2, 3], [0] * 4, [1, 0, 1, 1], 1, widen=True) == {(0, 2), (2, 0), (2, 3), (3, 2)}
    assert windows([0, 1, 2, 3], [0] * 4, [1, 0, 1, 1], 1, widen=False) == {(2, 3), (3, 2)}
    assert windows([0], [0], [1], 3, widen=True) == set()


def test_a_radius_is_drawn_for_each_centre():
    """Uniform in 1..w: a context at distance j has a share of (w - j + 1) / w."""
    tokens = torch.arange(6000)
    drawn = skip_gram.pairs(
        tokens, torch.zeros_like(tokens), tokens >= 0, window=3, widen=True, generator=torch.Generator().manual_seed(0)
    )
    share = (drawn[:, 1] - drawn[:, 0]).abs().bincount(minlength=4)[1:] / 12000
    assert share.tolist() == pytest.approx([1, 2 / 3, 1 / 3], abs=0.02)
    reach = torch.zeros(6000, dtype=torch.long).scatter_reduce_(0, drawn[:, 0], drawn[:, 1] - drawn[:, 0], "amax")
    lowest = torch.zeros(6000, dtype=torch.long).scatter_reduce_(0, drawn[:, 0], drawn[:, 1] - drawn[:, 0], "amin")
    assert torch.equal(reach[3:-3], -lowest[3:-3])  # the same on both sides


def test_blocks_are_whole_sentences():
    sentences = torch.tensor([0, 0, 0, 1, 1, 2, 4, 4, 4, 4])
    pieces = [own.tolist() for _, own in skip_gram.blocks(sentences, sentences, 2)]
    assert pieces == [[0, 0, 0], [1, 1], [2, 4, 4, 4, 4]]


def test_king_man_woman_queen():
    """Check 4: the planted grid closes, with exclusion and, as it is so regular, without."""
    model = trained()
    for method in ("add", "multiply"):
        assert model.analogy("man", "king", "woman", method=method)[0][0] == "queen"
    assert model.analogy("woman", "queen", "man", k=1)[0][0] == "king"
    assert model.analogy("man", "king", "woman", exclude=False)[0][0] == "queen"
    excluded = [word for word, _ in model.analogy("man", "king", "woman", k=99)]
    assert len(excluded) == len(model.words) - 3 and not {"man", "king", "woman"} & set(excluded)
    assert len(model.analogy("man", "king", "woman", exclude=False, k=99)) == len(model.words)


def test_neighbours():
    model = trained()
    found = model.neighbours("crown", 3)
    assert len(found) == 3 and {word for word, _ in found} <= {*MARKS["r"], "king", "queen", "prince"}
    cosine = torch.cosine_similarity(model.vector("crown"), model.vector(found[0][0]), dim=0)
    assert found[0][1] == pytest.approx(float(cosine), abs=1e-6) and found[0][1] >= found[1][1] >= found[2][1]


def by_hand() -> Word2Vec:
    """Vectors for which the nearest word to king - man + woman is woman, as with real ones, and then queen."""
    model = Word2Vec.of(Vocabulary(["man", "king", "woman", "queen", "tree"], [5, 4, 3, 2, 1]), dim=4)
    rows = [[5, 0, 0, 0], [5, 0.5, 0, 0], [5, 0, 2, 0], [5, 0.5, 2, 1.5], [0, 0, 0, 1]]
    model.inputs.data = torch.tensor(rows, dtype=torch.float32)
    return model


def test_scores_by_hand():
    model = by_hand()
    unit = dict(zip(model.words.words, model.table.unit))
    target = unit["king"] - unit["man"] + unit["woman"]
    for word, score in model.analogy("man", "king", "woman", exclude=False):
        assert score == pytest.approx(float(target @ unit[word] / target.norm()), abs=1e-6)
    for word, score in model.analogy("man", "king", "woman", method="multiply", exclude=False):
        a, b, c = ((float(unit[word] @ unit[other]) + 1) / 2 for other in ("man", "king", "woman"))
        assert score == pytest.approx(b * c / (a + 0.001), abs=1e-5)


def test_without_exclusion_the_answer_is_in_the_question():
    model = by_hand()
    assert model.analogy("man", "king", "woman")[0][0] == "queen"
    assert model.analogy("man", "king", "woman", exclude=False)[0][0] == "woman"


def test_a_file_of_questions(tmp_path: Path):
    path = tmp_path / "questions.txt"
    path.write_text(
        ": royals\nman king woman queen\nman king woman tree\nman king woman duchess\n\n"
        ": gram1-plural\nman king woman queen\n"
    )
    report = by_hand().evaluate(path)
    first, second = report.sections
    assert (first.name, first.asked, first.skipped, first.correct) == ("royals", 2, 1, 1)
    assert (second.asked, second.skipped, second.correct, second.syntactic) == (1, 0, 1, True)
    assert (report.semantic, report.syntactic, report.skipped) == (0.5, 1.0, 1)
    assert report.accuracy == pytest.approx(2 / 3)
    assert report.accuracy_unexcluded == 0 and first.own_words == 2  # the control
    path.write_text("Man King Woman Queen\n")
    assert by_hand().evaluate(path).accuracy is None and by_hand().evaluate(path, lower=True).accuracy == 1
    path.write_text("man king woman\n")
    with pytest.raises(InvalidInput, match="line 1: expected four words"):
        by_hand().evaluate(path)


def test_the_start_and_the_seed():
    corpus = planted()[:200]
    model = Word2Vec.from_corpus(corpus, dim=10, min_count=1)
    assert (model.outputs == 0).all() and model.inputs.abs().max() <= 0.05
    first = Word2Vec.from_corpus(corpus, dim=10, epochs=1, seed=3).fit(corpus)
    again = Word2Vec.from_corpus(corpus, dim=10, epochs=1, seed=3).fit(corpus)
    assert torch.equal(first.inputs, again.inputs)


def test_the_rate_falls_linearly():
    seen: list[tuple[float, float]] = []
    corpus = planted()[:200]
    model = Word2Vec.from_corpus(corpus, dim=4, epochs=4)
    model.fit(corpus, progress=lambda part, rate: seen.append((part, rate)))
    assert [part for part, _ in seen] == [0.25, 0.5, 0.75, 1.0]
    assert [rate for _, rate in seen] == pytest.approx([0.025 * 0.75, 0.025 * 0.5, 0.025 * 0.25, 0.025 * 1e-4])


def test_the_words_of_a_corpus(tmp_path: Path):
    words = Vocabulary.count([["b", "a", "c"], ["a", "b", "é\u2028"]], min_count=1, first=("<S>", "</S>"))
    assert words.words == ("<S>", "</S>", "a", "b", "c", "é\u2028") and words.counts == (0, 0, 2, 2, 1, 1)
    words.write(tmp_path / "words.txt")
    assert Vocabulary.read(tmp_path / "words.txt") == words
    assert Vocabulary.count([["b", "a"], ["a"]], min_count=2).words == ("a",)


def test_a_folder_holds_the_words_too(tmp_path: Path):
    model = trained()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again, Word2Vec) and again.options == model.options and again.words == model.words
    assert again.neighbours("crown") == model.neighbours("crown")
    (tmp_path / "model" / "vocabulary.txt").write_text("one 1\n")
    with pytest.raises(InvalidInput, match=r"vocabulary\.txt has 6 bytes, and \d+ were written"):
        load(tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()
    with pytest.raises(InvalidInput, match=r"vocabulary\.txt has 1 words, and the model has"):
        load(tmp_path / "model")
    (tmp_path / "model" / "vocabulary.txt").unlink()
    with pytest.raises(InvalidInput, match=r"vocabulary\.txt is not there"):
        load(tmp_path / "model")


def test_text_vectors(tmp_path: Path):
    path = tmp_path / "words.vec"
    trained().write_text(path)
    again = Word2Vec.read_text(path)
    assert torch.equal(again.inputs, trained().inputs) and again.words.words == trained().words.words
    with pytest.raises(InvalidInput, match="these words have no counts"):
        again.fit(planted())
    for text, message in [
        ("words\n", "line 1: expected the number of words and their width"),
        ("2 2\na 1 2\nb 1\n", "line 3: expected 2 lines of a word and 2 numbers"),
        ("1 2\na 1 2\nb 1 2\n", "line 3: expected 1 lines"),
        ("2 2\na 1 2\n", "says it has 2 words, and has 1; it was cut off"),
        ("1 2\na 1 x\n", "line 2: could not convert"),
        ("2 1\na 1\na 1\n", "has 'a' twice"),
    ]:
        path.write_text(text)
        with pytest.raises(InvalidInput, match=message):
            Word2Vec.read_text(path)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UnknownName, match=r"'qeen' is not among the \d+ words: did you mean 'queen'\?"):
        trained().neighbours("qeen")
    with pytest.raises(UnknownName, match="no method of analogy is called 'mul'"):
        trained().analogy("man", "king", "woman", method="mul")
    with pytest.raises(InvalidInput, match="k of at least 1, got 0"):
        trained().neighbours("king", 0)
    with pytest.raises(InvalidInput, match="has no words; make it with from_corpus"):
        build("word2vec", vocabulary=3).neighbours("king")
    with pytest.raises(InvalidInput, match="expected lists of words, got a text as sentence 0"):
        Word2Vec.from_corpus(["a text"])
    with pytest.raises(InvalidInput, match="no word is in the corpus 5 times; it has 1 different words"):
        Word2Vec.from_corpus([["a"]])
    with pytest.raises(InvalidInput, match="no word of the corpus is in the vocabulary"):
        trained().fit(iter(()))
    with pytest.raises(InvalidOption, match="vocabulary is the number of the words given"):
        Word2Vec.of(Vocabulary(["a"], [1]), vocabulary=3)
