"""Vectors of texts: equal to transformers', whatever else is in the batch, by any layer and pooling."""

from pathlib import Path

import pytest
import torch
from tests.hub.folders import WORDS, bert, decoder, sentence_bert, transformer
from transformers import AutoModel, AutoTokenizer, BertModel, BertTokenizer

from longspan import hub
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import TextStates
from longspan.models.classics.elmo import Elmo
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word2vec import Word2Vec

TEXTS = ["the cat sits on the mat .", "a dog", "", "the capital of france is a dog .", "runs", "[MASK] [SEP]"]


@pytest.fixture
def theirs(folder: Path):
    """The states of each text, alone, after each layer."""
    bert(folder, "BertModel")
    model, tokenizer = BertModel.from_pretrained(folder).eval(), BertTokenizer.from_pretrained(folder)

    def read(text: str) -> torch.Tensor:
        with torch.no_grad():
            out = model(**tokenizer(text, return_tensors="pt", split_special_tokens=True), output_hidden_states=True)
        return torch.stack(out.hidden_states)[:, 0]  # (layers, length, width)

    return read


MAKES = {
    "mean": lambda states: states.mean(0),
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "max": lambda states: states.amax(0),
}


@pytest.mark.parametrize("how", MAKES)
@pytest.mark.parametrize("layer", [-1, -2, 0, 3])
def test_vectors_equal_theirs(folder: Path, theirs, how: str, layer: int) -> None:
    expected = torch.stack([MAKES[how](theirs(text)[layer]) for text in TEXTS])
    own = hub.embed(hub.load(folder), TEXTS, layers=[layer], pool=how)
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("combine", ["mean", "sum", "concat"])
def test_several_layers_are_combined(folder: Path, theirs, combine: str) -> None:
    layers = [-1, -2, -3, -4]
    own = hub.embed(hub.load(folder), TEXTS, layers=layers, combine=combine)
    states = [torch.stack([theirs(text)[layer].mean(0) for text in TEXTS]) for layer in layers]
    expected = torch.cat(states, 1) if combine == "concat" else torch.stack(states).sum(0)
    torch.testing.assert_close(own, expected / (4 if combine == "mean" else 1), rtol=0, atol=1e-5)


class Positions(TextStates):
    """A model from outside the package: the state of a token is its id times the layer's number."""

    name, paper = "positions", "no paper"

    def __init__(self) -> None:
        super().__init__(options=None)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def text_states(self, ids, *, key_mask=None):
        return self.layer_states(ids, key_mask=key_mask)[-1]

    def layer_states(self, ids, *, key_mask=None):
        return [self.scale * layer * ids[..., None].float() for layer in range(3)]


def test_a_model_from_outside_embeds_by_its_ability(folder: Path) -> None:
    found = hub.load(bert(folder, "BertModel"))
    found.model = Positions()
    means = torch.tensor(
        [sum(found.tokenizer.encode(text).ids) / len(found.tokenizer.encode(text)) for text in TEXTS[:3]]
    )
    torch.testing.assert_close(hub.embed(found, TEXTS[:3]), 2 * means[:, None])
    torch.testing.assert_close(hub.embed(found, TEXTS[:3], layers=[1]), means[:, None])
    with pytest.raises(InvalidOption, match=r"layers 0 .* to 2, or from the top -1 to -3, not 3"):
        hub.embed(found, TEXTS[:1], layers=[3])


def test_a_vector_does_not_depend_on_the_other_texts(folder: Path) -> None:
    found = hub.load(bert(folder, "BertModel"))
    together = hub.embed(found, TEXTS)
    alone = torch.cat([hub.embed(found, [text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    turned = hub.embed(found, TEXTS[::-1], batch=2).flip(0)
    torch.testing.assert_close(together, turned, rtol=0, atol=1e-6)
    many = hub.embed(found, TEXTS * 50, batch=7)
    torch.testing.assert_close(many, together.repeat(50, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "how"),
    [("cls_token", "first"), ("mean_tokens", "mean"), ("max_tokens", "max"), ("lasttoken", "last")],
)
def test_the_folder_says_how_and_that_goes_along(folder: Path, tmp_path: Path, mode: str, how: str) -> None:
    sentence_bert(folder, **{f"pooling_mode_{mode}": True, "pooling_mode_weightedmean_tokens": False})
    found = hub.load(folder)
    own = hub.embed(found, TEXTS)
    torch.testing.assert_close(own.norm(dim=1), torch.ones(len(TEXTS)))
    plain = hub.embed(found, TEXTS, pool=how, normalise=False)
    torch.testing.assert_close(own, plain / plain.norm(dim=1, keepdim=True))
    hub.save(found, tmp_path / "back")
    again = hub.load(tmp_path / "back")
    assert again.sentence == found.sentence and torch.equal(hub.embed(again, TEXTS), own)


@pytest.mark.parametrize("begin", [True, False])
def test_decoders_and_encoder_decoders_too(folder: Path, begin: bool) -> None:
    found = hub.load(decoder(folder / "one", begin=begin))
    texts = ["abc", "a", "longer than the others"]
    ids = [found.tokenizer.encode(text).ids for text in texts]
    with torch.no_grad():
        expected = torch.stack([found.model.hidden(torch.tensor([row]))[0, -1] for row in ids])
    torch.testing.assert_close(hub.embed(found, texts, pool="last"), expected, rtol=0, atol=1e-5)
    both = hub.load(transformer(folder / "two"))
    with torch.no_grad():
        expected = torch.stack([both.model.encode(torch.tensor([list(row)[begin:]]))[0].mean(0) for row in ids])
    torch.testing.assert_close(hub.embed(both, texts), expected, rtol=0, atol=1e-5)
    assert hub.embed(both, texts, layers=[0, 1], combine="concat").shape == (3, 32)


def test_progress_counts_texts(folder: Path) -> None:
    told: list[int] = []
    hub.embed(hub.load(bert(folder)), TEXTS, batch=4, progress=told.append)
    assert told == [4, 6]


def test_long_texts_are_refused_or_cut(folder: Path) -> None:
    found = hub.load(bert(folder))
    long = " ".join(["cat"] * 20)
    with pytest.raises(InvalidInput, match="text 1 has 22 tokens, and at most 12 can be read"):
        hub.embed(found, ["a cat", long])
    cut = hub.embed(found, [long], truncate=True)
    assert torch.equal(cut, hub.embed(found, [" ".join(["cat"] * 10)]))
    shorter = hub.embed(found, [long], truncate=True, longest=5)
    assert torch.equal(shorter, hub.embed(found, ["cat cat cat"]))


def test_what_cannot_be_done_is_said(folder: Path, tmp_path: Path) -> None:
    found = hub.load(bert(folder))
    for wrong, words in (
        ({"layers": [5]}, r"layers 0 \(embeddings\) to 4, or from the top -1 to -5, not 5"),
        ({"layers": []}, "one layer at least"),
        ({"combine": "product"}, "combine must be one of mean, sum, concat"),
        ({"pool": "median"}, "pool must be one of"),
        ({"batch": 0}, "batch must be at least 1"),
    ):
        with pytest.raises(InvalidOption, match=words):
            hub.embed(found, ["a cat"], **wrong)
    with pytest.raises(InvalidInput, match="there are no texts"):
        hub.embed(found, [])
    with pytest.raises(InvalidInput, match="put it in a list"):
        hub.embed(found, "a cat")
    with pytest.raises(InvalidInput, match="text 1 is empty"):
        hub.embed(hub.load(decoder(tmp_path / "bytes")), ["a", ""])
    odd = hub.load(sentence_bert(tmp_path / "odd", pooling_mode_mean_sqrt_len_tokens=True))
    with pytest.raises(Unsupported, match="asks for mean_sqrt_len_tokens, which is not done here: give pool"):
        hub.embed(odd, ["a cat"])
    assert hub.embed(odd, ["a cat"], pool="mean").shape == (1, 16)


def test_a_folder_without_or_with_another_tokenizer(folder: Path) -> None:
    bert(folder)
    (folder / "vocab.txt").write_text("\n".join([*WORDS, *(f"more{number}" for number in range(9))]))
    with pytest.raises(InvalidInput, match=r"the tokenizer has 28 tokens and the model 22 rows .* made for this model"):
        hub.load(folder)
    assert hub.load(folder, tokenizer=False).tokenizer is None
    (folder / "vocab.txt").unlink()
    with pytest.raises(InvalidInput, match=r"has no tokenizer: put its tokenizer\.json"):
        hub.embed(hub.load(folder), ["a cat"])


def test_the_tokenizer_is_written_back_and_read_by_theirs(folder: Path, tmp_path: Path) -> None:
    found = hub.load(bert(folder))
    hub.save(found, tmp_path / "back")
    again, theirs = hub.load(tmp_path / "back"), AutoTokenizer.from_pretrained(tmp_path / "back")
    for text in TEXTS[:-1]:
        assert again.tokenizer.encode(text).ids == found.tokenizer.encode(text).ids == theirs(text)["input_ids"]


# Real weights

RELATED = ("A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.")


@pytest.mark.weights
def test_minilm_knows_what_is_related(minilm: Path) -> None:
    texts = [*RELATED, "x " * 200, "[SEP] is text here", "naïve Café"]
    found = hub.load(minilm)
    own = hub.embed(found, texts)
    assert own.shape == (6, 384)
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    for text, vector in zip(texts, own):
        given = tokenizer(text, return_tensors="pt", split_special_tokens=True)
        with torch.no_grad():
            expected = torch.nn.functional.normalize(model(**given).last_hidden_state.mean(1)[0], dim=0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-4)
    cosines = own @ own.T
    assert cosines[0, 1] > 0.6 and cosines[0, 2] < 0.1
    torch.testing.assert_close(hub.embed(found, texts[::-1], batch=1).flip(0), own, rtol=0, atol=1e-5)


def test_a_vector_for_each_token(folder: Path) -> None:
    """Each is the state of its token: their mean over a text is its pooled vector."""
    found = hub.load(bert(folder))
    whole = hub.embed(found, TEXTS, pool="mean", normalise=False)
    each = hub.embed_tokens(found, TEXTS, batch=2)
    for vector, text, encoded in zip(whole, each, found.tokenizer.encode_many(TEXTS)):
        assert text.tokens == [found.tokenizer.inner.id_to_token(number) for number in encoded.ids]
        torch.testing.assert_close(text.vectors.mean(0), vector, rtol=0, atol=1e-5)
    with pytest.raises(InvalidOption, match="has no learned mix of layers"):
        hub.embed(found, TEXTS, combine="mix")


def test_words_of_elmo_and_word2vec(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"cells": 12, "projection": 8, "filters": (4, 4, 6), "character_width": 4, "characters": 12}
    learn(TokenizerOptions(kind="bytes", special=False), ["a"]).save(tmp_path / "elmo")
    Elmo.build(**sizes).save(tmp_path / "elmo")
    elmo = hub.load(tmp_path / "elmo")
    river, money = hub.embed_tokens(elmo, ["the bank of a river", "her bank"], layers=[0, 2], combine="concat")
    assert river.tokens == ["the", "bank", "of", "a", "river"] and money.vectors.shape == (2, 32)
    # The first layer is of the word alone, the last of the word in its context.
    assert torch.equal(river.vectors[1, :16], money.vectors[1, :16])
    assert not torch.allclose(river.vectors[1, 16:], money.vectors[1, 16:])
    torch.testing.assert_close(
        hub.embed(elmo, ["her bank"], layers=[0, 2], combine="concat")[0], money.vectors.mean(0), rtol=0, atol=1e-6
    )
    model = Word2Vec.of(Vocabulary(["a", "river", "bank"], [3, 2, 1]), dim=4, lowercase=True)
    model.save(tmp_path / "words")
    words = hub.load(tmp_path / "words")
    (text,) = hub.embed_tokens(words, ["A strange River"])
    assert text.tokens == ["a", "river"] and torch.equal(text.vectors, model.vectors[:2])
    assert torch.equal(hub.embed(words, ["A strange River"])[0], model.vectors[:2].mean(0))
    with pytest.raises(InvalidInput, match="text 0 has no word that the model knows: 'strange'"):
        hub.embed(words, ["strange"])
    with pytest.raises(InvalidOption, match="word2vec has one layer of vectors"):
        hub.embed(words, ["a"], layers=[1])
