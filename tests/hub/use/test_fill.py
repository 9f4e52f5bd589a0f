"""Masked prediction: the probabilities of transformers, at every mask."""

from pathlib import Path

import pytest
import torch
from tests.hub.folders import bert, decoder
from transformers import BertForMaskedLM, BertTokenizer

from longspan import hub
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import TextHeads

TEXTS = ["the capital of france is [MASK] .", "[MASK] cat [MASK] on the mat", "a [MASK]"]


def test_probabilities_equal_theirs_at_every_mask(folder: Path) -> None:
    found = hub.load(bert(folder))
    own = hub.fill(found, TEXTS, top=3)
    model, tokenizer = BertForMaskedLM.from_pretrained(folder).eval(), BertTokenizer.from_pretrained(folder)
    for text, masks in zip(TEXTS, own):
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            chances = model(**given).logits[0].softmax(-1)
        places = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        assert len(masks) == len(places) == text.count("[MASK]")
        for guesses, place in zip(masks, places):
            best = chances[place].topk(3)
            assert [guess.id for guess in guesses] == best.indices.tolist()
            assert [guess.probability for guess in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)
            for guess in guesses:  # the model has rows for which the tokenizer has no token
                assert guess.id >= tokenizer.vocab_size or guess.token == tokenizer.convert_ids_to_tokens(guess.id)


def test_masks_may_be_written_either_way_and_nothing_else_is_special(folder: Path) -> None:
    found = hub.load(bert(folder))
    one, other = hub.fill(found, ["a [MASK] sits", "a <mask> sits"])
    assert one == other
    plain, special = hub.fill(found, ["a [MASK] sits [SEP] x", "a [MASK] sits"])
    assert plain != special and len(plain) == len(special) == 1


class Unigram(TextHeads):
    """A model from outside the package: the same logits at every position."""

    name, paper = "unigram", "no paper"

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(options=None)
        self.logits = torch.nn.Parameter(logits)
        self.heads = torch.nn.ModuleDict({"masked": torch.nn.Identity()})

    def outputs(self, ids, *, key_mask=None, segments=None, chosen=None):
        every = self.logits.expand(*ids.shape, -1)
        return {"masked": every if chosen is None else every[chosen]}


def test_a_model_from_outside_fills_masks_by_its_ability(folder: Path) -> None:
    found = hub.load(bert(folder))
    found.model, size = Unigram(torch.arange(22.0)), found.tokenizer.size
    one, two = hub.fill(found, ["a [MASK]", "[MASK] cat [MASK]"], top=2)
    expected = torch.arange(22.0).softmax(0)[[21, 20]].tolist()
    for guesses in (*one, *two):
        assert [guess.id for guess in guesses] == [21, 20]
        assert [guess.probability for guess in guesses] == pytest.approx(expected)
    assert (len(one), len(two)) == (1, 2)
    with pytest.raises(InvalidOption, match=f"top must be 1 to {size}, the vocabulary"):
        hub.fill(found, ["a [MASK]"], top=size + 1)


def test_texts_and_models_that_cannot_be_filled_are_refused(folder: Path, tmp_path: Path) -> None:
    found = hub.load(bert(folder))
    with pytest.raises(InvalidInput, match=r"text 1 has no \[MASK\], and nothing to predict: 'a cat'"):
        hub.fill(found, ["a [MASK]", "a cat"])
    with pytest.raises(InvalidInput, match="there are no texts"):
        hub.fill(found, [])
    with pytest.raises(InvalidInput, match="put it in a list"):
        hub.fill(found, "a [MASK]")
    for top in (0, 23):
        with pytest.raises(InvalidOption, match=f"top must be 1 to 22, the vocabulary, not {top}"):
            hub.fill(found, ["a [MASK]"], top=top)
    long = "cat " * 20 + "[MASK]"
    with pytest.raises(InvalidInput, match="text 0 has 23 tokens, and at most 12 can be read"):
        hub.fill(found, [long])
    with pytest.raises(InvalidInput, match=r"text 0 has its \[MASK\] behind the 12 tokens"):
        hub.fill(found, [long], truncate=True)
    assert hub.fill(found, ["[MASK]" + long[:-6]], truncate=True)
    with pytest.raises(Unsupported, match="this bert has no head that predicts masked tokens; it has: pool"):
        hub.fill(hub.load(bert(tmp_path / "pool", "BertModel")), ["a [MASK]"])
    with pytest.raises(Unsupported, match="this decoder has no head"):
        hub.fill(hub.load(decoder(tmp_path / "decoder")), ["a [MASK]"])
    found.tokenizer.special.pop("mask")
    with pytest.raises(Unsupported, match="no token for masks"):
        hub.fill(found, ["a [MASK]"])
