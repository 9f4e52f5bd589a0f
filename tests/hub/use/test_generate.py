"""Text from a folder: what `decode` gives for the ids, with the folder's own ends and beginnings."""

import json
from pathlib import Path

import pytest
import torch
from tests.hub.folders import bert, decoder, letters, transformer
from tests.hub.parity import random_model
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

from longspan import decode, hub
from longspan.decode import Beam, Sampling
from longspan.errors import InvalidInput, InvalidOption, Notice, Unsupported

PROMPTS = ["abc", "x", "a longer one", "é"]


@pytest.mark.parametrize("begin", [True, False])
def test_continuations_are_those_of_the_ids(folder: Path, begin: bool) -> None:
    found = hub.load(decoder(folder, begin=begin))
    made = hub.generate(found, PROMPTS, max_new=9, batch=3)
    ids = [found.tokenizer.encode(prompt).ids for prompt in PROMPTS]
    assert all(row[0] == 0 for row in ids) is begin
    expected = decode.generate(found.model, ids, max_new=9, eos=1)
    assert [texts[0].tokens for texts in made] == expected.tokens
    assert [texts[0].text for texts in made] == [found.tokenizer.decode(row) for row in expected.tokens]
    assert [texts[0].logprob for texts in made] == pytest.approx([sum(row) for row in expected.logprobs], abs=1e-4)


def test_a_stream_is_the_same_text_in_pieces(folder: Path) -> None:
    found = hub.load(decoder(folder))
    (whole,) = hub.generate(found, ["abc"], max_new=12)[0]
    pieces = list(hub.stream(found, "abc", max_new=12))
    assert "".join(piece.text for piece in pieces) == whole.text and pieces[-1].reason == whole.reason


def test_samples_beams_and_stops(folder: Path) -> None:
    found = hub.load(decoder(folder))
    sampling = Sampling(temperature=1.5, samples=3, seed=4)
    made = hub.generate(found, ["abc", "x"], max_new=6, sampling=sampling)
    assert [len(texts) for texts in made] == [3, 3] and len({text.text for text in made[0]}) > 1
    assert made == hub.generate(found, ["abc", "x"], max_new=6, sampling=sampling)
    best = hub.generate(found, ["abc", "x"], max_new=6, beam=Beam(beams=3, n_best=2))
    ids = [found.tokenizer.encode(prompt).ids for prompt in ("abc", "x")]
    expected = decode.beam_search(found.model, ids, options=Beam(beams=3, n_best=2, max_new=6), eos=1)
    assert [[text.tokens for text in texts] for texts in best] == [[each.tokens for each in row] for row in expected]
    whole = made[0][0].text
    stop = whole[2]
    (cut, *_) = hub.generate(found, ["abc"], max_new=6, sampling=sampling, stop=[stop])[0]
    assert cut.reason == "stop" and cut.text == whole.split(stop)[0]
    stop = best[0][0].text[1]
    (cut, *_) = hub.generate(found, ["abc"], max_new=6, beam=Beam(beams=3), stop=[stop])[0]
    assert cut.reason == "stop" and stop not in cut.text


def test_what_ends_a_text_is_the_folders_to_say(folder: Path) -> None:
    found = hub.load(decoder(folder))
    (text,) = hub.generate(found, ["abc"], max_new=12)[0]
    assert text.reason == "length"
    ending = text.tokens[4]
    first = text.tokens.index(ending)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ending, 9999]}))
    found = hub.load(folder)
    (ended,) = hub.generate(found, ["abc"], max_new=12)[0]
    assert ended.reason == "end" and ended.tokens == text.tokens[: first + 1]
    assert ended.text == found.tokenizer.decode(text.tokens[:first])


def test_without_a_number_there_is_as_much_as_there_is_room_for(folder: Path, tmp_path: Path) -> None:
    found = hub.load(decoder(folder))
    assert [len(texts[0].tokens) for texts in hub.generate(found, ["abc", "a" * 30], batch=1)] == [37, 10]
    free = hub.load(decoder(tmp_path / "free", max_length=None, position="sinusoidal"))
    assert len(hub.generate(free, ["abc"])[0][0].tokens) == 100


def test_prompts_that_leave_no_room(folder: Path) -> None:
    found = hub.load(decoder(folder))
    with pytest.raises(InvalidInput, match="45 tokens, and this decoder holds at most 40"):
        hub.generate(found, ["a" * 45])
    with pytest.raises(InvalidInput, match="38 tokens of prompt and 5 new ones are more than the 40"):
        hub.generate(found, ["a" * 38], max_new=5, slide=False)
    (cut,) = hub.generate(found, ["b" * 9 + "a" * 38], max_new=5, truncate=True)[0]
    assert cut == hub.generate(found, ["a" * 35], max_new=5)[0][0]
    with pytest.raises(InvalidInput, match="40 new tokens leave no room for a prompt in the 40"):
        hub.generate(found, ["abc"], max_new=40, truncate=True)
    assert len(hub.generate(found, ["a" * 60], truncate=True)[0][0].tokens) == 1


def test_texts_outgrow_the_model_with_one_notice(folder: Path, tmp_path: Path) -> None:
    found = hub.load(decoder(folder))
    said = "^the text may outgrow the 40 tokens that this decoder is made for; past them, each further token sees the "
    with pytest.warns(Notice, match=said + "last 40$") as notices:
        first, second = hub.generate(found, ["a" * 38, "b" * 5], max_new=45, batch=1)
    assert len(notices) == 1
    ids = found.tokenizer.encode("a" * 38).ids
    for token in first[0].tokens:
        with torch.inference_mode():
            assert token == int(found.model(torch.tensor([ids[-40:]]))[0, -1].argmax())
        ids.append(token)
    with pytest.warns(Notice, match=said):
        assert "".join(piece.text for piece in hub.stream(found, "b" * 5, max_new=45)) == second[0].text
    with pytest.warns(Notice, match=said):
        (searched,) = hub.generate(found, ["b" * 5], max_new=45, beam=Beam(beams=1))[0]
    assert searched.tokens == second[0].tokens
    free = hub.load(decoder(tmp_path / "free", position="rotary"))
    with pytest.warns(Notice, match="past them, it continues from its state$"):
        assert len(hub.generate(free, ["a" * 50], max_new=5)[0][0].tokens) == 5


def test_an_encoder_decoder_reads_prompts_as_sources(folder: Path) -> None:
    found = hub.load(transformer(folder))
    made = hub.generate(found, PROMPTS, max_new=5)
    ids = [found.tokenizer.encode(prompt).ids for prompt in PROMPTS]
    expected = decode.generate(found.model, source=ids, bos=0, max_new=5, eos=1)
    assert [texts[0].tokens for texts in made] == expected.tokens
    (folder / "generation_config.json").write_text(
        json.dumps({"decoder_start_token_id": 1, "forced_bos_token_id": 7, "eos_token_id": 1})
    )
    forced = hub.generate(hub.load(folder), PROMPTS, max_new=5)
    expected = decode.generate(found.model, [[1, 7]] * 4, source=ids, max_new=5, eos=1)
    assert [texts[0].tokens for texts in forced] == expected.tokens
    beams = hub.generate(found, PROMPTS, beam=Beam(beams=2), max_new=5)
    found_beams = decode.beam_search(found.model, source=ids, bos=0, eos=1, options=Beam(beams=2, max_new=5))
    assert [texts[0].tokens for texts in beams] == [row[0].tokens for row in found_beams]


def test_empty_prompts_begin_with_the_first_token(folder: Path) -> None:
    found = hub.load(decoder(folder))
    expected = decode.generate(found.model, [[0]], max_new=3, eos=1)
    assert hub.generate(found, [""], max_new=3)[0][0].tokens == expected.tokens[0]
    found.tokenizer.special.pop("bos")
    with pytest.raises(InvalidInput, match="an empty prompt needs a token"):
        hub.generate(found, [""], max_new=3)


def test_special_tokens_in_prompts_only_where_asked_for(folder: Path) -> None:
    found = hub.load(decoder(folder))
    expected = decode.generate(found.model, [[0]], max_new=3, eos=1)
    assert hub.generate(found, ["<s>"], max_new=3, special=True)[0][0].tokens == expected.tokens[0]
    assert hub.generate(found, ["<s>"], max_new=3)[0][0].tokens != expected.tokens[0]


def test_words_keep_the_space_before_them(folder: Path) -> None:
    """A decoder of pieces drops it at the beginning of a text, and what is generated is none."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers

    from longspan.data import Tokenizer

    inner = Inner(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("▁b", -1.0), ("c", -1.0), ("</s>", 0.0)], unk_id=0))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    torch.manual_seed(0)
    found = hub.load(decoder(folder, vocabulary=258))
    found.tokenizer = Tokenizer(inner, {"eos": "</s>"})
    bias = ((2.0, 1000.0),)
    (text,) = hub.generate(found, ["a"], max_new=3, sampling=Sampling(temperature=0, logit_bias=bias))[0]
    assert text.tokens == [2, 2, 2] and text.text == " b b b"


def test_what_cannot_write_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="this bert reads texts and writes none; it can fill or embed"):
        hub.generate(hub.load(bert(folder)), ["a cat"])
    found = hub.load(decoder(tmp_path / "decoder"))
    with pytest.raises(InvalidInput, match="no prompts"):
        hub.generate(found, [])
    with pytest.raises(InvalidInput, match="put it in a list"):
        hub.generate(found, "abc")
    with pytest.raises(InvalidOption, match="batch must be at least 1"):
        hub.generate(found, ["abc"], batch=0)
    both = hub.load(transformer(tmp_path / "both"))
    both.tokenizer.special.pop("bos")
    with pytest.raises(InvalidInput, match="needs decoder_start_token_id"):
        hub.generate(both, ["abc"])
    found.tokenizer = None
    with pytest.raises(InvalidInput, match="has no tokenizer"):
        hub.generate(found, ["abc"])


def test_a_model_with_a_tokenizer_given_as_text(tmp_path: Path) -> None:
    decoder(tmp_path / "first")
    found = hub.load(tmp_path / "first")
    found.model.save(tmp_path / "second", tokenizer=letters().to_json())
    again = hub.load(tmp_path / "second")
    assert again.tokenizer.special == {"bos": "<s>", "eos": "</s>"}
    assert hub.generate(again, ["abc"], max_new=4) == hub.generate(found, ["abc"], max_new=4)


def test_chats_are_answered(folder: Path) -> None:
    decoder(folder)
    (folder / "chat_template.jinja").write_text(
        "<s>{{ messages[0].content }}</s>{% if add_generation_prompt %}:{% endif %}"
    )
    found = hub.load(folder)
    inside = found.tokenizer.encode("hi").ids
    expected = decode.generate(found.model, [[0, *inside, 1, *found.tokenizer.encode(":").ids]], max_new=5, eos=1)
    assert hub.generate(found, ["hi"], chat=True, max_new=5)[0][0].tokens == expected.tokens[0]
    assert [piece.token for piece in hub.stream(found, "hi", chat=True, max_new=5)] == expected.tokens[0]
    with pytest.raises(InvalidOption, match="it goes without truncate"):
        hub.generate(found, ["hi"], chat=True, truncate=True)


def test_an_encoder_decoder_writes_as_its_folder_says(folder: Path) -> None:
    tokenizer = letters()
    size = tokenizer.size
    config = BartConfig(
        vocab_size=size,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=30,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    theirs = random_model(BartForConditionalGeneration, config, torch.float32)
    theirs.generation_config = GenerationConfig(
        num_beams=3,
        no_repeat_ngram_size=2,
        max_length=9,
        min_length=4,
        length_penalty=2.0,
        early_stopping=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        decoder_start_token_id=1,
    )
    theirs.save_pretrained(folder)
    tokenizer.save(folder)
    found = hub.load(folder)
    for prompt in ("abc", "a longer one"):
        ids = torch.tensor([found.tokenizer.encode(prompt).ids])
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids))[0, 1:].tolist()
        assert hub.generate(found, [prompt])[0][0].tokens == expected
