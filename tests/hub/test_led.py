"""LED here and there: windows of each layer, global tokens, padding on both sides, any length."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, random_model
from torch import Tensor
from transformers import LEDConfig
from transformers.models.led import modeling_led as theirs_led

from longspan import hub
from longspan.decode import Beam, search_many
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import shift_right
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 30,
    "attention_window": [4, 8, 6],
    "max_encoder_position_embeddings": 32,
    "max_decoder_position_embeddings": 21,
}
GLOBALS = {"none": (), "first": (0,), "some": (0, 3, 11)}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """They round the encoder's softmax to float32 whatever the model's type is; here it is not rounded."""
    softmax = torch.nn.functional.softmax

    def whole(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return softmax(x, dim=dim)

    monkeypatch.setattr(theirs_led.nn.functional, "softmax", whole)


def texts(side: str, marked: tuple[int, ...], length: int = 19) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A source of no whole number of windows, its mask, its global tokens, and what the decoder reads."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(3, 40, (3, length), generator=generator)
    lengths = torch.tensor([length, length - 5, 3])
    places = torch.arange(length)
    mask = places < lengths[:, None] if side == "right" else places >= length - lengths[:, None]
    chosen = torch.zeros_like(mask)
    for place in marked:  # of the real tokens, from their first
        row = torch.arange(3)[place < lengths]
        chosen[row, (mask.int().argmax(1) + place)[row]] = True
    return source, mask, chosen, torch.arange(3, 21).view(3, 6) % 37 + 3


def spread(local: Tensor, whole: Tensor | None, marked: Tensor, window: int) -> Tensor:
    """Their maps, (batch, heads, length, globals + window + 1) and (batch, heads, length, globals), as squares."""
    batch, heads, length, _ = local.shape
    found = local.new_zeros(batch, heads, length, length)
    slots = 0 if whole is None else whole.shape[-1]
    for offset in range(-window // 2, window // 2 + 1):
        rows = torch.arange(max(0, -offset), min(length, length - offset))
        found[:, :, rows, rows + offset] += local[:, :, rows, slots + offset + window // 2]
    for row in range(batch):
        for slot, place in enumerate(marked[row].nonzero()[:, 0].tolist()):
            assert whole is not None
            found[row, :, :, place] += local[row, :, :, slot]
            found[row, :, place] = whole[row, :, :length, slot]  # theirs goes on into padding
    return found


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("which", GLOBALS)
@pytest.mark.usefixtures("exact")
def test_states_and_maps_of_both_sides_equal_theirs(folder: Path, side: str, which: str) -> None:
    theirs = random_model(theirs_led.LEDModel, LEDConfig(**SMALL))
    model: Any = loaded(theirs, folder).model
    source, mask, marked, ids = texts(side, GLOBALS[which])
    with torch.no_grad():
        expected = theirs(
            source,
            attention_mask=mask.long(),
            global_attention_mask=marked.long(),
            decoder_input_ids=ids,
            output_hidden_states=True,
            output_attentions=True,
        )
        with recording(model.encoder) as read, recording(model.decoder) as written:
            out = model.hidden(source, ids, source_mask=mask, streams={"global_mask": marked})
    assert_close(out, expected.last_hidden_state)
    for own, other in zip(read.states, expected.encoder_hidden_states, strict=True):
        assert_close(own, other, mask)
    wholes = expected.encoder_global_attentions or [None] * 3
    for own, other, whole, window in zip(read.maps, expected.encoder_attentions, wholes, SMALL["attention_window"]):
        square = spread(other, whole, marked, window)
        assert_close(own.transpose(1, 2), square.transpose(1, 2), mask)
    for own, other in zip(written.states, expected.decoder_hidden_states, strict=True):
        assert_close(own, other)
    for own, other in zip(written.maps, expected.decoder_attentions, strict=True):
        assert_close(own, other)
    for own, other in zip(written.cross_maps, expected.cross_attentions, strict=True):
        assert_close(own, other)


@pytest.mark.parametrize("length", [1, 8, 23])
def test_logits_in_float32_equal_theirs_at_any_length(folder: Path, tmp_path: Path, length: int) -> None:
    cls = theirs_led.LEDForConditionalGeneration
    theirs = random_model(cls, LEDConfig(**{**SMALL, "attention_window": 4}), torch.float32)
    theirs.final_logits_bias.copy_(torch.randn(1, 40))
    found = loaded(theirs, folder)
    source = torch.arange(length).view(1, -1) % 37 + 3
    marked = torch.arange(length).view(1, -1) == 0
    ids = torch.tensor([[2, 5, 9]])
    with torch.no_grad():
        expected = theirs(source, global_attention_mask=marked.long(), decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, streams={"global_mask": marked}), expected)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.usefixtures("exact")
def test_the_first_token_is_global_unless_others_are_given(folder: Path, side: str) -> None:
    theirs = random_model(theirs_led.LEDForConditionalGeneration, LEDConfig(**SMALL))
    model: Any = loaded(theirs, folder).model
    source, mask, first, ids = texts(side, (0,))
    with torch.no_grad():
        expected = [
            theirs(source, attention_mask=mask.long(), global_attention_mask=marked.long(), decoder_input_ids=ids)
            for marked in (first, torch.zeros_like(first))
        ]
        assert_close(model(source, ids, source_mask=mask), expected[0].logits)
        none = {"global_mask": torch.zeros_like(first)}
        assert_close(model(source, ids, source_mask=mask, streams=none), expected[1].logits)
        state = model.start(3, source=source, source_mask=mask)
        assert_close(model.extend(ids, state)[0], expected[0].logits)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.usefixtures("exact")
def test_generation_marks_the_first_token(folder: Path, beams: int) -> None:
    theirs = random_model(theirs_led.LEDForConditionalGeneration, LEDConfig(**SMALL))
    found = loaded(theirs, folder)
    source, mask, first, _ = texts("right", (0,))
    source = source.masked_fill(~mask, 1)
    with torch.no_grad():
        expected = theirs.generate(
            source,
            attention_mask=mask.long(),
            global_attention_mask=first.long(),
            max_new_tokens=6,
            num_beams=beams,
            do_sample=False,
            length_penalty=0.0,
            eos_token_id=39,
        ).tolist()
    sources = [row[real].tolist() for row, real in zip(source, mask)]
    options = Beam(beams=beams, length_penalty="none", max_new=6)
    for (best, *_), row in zip(search_many(found.model, sources, [2], 39, options=options), expected):
        assert row[1:] in ([*best.tokens, 39] + [1] * (5 - len(best.tokens)), best.tokens)


@pytest.mark.usefixtures("exact")
def test_answers_are_read_at_every_token(folder: Path, tmp_path: Path) -> None:
    cls = theirs_led.LEDForQuestionAnswering
    theirs = random_model(cls, LEDConfig(**SMALL))
    found = loaded(theirs, folder)
    model: Any = found.model
    source, mask, marked, _ = texts("right", (0, 1))
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask.long(), global_attention_mask=marked.long())
        own = model.outputs(source, shift_right(source, 2), source_mask=mask, streams={"global_mask": marked})["span"]
    assert_close(own, torch.stack([expected.start_logits, expected.end_logits], -1))
    assert_round_trip(found, folder, cls, tmp_path / "back")


@pytest.mark.parametrize(
    "window,said",
    [([4, 4], "2 numbers for 3 encoder layers"), (5, "even numbers from 2 on, not 5"), ([4, 0, 4], "not 0")],
)
def test_windows_that_do_not_fit_are_refused(folder: Path, window: Any, said: str) -> None:
    random_model(theirs_led.LEDModel, LEDConfig(**SMALL)).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_window": window}))
    with pytest.raises(InvalidInput, match=said):
        hub.load(folder)


def test_another_mechanism_is_not_written_as_led(folder: Path, tmp_path: Path) -> None:
    random_model(theirs_led.LEDModel, LEDConfig(**SMALL)).save_pretrained(folder)
    model = hub.load(folder).model
    cls: Any = type(model)
    other = cls.build(**{**vars(model.options), "encoder_attention": ["softmax"]})
    with pytest.raises(Unsupported, match="an led reads its source by longformer"):
        hub.save(other, tmp_path / "no", family="led")
