"""The languages of mBART and mBART-50: tokens around a source, the first tokens of a target, and translations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.tokenizers.test_tokenizer import CONTROLS, normal, sentencepiece
from tests.hub.folders import bert
from transformers import MBart50Tokenizer, MBartConfig, MBartForConditionalGeneration, MBartTokenizer

from longspan import hub
from longspan.cli.main import main
from longspan.data.tokenizers.vocabularies import LANGUAGES
from longspan.decode import Beam
from longspan.errors import InvalidOption, UnknownName

PIECES = [("▁a", -2.0), ("▁dog", -3.0), ("▁runs", -3.5), ("▁the", -2.5), ("▁Hund", -4.0), (".", -3.0), ("▁", -5.0)]
PIECES += [(letter, -8.0 - place / 16) for place, letter in enumerate("abcdefghijklmnopqrstuvwxyzH")]
TEXTS = ["the dog runs.", "a dog", "runs the dog a dog runs"]
NEW = 8


def mbart(folder: Path, kind: str, *, sentencepiece_only: bool = False, **changes: Any) -> tuple[Path, Any, Any]:
    """A folder with a small random mBART, and their model and tokenizer."""
    pieces = [*CONTROLS, *normal(PIECES)]
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    rows = [*special, *[(text, score) for text, score, _ in pieces[3:]]]
    rows += [(code, 0.0) for code in LANGUAGES[kind]] + [("<mask>", 0.0)]
    tokenizer = {"mbart": MBartTokenizer, "mbart50": MBart50Tokenizer}[kind](vocab=rows)
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32}
    torch.manual_seed(1)
    config = MBartConfig(vocab_size=len(rows), decoder_start_token_id=2, forced_eos_token_id=None, **sizes, **changes)
    model = MBartForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # wide enough for choices to be clear
            parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    if sentencepiece_only:
        sentencepiece(folder / "sentencepiece.bpe.model", pieces)
        (folder / "tokenizer_config.json").write_text(f'{{"tokenizer_class": "{type(tokenizer).__name__}"}}')
    else:
        tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


def generated(model: Any, tokenizer: Any, kind: str, beams: int) -> list[list[int]]:
    """Their translations from French to German, as ids."""
    tokenizer.src_lang = "fr_XX"
    target = tokenizer.convert_tokens_to_ids("de_DE")
    first = {"decoder_start_token_id": target} if kind == "mbart" else {"forced_bos_token_id": target}
    results = []
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        new = NEW + (kind == "mbart50")  # the language is one of its new tokens
        out = model.generate(
            **given, **first, max_new_tokens=new, num_beams=beams, do_sample=False, length_penalty=0.0,
            early_stopping=False, eos_token_id=2, pad_token_id=1,
        )  # fmt: skip
        results.append([number for number in out[0].tolist()[1 + (kind == "mbart50") :] if number not in (1, 2)])
    return results


@pytest.mark.parametrize("sentencepiece_only", [False, True], ids=["tokenizer.json", "sentencepiece"])
@pytest.mark.parametrize("kind", ["mbart", "mbart50"])
@pytest.mark.parametrize("beams", [1, 3])
def test_translations_equal_theirs(tmp_path: Path, kind: str, beams: int, sentencepiece_only: bool) -> None:
    folder, model, tokenizer = mbart(tmp_path / "mbart", kind, sentencepiece_only=sentencepiece_only)
    beam = Beam(beams=beams, length_penalty="none", max_new=NEW)
    own = hub.translate(hub.load(folder), TEXTS, source="fr_XX", target="de_DE", beam=beam)
    assert [[n for n in text.tokens if n != 2] for text in own] == generated(model, tokenizer, kind, beams)


@pytest.mark.parametrize("kind", ["mbart", "mbart50"])
def test_where_the_language_stands(tmp_path: Path, kind: str) -> None:
    from longspan.hub.use.languages import languages_of

    folder, _, tokenizer = mbart(tmp_path / "mbart", kind, sentencepiece_only=True)
    loaded = hub.load(folder)
    languages = languages_of(loaded, loaded.tokenizer)
    assert list(languages.ids) == LANGUAGES[kind] or sorted(languages.ids) == sorted(LANGUAGES[kind])
    assert languages.ids["de_DE"] == tokenizer.convert_tokens_to_ids("de_DE") and languages.before == (
        kind == "mbart50"
    )
    assert loaded.tokenizer.encode("the dog").ids == tokenizer("the dog")["input_ids"]  # en_XX unless told otherwise
    tokenizer.src_lang = "fr_XX"
    french = languages.source_tokenizer(loaded.tokenizer, "fr_XX")
    assert french.encode("the dog").ids == tokenizer("the dog")["input_ids"]
    code = languages.ids["de_DE"]
    assert languages.begin(loaded.tokenizer, "de_DE") == ([2, code] if kind == "mbart50" else [code])


def test_languages_that_are_missing_or_unknown_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, _ = mbart(tmp_path / "mbart", "mbart")
    loaded = hub.load(folder)
    with pytest.raises(UnknownName, match=r"--to: this model has no language 'de_CH'; .*de_DE.*zh_CN"):
        hub.translate(loaded, TEXTS, target="de_CH")
    with pytest.raises(UnknownName, match=r"--from: this model has no language 'xx_YY'; .*ar_AR, cs_CZ, de_DE"):
        hub.translate(loaded, TEXTS, source="xx_YY", target="de_DE")
    with pytest.raises(InvalidOption, match="this model writes several languages; choose one by --to: ar_AR, cs_CZ"):
        hub.translate(loaded, TEXTS)
    assert main(["translate", str(folder), "a dog", "--from", "en_XX", "--to", "de_DE", "--beams", "1"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["translate", str(folder), "a dog", "--to", "klingon"]) == 2
    assert "no language 'klingon'" in capsys.readouterr().err


def test_a_folder_with_a_language_of_its_own_needs_no_flag(tmp_path: Path) -> None:
    """As mbart-large-en-ro: its configuration says which token the decoder starts with."""
    folder, _, tokenizer = mbart(tmp_path / "mbart", "mbart")
    german = tokenizer.convert_tokens_to_ids("de_DE")
    for name in ("config.json", "generation_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"decoder_start_token_id": 2', f'"decoder_start_token_id": {german}'))
    beam = Beam(beams=1, max_new=NEW)
    loaded = hub.load(folder)
    assert hub.translate(loaded, TEXTS, beam=beam) == hub.translate(loaded, TEXTS, target="de_DE", beam=beam)


def test_a_model_without_languages_refuses_the_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, _ = mbart(tmp_path / "mbart", "mbart")
    loaded = hub.load(folder)
    loaded.family = "bart"
    with pytest.raises(InvalidOption, match="this bart has no language tokens; leave out --from and --to"):
        hub.translate(loaded, TEXTS, target="de_DE")
    assert main(["translate", str(bert(tmp_path / "bert")), "a", "--to", "de_DE"]) == 2
    assert "writes no text" in capsys.readouterr().err
