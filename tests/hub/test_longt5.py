"""LongT5 here and there: local and transient-global encoders, generation, and the summaries by their definition."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, in_double, loaded, padded, random_model
from torch import Tensor
from transformers import LongT5Config
from transformers.models.longt5 import modeling_longt5

from longspan import hub
from longspan.decode import Beam, search_many
from longspan.errors import InvalidOption, Unsupported
from longspan.models import build
from longspan.nn.recorder import recording
from longspan.nn.transient_global import TransientGlobalHeads

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "local_radius": 3,
    "global_block_size": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "decoder_start_token_id": 0,
}
KINDS = ["local", "transient-global"]


@pytest.fixture(autouse=True)
def precise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "float32" in request.node.name:
        return
    in_double(monkeypatch, modeling_longt5)
    monkeypatch.setattr(Tensor, "float", lambda self: self if self.is_floating_point() else self.to(torch.float32))


def longt5(end: str = "ForConditionalGeneration", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    return random_model(getattr(modeling_longt5, f"LongT5{end}"), LongT5Config(**{**SMALL, **given}), dtype)


def sides(length: int = 19) -> tuple[Tensor, Tensor, Tensor]:
    """Texts of 19, 15 and 1 tokens: blocks with tokens left over, and a text without a block."""
    source, mask = padded(40, length=length)
    return source, mask, torch.arange(3, 21).view(3, 6) % 37 + 3


def squares(local: Tensor, mask: Tensor, radius: int) -> Tensor:
    """Their maps (batch, blocks, heads, block, 3 · block + summaries) as a row for each query."""
    batch, _, heads, size, width = local.shape
    length, others = mask.shape[1], width - 3 * size
    found = local.new_zeros(batch, heads, length, length + others)
    for query in range(length):
        row = local[:, query // size, :, query % size]
        first = (query // size - 1) * size
        for key in range(max(0, query - radius), min(length, query + radius + 1)):
            found[:, :, query, key] = row[..., key - first]
        found[:, :, query, length:] = row[..., 3 * size :]
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_states_and_maps_equal_theirs(folder: Path, tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    theirs = longt5(dtype=dtype, encoder_attention_type=kind)
    found = loaded(theirs, folder)
    model: Any = found.model
    source, mask, ids = sides()
    with torch.no_grad():
        expected = theirs(
            source,
            attention_mask=mask.long(),
            decoder_input_ids=ids,
            output_hidden_states=True,
            output_attentions=True,
        )
        with recording(model.encoder) as read, recording(model.decoder) as written:
            logits = model(source, ids, source_mask=mask)
    assert_close(logits, expected.logits)
    for own, other in zip(read.states, expected.encoder_hidden_states, strict=True):
        assert_close(own, other, mask)
    for own, other in zip(written.states, expected.decoder_hidden_states, strict=True):
        assert_close(own, other)
    for own, other in zip(read.maps, expected.encoder_attentions, strict=True):
        square = squares(other, mask, 3)
        assert_close(own.transpose(1, 2), square.transpose(1, 2), mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "given",
    [
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "local_radius": 1},
        {"global_block_size": 8, "num_decoder_layers": 1},
    ],
    ids=["v1.1", "blocks"],
)
def test_odd_configurations(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = longt5(encoder_attention_type="transient-global", **given)
    found = loaded(theirs, folder)
    source, mask, ids = sides(30)
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask.long(), decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, source_mask=mask), expected)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_alone(folder: Path, tmp_path: Path, kind: str) -> None:
    theirs = longt5("EncoderModel", encoder_attention_type=kind)
    found = loaded(theirs, folder)
    source, mask, _ = sides()
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask.long()).last_hidden_state
        assert_close(found.model(source, key_mask=mask), expected, mask)
    assert found.model.name == "encoder"
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_equals_theirs(folder: Path, beams: int) -> None:
    theirs = longt5(encoder_attention_type="transient-global")
    found = loaded(theirs, folder)
    source, mask, _ = sides()
    source = source * mask
    with torch.no_grad():
        given = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False, "length_penalty": 0.0}
        expected = theirs.generate(source, attention_mask=mask.long(), **given).tolist()
    sources = [row[real].tolist() for row, real in zip(source, mask)]
    options = Beam(beams=beams, length_penalty="none", max_new=6)
    for (best, *_), row in zip(search_many(found.model, sources, [0], 1, options=options), expected):
        assert row[1:] in ([*best.tokens, 1] + [0] * (5 - len(best.tokens)), best.tokens)


def test_summaries_by_their_definition() -> None:
    """The fast path against the map times the values, and padding on either side against the text alone."""
    torch.manual_seed(0)
    sizes = {"vocabulary": 30, "width": 16, "heads": 2, "layers": 1, "hidden": 16, "norm": "rms", "dropout": 0.0}
    window = {"attention": [{"name": "window", "window": 3}], "position": "relative", "summary_block": 4}
    model: Any = build("encoder", **sizes, **window).double().eval()
    layer = model.stack.blocks[0].mixer
    assert isinstance(layer, TransientGlobalHeads)
    x = torch.randn(2, 21, 16, dtype=torch.float64)
    mask = torch.arange(21) < torch.tensor([[21], [14]])
    with torch.no_grad():
        summaries = layer._summaries(x, mask)
        values = torch.cat([layer._project("v", x), summaries.v], 2)
        expected = layer._merge(layer.weights(x, key_mask=mask) @ values)
        assert_close(layer(x, key_mask=mask), expected, mask)
        assert summaries.present.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
        alone = layer(x[1:, :14])
        assert_close(layer(x, key_mask=mask)[1:, :14], alone)
        left = torch.cat([torch.randn(1, 7, 16, dtype=torch.float64), x[1:, :14]], 1)
        assert_close(layer(left, key_mask=torch.arange(21)[None] >= 7)[:, 7:], alone)
        assert_close(layer(x[:, :3]), layer._merge(layer.weights(x[:, :3]) @ layer._project("v", x[:, :3])))
    layer(x.requires_grad_(), key_mask=mask)[mask].sum().backward()
    assert layer.summary_norm.weight.grad.abs().sum() > 0 and layer.summary_position.weight.grad.abs().sum() > 0
    with pytest.raises(InvalidOption, match="summaries of blocks go with a window that reads both ways, not with soft"):
        build("encoder", **sizes, position="relative", summary_block=4)


def test_unsupported_settings_are_refused_by_name(folder: Path) -> None:
    longt5().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "encoder_attention_type": "sparse"}))
    with pytest.raises(Unsupported, match="encoder_attention_type is 'sparse'; it can be local or transient-global"):
        hub.load(folder)
