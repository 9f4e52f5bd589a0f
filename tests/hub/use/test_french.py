"""Masked prediction in French with CamemBERT's folders: pieces, accents and the space before a mask."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.tokenizers.test_tokenizer import CONTROLS, normal, sentencepiece
from transformers import CamembertConfig, CamembertForMaskedLM, CamembertTokenizer

from longspan import hub
from longspan.cli.main import main

WORDS = ["▁Le", "▁camembert", "▁est", "▁délicieux", "▁français", "▁très", "▁!", "▁l", "▁été", "▁où", "▁ça"]
PIECES = [(word, -2.0 - place / 8) for place, word in enumerate(WORDS)]
PIECES += [(letter, -8.0 - place / 16) for place, letter in enumerate("▁abcdefghijklmnopqrstuvwxyzLàâçéèêëîïôùûüœ!'.,")]
TEXTS = ["Le camembert est <mask> !", "L'été, ça <mask> très <mask>.", "<mask> où est le camembert"]
FIRST = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]


def camembert(folder: Path, files: str) -> tuple[Path, Any, Any]:
    """A folder with a small random CamemBERT; its tokenizer as tokenizer.json, or as a file of SentencePiece alone."""
    pieces = [*CONTROLS, *normal(PIECES)]
    tokenizer = CamembertTokenizer(vocab=[*FIRST, *[(text, score) for text, score, _ in pieces[1:]], ("<mask>", 0.0)])
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = CamembertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, type_vocab_size=1, **sizes)
    model = CamembertForMaskedLM(config).eval()
    with torch.no_grad():
        model.lm_head.bias.normal_(std=2.0)  # so that the order of tokens is clear
    model.save_pretrained(folder)
    if files == "tokenizer.json":
        tokenizer.save_pretrained(folder)
    else:
        sentencepiece(folder / "sentencepiece.bpe.model", pieces)
    return folder, model, tokenizer


@pytest.mark.parametrize("files", ["tokenizer.json", "sentencepiece.bpe.model"])
def test_a_french_text_is_filled_as_theirs(tmp_path: Path, files: str) -> None:
    folder, model, tokenizer = camembert(tmp_path / "camembert", files)
    own = hub.fill(hub.load(folder), TEXTS, top=4)
    for text, masks in zip(TEXTS, own):
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            chances = model(**given).logits[0].softmax(-1)
        places = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        assert len(masks) == len(places) == text.count("<mask>")
        for guesses, place in zip(masks, places):
            best = chances[place].topk(4)
            assert [guess.id for guess in guesses] == best.indices.tolist()
            assert [guess.probability for guess in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)
            assert [guess.word for guess in guesses] == [tokenizer.decode([number]) for number in best.indices]


@pytest.mark.parametrize("files", ["tokenizer.json", "sentencepiece.bpe.model"])
def test_a_mask_takes_the_space_before_it_and_accents_stay(tmp_path: Path, files: str) -> None:
    folder, _, tokenizer = camembert(tmp_path / "camembert", files)
    read = hub.load(folder).tokenizer
    for text in ("Le camembert est <mask> !", "Le camembert est<mask> !"):
        ids = read.encode(text, allow=["<mask>"]).ids
        tokens = [read.token(number) for number in ids]
        assert tokens[1:-1] == ["▁Le", "▁camembert", "▁est", "<mask>", "▁!"] and ids == tokenizer(text)["input_ids"]
    text = "L'été français est très délicieux, où ça !"
    assert read.encode(text).ids == tokenizer(text)["input_ids"] and read.decode(read.encode(text).ids) == text


def test_the_command_in_french(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, _ = camembert(tmp_path / "camembert", "tokenizer.json")
    expected = hub.fill(hub.load(folder), TEXTS[:1], top=3)[0][0]
    assert main(["fill", str(folder), TEXTS[0], "--top", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["text"] == TEXTS[0] and [guess["word"] for guess in row["masks"][0]] == [g.word for g in expected]
    assert main(["fill", str(folder), TEXTS[0], "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(expected[0].word)
