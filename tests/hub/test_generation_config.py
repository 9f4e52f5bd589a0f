"""Texts that BART and LED write, token for token as Hugging Face's `generate`, and settings read from folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import padded, random_model
from torch import Tensor
from transformers import BartConfig, LEDConfig
from transformers.models.bart.modeling_bart import BartForConditionalGeneration
from transformers.models.led.modeling_led import LEDForConditionalGeneration

from longspan import hub
from longspan.decode import Beam, Sampling, beam_search, generate, score
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import generation_config

START, END, PADDING = 2, 2, 1
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 30,
}
BART = {**SMALL, "max_position_embeddings": 20}
LED = {
    **SMALL,
    "attention_window": 4,
    "max_encoder_position_embeddings": 32,
    "max_decoder_position_embeddings": 20,
}


def write(folder: Path, cls: Any, config: Any, *, seed: int, size: float, end: float) -> Any:
    """Their model, saved: the smaller its matrices, the closer the hypotheses; `end` is added to the end's logit."""
    theirs = random_model(cls, config, torch.float64, seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() > 1:
                parameter.mul_(size)
        theirs.final_logits_bias[:, END] = end
    theirs.save_pretrained(folder)
    return theirs


def sources() -> tuple[Tensor, Tensor]:
    ids, mask = padded(40)
    return ids.masked_fill(~mask, PADDING), mask


def new_tokens(rows: Tensor, begin: int = 1) -> list[list[int]]:
    """What they wrote after the prompt, up to the end."""
    found = []
    for row in rows.tolist():
        text = row[begin:]
        found.append(text[: text.index(END) + 1] if END in text else text)
    return found


def drawn(seed: int) -> list[dict[str, Any]]:
    """Settings of every kind, in combinations that differ from seed to seed."""
    generator = torch.Generator().manual_seed(seed)

    def one(choices: Sequence[Any]) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    return [
        {
            "num_beams": one((2, 4, 4, 7)),
            "length_penalty": one((0.0, 0.6, 1.0, 2.0)),
            "early_stopping": early,
            "max_length": one((5, 12, 20)),
            "min_length": one((0, 0, 4)),
            "no_repeat_ngram_size": one((0, 0, 2)),
            "forced_bos_token_id": one((None, 0)),
            "forced_eos_token_id": one((None, END)),
            "num_return_sequences": 2,
        }
        for early in (False, True, "never")
        for _ in range(2)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size,end", [(1.0, 0.5), (0.35, 1.0), (0.15, 0.5)], ids=["peaked", "between", "flat"])
def test_beams_and_their_scores_equal_theirs(folder: Path, seed: int, size: float, end: float) -> None:
    theirs = write(folder, BartForConditionalGeneration, BartConfig(**BART), seed=seed, size=size, end=end)
    model: Any = hub.load(folder).model
    ids, mask = sources()
    for given in drawn(seed):
        theirs.generation_config.update(**given)
        expected = theirs.generate(
            ids, attention_mask=mask.long(), return_dict_in_generate=True, output_scores=True, use_cache=True
        )
        how = generation_config.translate(theirs.generation_config.to_dict())
        assert isinstance(how.search, Beam)
        found = beam_search(model, how.prompts(3), source=ids, source_mask=mask, options=how.search, eos=how.ends)
        flat = [hypothesis for row in found for hypothesis in row]
        assert [hypothesis.tokens for hypothesis in flat] == new_tokens(expected.sequences), given
        scores = torch.tensor([hypothesis.score for hypothesis in flat])
        torch.testing.assert_close(scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
        assert all(hypothesis.finished == (hypothesis.tokens[-1] == END) for hypothesis in flat)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("forced", [None, 0])
def test_greedy_texts_and_logits_equal_theirs(folder: Path, seed: int, forced: int | None) -> None:
    theirs = write(folder, BartForConditionalGeneration, BartConfig(**BART), seed=seed, size=0.5, end=1.0)
    model: Any = hub.load(folder).model
    ids, mask = sources()
    theirs.generation_config.update(max_length=14, min_length=5, forced_bos_token_id=forced)
    expected = theirs.generate(ids, attention_mask=mask.long(), return_dict_in_generate=True, output_logits=True)
    how = generation_config.translate(theirs.generation_config.to_dict())
    assert isinstance(how.search, Sampling) and how.max_new is not None
    found = generate(
        model,
        how.prompts(3),
        source=ids,
        source_mask=mask,
        max_new=how.max_new,
        sampling=how.search,
        eos=how.ends,
    )
    given = len(how.begin)
    assert found.tokens == new_tokens(expected.sequences, given)
    # The same states step by step: each token's logits after those before it.
    state = model.start(3, source=ids, source_mask=mask)
    for place, theirs_now in enumerate(expected.logits):
        with torch.no_grad():
            logits, state = model.extend(expected.sequences[:, place : place + 1], state)
        torch.testing.assert_close(logits[:, -1].float(), theirs_now, rtol=0, atol=1e-4)
    scored = score(model, how.prompts(3), found.tokens, source=ids, source_mask=mask)
    for own, reported in zip(scored, found.logprobs):
        torch.testing.assert_close(own, torch.tensor(reported, dtype=torch.float64))


def test_padding_on_the_left_of_a_source_does_not_count(folder: Path) -> None:
    """Their positions count padding on the left, so that a text depends on what it stands beside; ours do not."""
    theirs = write(folder, BartForConditionalGeneration, BartConfig(**BART), seed=5, size=1.0, end=0.5)
    model: Any = hub.load(folder).model
    ids, mask = padded(40, side="left")
    how = generation_config.translate({**theirs.generation_config.to_dict(), "num_beams": 4, "max_length": 10})
    assert isinstance(how.search, Beam)
    found = beam_search(model, how.prompts(3), source=ids, source_mask=mask, options=how.search, eos=how.ends)
    for row in range(3):
        alone = theirs.generate(ids[row][mask[row]][None], num_beams=4, max_length=10)
        assert [found[row][0].tokens] == new_tokens(alone)
    together = theirs(ids, attention_mask=mask, decoder_input_ids=torch.full((3, 1), START)).logits[1]
    apart = theirs(ids[1:2, 4:], decoder_input_ids=torch.tensor([[START]])).logits[0]
    assert not torch.allclose(together, apart, atol=1e-2)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_led_writes_as_theirs_with_global_tokens(folder: Path, seed: int, beams: int) -> None:
    theirs = write(folder, LEDForConditionalGeneration, LEDConfig(**LED), seed=seed, size=0.6, end=1.0)
    model: Any = hub.load(folder).model
    ids, mask = padded(40, length=18)
    ids = ids.masked_fill(~mask, PADDING)
    for marked in (torch.arange(18) == 0, torch.arange(18) % 5 == 2, torch.zeros(18, dtype=torch.bool)):
        chosen = marked.expand(3, 18) & mask
        expected = theirs.generate(
            ids,
            attention_mask=mask.long(),
            global_attention_mask=chosen.long(),
            num_beams=beams,
            max_length=11,
            length_penalty=2.0,
        )
        how = generation_config.translate(
            {**theirs.generation_config.to_dict(), "num_beams": beams, "max_length": 11, "length_penalty": 2.0}
        )
        prompts, streams = how.prompts(3), {"global_mask": chosen}
        if isinstance(how.search, Beam):
            hypotheses = beam_search(
                model,
                prompts,
                source=ids,
                source_mask=mask,
                source_streams=streams,
                options=how.search,
                eos=how.ends,
            )
            own = [row[0].tokens for row in hypotheses]
        else:
            own = generate(
                model,
                prompts,
                source=ids,
                source_mask=mask,
                source_streams=streams,
                max_new=10,
                sampling=how.search,
                eos=how.ends,
            ).tokens
        assert own == new_tokens(expected)


def test_streams_move_with_the_tokens_of_a_source(folder: Path) -> None:
    """Padding on the left, on the right and none at all are one source to decoding."""
    write(folder, LEDForConditionalGeneration, LEDConfig(**LED), seed=1, size=1.0, end=0.5)
    model: Any = hub.load(folder).model
    texts = [[5, 9, 4, 33, 21, 7, 8], [8, 3, 12]]
    right = torch.tensor([texts[0], [*texts[1], 0, 0, 0, 0]])
    left = torch.tensor([texts[0], [0, 0, 0, 0, *texts[1]]])
    first = torch.zeros(2, 7, dtype=torch.bool)
    first[:, 0] = True
    moved = first.clone()
    moved[1, 0], moved[1, 4] = False, True
    asked = {"max_new": 6, "bos": START, "eos": END}
    none = generate(model, source=texts, source_streams={"global_mask": torch.zeros_like(first)}, **asked)
    assert generate(model, source=texts, **asked).logprobs != none.logprobs  # the first token is global by default
    lists = generate(model, source=texts, source_streams={"global_mask": first}, **asked)
    for ids, mark in ((right, first), (left, moved)):
        tensors = generate(model, source=ids, source_mask=ids > 0, source_streams={"global_mask": mark}, **asked)
        assert tensors.tokens == lists.tokens and tensors.logprobs == lists.logprobs
    assert lists.logprobs != none.logprobs
    with pytest.raises(InvalidInput, match=r"global_mask must be \(2, 7\)"):
        generate(model, source=texts, source_streams={"global_mask": first[:, :3]}, **asked)
    with pytest.raises(InvalidInput, match="unread"):
        generate(model, source=texts, source_streams={"unread": first}, **asked)


def test_settings_are_read_as_they_read_them(folder: Path) -> None:
    """Of two files the one for generation counts; a configuration alone has its family's tokens."""
    write(folder, BartForConditionalGeneration, BartConfig(**BART), seed=0, size=1.0, end=0.0)
    config, own = folder / "config.json", folder / "generation_config.json"
    cnn = {
        "num_beams": 4,
        "length_penalty": 2.0,
        "max_length": 142,
        "min_length": 56,
        "no_repeat_ngram_size": 3,
        "early_stopping": True,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
    }
    own.write_text(json.dumps({**cnn, "decoder_start_token_id": 2, "eos_token_id": 2}))
    how = generation_config.read(folder)
    assert how.begin == (2,) and how.ends == (2,) and how.max_new == 141
    assert how.search == Beam(
        beams=4,
        length_penalty="power",
        alpha=2.0,
        stop="full",
        unfinished="ranked",
        max_new=141,
        min_new=55,
        no_repeat_ngram=3,
        prefix=(0,),
        score_prefix=False,
        last_token=2,
    )
    own.write_text(json.dumps({"do_sample": True, "top_p": 0.9, "temperature": 0.7, "max_new_tokens": 30}))
    how = generation_config.read(folder)
    assert how.search == Sampling(temperature=0.7, top_k=50, top_p=0.9)
    assert (how.begin, how.ends, how.max_new) == ((2,), (2,), 30)
    own.unlink()
    config.write_text(json.dumps({"model_type": "bart", "max_length": 20}))
    how = generation_config.read(folder)
    assert (how.begin, how.ends, how.max_new) == ((2,), (2,), 19)
    assert how.search == Sampling(temperature=0.0, last_token=2)


@pytest.mark.parametrize(
    "given,said",
    [
        ({"num_beams": 4, "length_penalty": -1.0}, "length_penalty is -1"),
        ({"num_beams": 4, "do_sample": True}, "do_sample together with num_beams"),
        ({"num_beams": 4, "repetition_penalty": 1.2}, "repetition_penalty is 1.2"),
        ({"num_beam_groups": 2}, "num_beam_groups is 2"),
        ({"bad_words_ids": [[5]]}, "bad_words_ids"),
        ({"forced_eos_token_id": [2, 3]}, "one token can be forced"),
    ],
)
def test_settings_that_cannot_be_done_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        generation_config.translate(given)


def test_last_tokens_outside_the_vocabulary_are_refused(folder: Path) -> None:
    write(folder, BartForConditionalGeneration, BartConfig(**BART), seed=0, size=1.0, end=0.0)
    model: Any = hub.load(folder).model
    with pytest.raises(InvalidInput, match="last_token 0 has the id 40"):
        beam_search(model, source=[[5]], bos=START, options=Beam(max_new=3, last_token=40))
    with pytest.raises(InvalidInput, match="last_token 0 has the id 40"):
        generate(model, source=[[5]], bos=START, max_new=3, sampling=Sampling(temperature=0.0, last_token=40))
