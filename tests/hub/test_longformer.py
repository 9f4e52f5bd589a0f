"""Longformer here and there: global tokens, padding, lengths of every kind, windows by layer, every head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, random_model
from torch import Tensor
from transformers import LongformerConfig
from transformers.models.longformer import modeling_longformer as theirs_longformer

from longspan import config, hub
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import families
from longspan.models import build
from longspan.models.encoder import Encoder
from longspan.models.presets import find as find_preset
from longspan.nn.recorder import recording

PAD, SEPARATOR = 1, 2
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
    "attention_window": [4, 12, 6],
}
# (class, attribute of their output, our task)
HEADS = [
    ("LongformerModel", "pooler_output", "pool"),
    ("LongformerForMaskedLM", "logits", "masked"),
    ("LongformerForSequenceClassification", "logits", "classify"),
    ("LongformerForTokenClassification", "logits", "tag"),
]


@pytest.fixture(autouse=True)
def double_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs is in single precision, whatever the model's; without that the two agree to the last digits."""
    softmax = torch.nn.functional.softmax

    def own(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return softmax(x, dim=dim)

    monkeypatch.setattr(torch.nn.functional, "softmax", own)


def texts(length: int, side: str = "right", *, separated: bool = False) -> tuple[Tensor, Tensor]:
    """Three texts, two of them padded; `separated`, each has three separators as a question and its context."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 40, (3, length), generator=generator)
    lengths = torch.tensor([length, length - 4, 9])[:, None]
    places = torch.arange(length)
    mask = places < lengths if side == "right" else places >= length - lengths
    if separated:
        for row, size in enumerate(lengths[:, 0].tolist()):
            ids[row, [3 + row, 4 + row, size - 1]] = SEPARATOR
    return ids.masked_fill(~mask, PAD), mask


def some_global(mask: Tensor) -> Tensor:
    """A different number in each text, one of them none; a place of padding is marked too."""
    marked = torch.zeros_like(mask)
    marked[0, [0, 3, 7]] = True
    marked[1, [4, -1]] = True
    return marked


def banded(found: Tensor, mask: Tensor, marked: Tensor | None, window: int) -> Tensor:
    """A map of ours as they give it: columns for the global tokens, then for each distance -w/2 to w/2."""
    length, half = found.shape[-1], window // 2
    marked = torch.zeros_like(mask) if marked is None else marked & mask
    rows = found.masked_fill(marked[:, None, :, None] | ~mask[:, None, :, None], 0.0)
    wide = torch.nn.functional.pad(rows.masked_fill(marked[:, None, None, :], 0.0), (half, half))
    places = torch.arange(length)[:, None] + torch.arange(window + 1)
    near = wide.gather(3, places.expand(*wide.shape[:2], -1, -1))
    columns = torch.zeros(*rows.shape[:3], int(marked.sum(1).max()), dtype=rows.dtype)
    for row in range(len(marked)):
        own = marked[row].nonzero()[:, 0]
        columns[row, ..., : len(own)] = rows[row][..., own]
    return torch.cat([columns, near], dim=-1)


def compare(folder: Path, config: dict[str, Any], ids: Tensor, mask: Tensor, marked: Tensor | None, kind: Any) -> None:
    """States and maps of the body."""
    theirs = random_model(theirs_longformer.LongformerModel, LongformerConfig(**config), kind)
    found = loaded(theirs, folder)
    streams = {} if marked is None else {"global_mask": marked}
    given = {} if marked is None else {"global_attention_mask": marked.long()}
    segments = torch.arange(ids.shape[1]).expand_as(ids) // 5 % 2
    with torch.no_grad():
        expected = theirs(
            ids,
            attention_mask=mask.long(),
            token_type_ids=segments,
            output_hidden_states=True,
            output_attentions=True,
            **given,
        )
        with recording(found.model.stack) as seen:
            out = found.model(ids, key_mask=mask, segments=segments, streams=streams)
    assert_close(out, expected.last_hidden_state, mask)
    assert len(seen.states) == len(expected.hidden_states)
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other, window in zip(seen.maps, expected.attentions, theirs.config.attention_window):
        assert_close(banded(own, mask, marked, window), other)
    if marked is not None:
        for own, other in zip(seen.maps, expected.global_attentions):
            for row, places in enumerate((marked & mask)[:2]):
                count = int(places.sum())
                assert_close(own[row][:, places], other[row, :, : ids.shape[1], :count].transpose(1, 2))


@pytest.mark.parametrize("length", [11, 16, 29])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("with_global", [False, True], ids=["local", "global"])
def test_states_and_maps_equal_theirs(folder: Path, length: int, side: str, with_global: bool) -> None:
    """Shorter than two windows, a multiple of the widest, and neither."""
    ids, mask = texts(length, side)
    config = SMALL if length != 16 else {**SMALL, "attention_window": 8}
    compare(folder, config, ids, mask, some_global(mask) if with_global else None, torch.float64)


def test_their_softmax_is_in_single_precision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = random_model(theirs_longformer.LongformerModel, LongformerConfig(**SMALL))
    found = loaded(theirs, folder)
    ids, mask = texts(29)
    monkeypatch.undo()
    with torch.no_grad():
        away = (found.model(ids, key_mask=mask) - theirs(ids, attention_mask=mask.long()).last_hidden_state)[mask]
    assert 1e-8 < away.abs().max() < 1e-5


def test_single_precision_equals_theirs(folder: Path) -> None:
    ids, mask = texts(29)
    compare(folder, SMALL, ids, mask, some_global(mask), torch.float32)


@pytest.mark.parametrize(
    "config",
    [
        {"pad_token_id": 0, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        {"hidden_act": "relu", "num_attention_heads": 1, "num_hidden_layers": 1, "attention_window": 4},
        {"hidden_act": "gelu_new", "num_attention_heads": 24, "attention_window": 64},
    ],
    ids=["padding 0", "one layer, one head", "heads of 1, window over the text"],
)
def test_odd_configurations(folder: Path, config: dict[str, Any]) -> None:
    ids, mask = texts(21)
    ids = ids.masked_fill(~mask, config.get("pad_token_id", PAD))
    config = {**SMALL, **config}
    theirs = random_model(theirs_longformer.LongformerModel, LongformerConfig(**config))
    found = loaded(theirs, folder)
    marked = some_global(mask)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), global_attention_mask=marked.long()).last_hidden_state
        assert_close(found.model(ids, key_mask=mask, streams={"global_mask": marked}), expected, mask)


@pytest.mark.parametrize("name,attribute,task", HEADS, ids=[task for *_, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, attribute: str, task: str
) -> None:
    """Without global tokens from the caller: a classifier makes the first one global by itself, here and there."""
    cls = getattr(theirs_longformer, name)
    found = loaded(theirs := random_model(cls, LongformerConfig(**SMALL, num_labels=3)), folder)
    ids, mask = texts(13)
    with torch.no_grad():
        expected = getattr(theirs(ids, attention_mask=mask.long()), attribute)
        own = found.model.outputs(ids, key_mask=mask)[task]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_an_untied_table_for_masked_tokens(folder: Path, tmp_path: Path) -> None:
    """Then the output layer has a bias of its own too, and the head's says nothing."""
    cls = theirs_longformer.LongformerForMaskedLM
    found = loaded(theirs := random_model(cls, LongformerConfig(**SMALL, tie_word_embeddings=False)), folder)
    ids, mask = texts(13)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long()).logits
        assert_close(found.model.outputs(ids, key_mask=mask)["masked"], expected, mask)
    hub.save(found, tmp_path / "back")
    again = cls.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        assert_close(again(ids, attention_mask=mask.long()).logits, expected, mask)


def test_answers_have_a_global_question(folder: Path, tmp_path: Path) -> None:
    cls = theirs_longformer.LongformerForQuestionAnswering
    found = loaded(theirs := random_model(cls, LongformerConfig(**SMALL)), folder)
    ids, mask = texts(23, separated=True)
    marked = some_global(mask)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long())
        own = found.model.outputs(ids, key_mask=mask)["span"]
        others = theirs(ids, attention_mask=mask.long(), global_attention_mask=marked.long())
        given = found.model.outputs(ids, key_mask=mask, streams={"global_mask": marked})["span"]
    assert_close(own, torch.stack([expected.start_logits, expected.end_logits], -1), mask)
    assert_close(given, torch.stack([others.start_logits, others.end_logits], -1), mask)
    assert not torch.allclose(own, given)
    assert_round_trip(found, folder, cls, tmp_path / "back")
    with pytest.raises(InvalidInput, match=r"text 0 has no separator \(id 2\)"):
        found.model.outputs(ids.masked_fill(ids == SEPARATOR, 5), key_mask=mask)


def test_choices_have_global_answers(folder: Path, tmp_path: Path) -> None:
    cls = theirs_longformer.LongformerForMultipleChoice
    found = loaded(theirs := random_model(cls, LongformerConfig(**SMALL)), folder)
    ids, mask = texts(23, separated=True)
    with torch.no_grad():
        expected = theirs(ids[None], attention_mask=mask.long()[None]).logits[0]
        assert_close(found.model.outputs(ids, key_mask=mask)["choose"], expected)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_padding_does_not_affect_tokens(folder: Path) -> None:
    """They pad to whole windows and zero the attention of padding; neither is seen at a real token here or there."""
    found = loaded(random_model(theirs_longformer.LongformerModel, LongformerConfig(**SMALL)), folder)
    ids, mask = texts(23)
    with torch.no_grad():
        out = found.model(ids, key_mask=mask)[2, :9]
        alone = found.model(ids[2:, :9])[0]
    assert_close(out, alone)


@pytest.mark.parametrize("windows", [[2, 2, 2], [10, 12, 4]], ids=["of 2", "that do not divide the widest"])
def test_windows_that_they_cannot_do(folder: Path, tmp_path: Path, windows: list[int]) -> None:
    """Their blocks overlap by half a window, which is no block of 1, and texts are padded for the widest one only."""
    config = LongformerConfig(**{**SMALL, "attention_window": windows})
    theirs = random_model(theirs_longformer.LongformerModel, config)
    found = loaded(theirs, folder)
    ids, mask = texts(19)
    with pytest.raises((RuntimeError, AssertionError)):
        theirs(ids, attention_mask=mask.long())
    with torch.no_grad(), recording(found.model.stack) as seen:
        found.model(ids, key_mask=mask)
    reach = [int((own[0] > 0).any(0).nonzero().diff(dim=1).abs().max()) for own in seen.maps]
    assert reach == [window // 2 for window in windows]


def test_windows_that_cannot_be(folder: Path) -> None:
    theirs = random_model(theirs_longformer.LongformerModel, LongformerConfig(**SMALL))
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    text = path.read_text()
    for wrong in ("5", "[4, 8]"):
        path.write_text(text.replace(text[text.index("[\n    4") : text.index("]", text.index("[\n    4")) + 1], wrong))
        with pytest.raises(InvalidInput, match="attention_window must be even"):
            hub.load(folder)


SIZES = {"vocabulary": 40, "width": 24, "heads": 4, "hidden": 40, "layers": 2, "max_length": 32}


def test_saved_models_load_in_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("longformer-base-4096", **SIZES, attention={"name": "longformer", "window": 3}).double().eval()
    hub.save(model, tmp_path, family="longformer")
    theirs = theirs_longformer.LongformerModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    ids, mask = texts(23)
    marked = some_global(mask)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), global_attention_mask=marked.long()).last_hidden_state
        assert_close(model(ids, key_mask=mask, streams={"global_mask": marked}), expected, mask)


def test_gaps_cannot_be_written(tmp_path: Path) -> None:
    model = build("longformer-base-4096", **SIZES, attention={"name": "longformer", "window": 2, "dilation": 2})
    with pytest.raises(Unsupported, match="a configuration of longformer cannot say attention"):
        hub.save(model, tmp_path, family="longformer")


@pytest.mark.parametrize("name", ["longformer-base-4096", "longformer-large-4096"])
def test_presets_have_the_parameters_of_theirs(name: str) -> None:
    row = find_preset(name)
    written = families.find("longformer", name).config(config.make(Encoder.Options, row.options, name))
    with torch.device("meta"):
        theirs = theirs_longformer.LongformerModel(LongformerConfig(**written))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == row.exact
