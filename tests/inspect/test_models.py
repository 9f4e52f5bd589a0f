"""Kinds of models: what is recorded of each, and what is refused."""

from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.models.every import of_kind

from longspan.errors import InvalidInput, InvalidOption, LongspanError, Unsupported
from longspan.inspect import maps
from longspan.inspect.looking import look
from longspan.inspect.rollout import RolloutBuilder, mix
from longspan.inspect.tiles import tile
from longspan.nn.recorder import recording

IDS = [(7 * i * i + 3 * i) % 11 for i in range(21)]


def test_an_encoder_decoder_has_three_kinds_of_maps():
    model = of_kind("transformer").eval()
    seen = maps(model, IDS, pair=IDS[:6])
    titles = [(module.side, module.kind, module.layer) for module in seen.record.modules]
    encoder = [("encoder", "self", layer) for layer in range(2)]
    decoder = [("decoder", kind, layer) for layer in range(2) for kind in ("self", "cross")]
    assert titles == [*encoder, *decoder]
    with torch.no_grad(), recording(model.encoder) as source, recording(model.decoder) as target:
        model(torch.tensor([IDS]), torch.tensor([IDS[:6]]))
    for mine, theirs in (
        (seen.encoder_maps, source.maps), (seen.maps, target.maps), (seen.cross_maps, target.cross_maps)
    ):  # fmt: skip
        for layer, expected in enumerate(theirs):
            np.testing.assert_allclose(mine[layer], expected[0].numpy(), atol=1e-6)
    assert seen.cross_maps[0].shape == (2, 6, 21)
    assert {module.keys for module in seen.record.modules if module.kind == "cross"} == {"source"}
    assert (len(seen.tokens), len(seen.source_tokens)) == (6, 21)


@pytest.mark.parametrize("decoder", ["bahdanau", "luong"])
def test_a_recurrent_decoder_shows_its_alignment(decoder: str):
    model = of_kind("seq2seq", decoder=decoder).eval()
    seen = maps(model, IDS, pair=IDS[:6])
    (module,) = seen.record.modules
    state = model.start(1, source=torch.tensor([IDS]), align=True)
    _, state = model.extend(torch.tensor([IDS[:6]]), state)
    np.testing.assert_allclose(seen.cross_maps[0], state.alignment.detach().numpy(), atol=1e-6)
    assert module.mechanism == f"alignment ({model.options.score})" and module.kind == "cross"


@pytest.mark.parametrize(("kind", "length"), [("transformer_xl", 21), ("transformer_xl", 8), ("compressive", 21)])
def test_memories_of_earlier_segments(kind: str, length: int):
    model = of_kind(kind).eval()
    before = model.text_logits(torch.tensor([IDS[:length]]))
    seen = maps(model, IDS[:length])
    assert torch.equal(model.text_logits(torch.tensor([IDS[:length]])), before)
    assert "read" not in vars(model.layers[0].attention)
    for weights in seen.maps:
        rows, keys = np.indices((length, length))
        assert not weights[:, keys > rows].any()
        segment = rows // 8 * 8
        assert not weights[:, keys < segment - 8].any()  # beyond the memory
        sums = weights.sum(-1)
        if kind == "transformer_xl":
            np.testing.assert_allclose(sums, 1, atol=1e-5)
            assert (weights[:, (keys <= rows) & (keys >= segment - 8)] > 0).all()
        else:
            assert (sums < 1 - 1e-3).any() and "sum to less than 1" in seen.record.modules[0].sentence
    assert len(seen.maps) == 2


def test_shared_layers_are_counted_by_their_calls():
    model = of_kind("universal_decoder").eval()
    record = look(model, IDS)
    layers = [module.layer for module in record.modules]
    assert layers == list(range(len(layers))) and len(layers) > 1


def test_global_tokens_stand_before_the_text():
    record = look(of_kind("etc_model").eval(), IDS)
    axis = record.axes[record.modules[0].queries]
    assert axis.tokens[:4] == ("[global 0]", "[global 1]", "[global 2]", str(IDS[0])) and len(axis) == 24
    assert axis.special.tolist() == [True] * 3 + [False] * 21


def test_of_electra_the_discriminator_is_shown():
    model = of_kind("electra").eval()
    seen = maps(model, IDS)
    with recording(model.discriminator.stack) as recorded, torch.no_grad():
        model.discriminator(torch.tensor([IDS]))
    np.testing.assert_allclose(seen.maps[1], recorded.maps[1][0].numpy(), atol=1e-6)


def test_an_image_and_its_patches(tmp_path: Path):
    model = of_kind("vit").eval()
    pixels = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    seen = maps(model, image=tmp_path / "x.png")
    picture = seen.record.picture
    assert picture is not None and (picture.rows, picture.columns, picture.first) == (2, 3, 1)
    np.testing.assert_array_equal(picture.pixels, pixels)
    assert seen.tokens == ("[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255 * 2 - 1
    with recording(model.stack) as recorded, torch.no_grad():
        model(images)
    np.testing.assert_allclose(seen.maps[1], recorded.maps[1][0].numpy(), atol=1e-6)


def test_rollout_by_hand():
    """Abnar and Zuidema 2020, section 3, with two layers of two tokens."""
    first, second = torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    rolled = mix(mix(torch.eye(2), first), second)
    torch.testing.assert_close(rolled, torch.tensor([[0.65, 0.35], [0.3875, 0.6125]]))
    builder = RolloutBuilder("encoder", "text", 2)
    for weights in (first, second):
        builder.add(0, 0, weights[:, :1])
        builder.add(0, 1, weights[:, 1:])
        builder.finish(causal=False)
    record = builder.record()
    assert record.layers == (0, 1) and record.cell == 1
    np.testing.assert_allclose(record.weights[1], rolled, atol=1e-6)


def test_rollout_of_a_long_text_is_by_cells():
    model = of_kind("decoder", position="none").eval()
    seen = maps(model, IDS * 30)  # 630 tokens: cells of 2
    (rollout,) = seen.record.rollouts
    assert rollout.cell == 2 and rollout.layers == (1,) and rollout.weights.shape == (1, 315, 315)
    np.testing.assert_allclose(rollout.weights.sum(-1), 1, atol=1e-4)
    np.testing.assert_allclose(rollout.uniform.sum(-1), 1, atol=1e-4)
    with pytest.raises(InvalidInput, match="kept after layers 1, not 0"):
        seen.rollout(0)


def test_maps_that_are_no_distributions_have_no_rollout():
    model = of_kind("decoder", attention={"name": "retention"}).eval()
    with pytest.raises(InvalidInput, match="there is no rollout: it needs all layers, and maps whose rows sum to 1"):
        maps(model, IDS).rollout()


def test_layers_and_heads_can_be_chosen():
    model = of_kind("encoder").eval()
    assert [module.layer for module in look(model, IDS, layers=[1]).modules] == [1]
    with pytest.raises(InvalidOption, match="there is no layer 2; layers are 0 to 1"):
        look(model, IDS, layers=[2])
    with pytest.raises(InvalidOption, match=r"there is no head 1\.2 among those recorded; the last is 1\.1"):
        look(model, IDS, heads=[(1, 2)])


TOO_LONG = "the text has 21 tokens, and the model holds at most 20; shorten it"
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], type[LongspanError], str]] = [
    ("encoder", {"max_length": 20}, {"text": IDS}, InvalidInput, TOO_LONG),
    ("decoder", {"max_length": 20}, {"text": IDS}, InvalidInput, TOO_LONG),
    ("encoder", {}, {"text": []}, InvalidInput, "the text is empty: it has no tokens to look at"),
    ("encoder", {}, {}, InvalidOption, "give a text to read by --text or --file"),
    ("encoder", {}, {"text": "words"}, InvalidInput, "the model has no tokenizer"),
    ("recurrent", {}, {"text": IDS}, Unsupported, "this recurrent has no attention, so there is no map of it"),
    ("set_transformer", {}, {"text": IDS}, Unsupported, "inspect cannot read the input of a set_transformer"),
    ("perceiver", {}, {"image": Path("x.png")}, Unsupported, "this perceiver has no patches to show"),
    ("seq2seq", {"decoder": "plain"}, {"text": IDS, "pair": IDS}, Unsupported, "this seq2seq has no attention"),
    ("vit", {}, {"text": IDS}, InvalidOption, "this vit reads images, not text: give --image FILE and no --text"),
    ("encoder", {}, {"image": Path("x.png")}, InvalidOption, "this encoder reads text, not images: give --text"),
    ("vit", {}, {"image": Path("nowhere.png")}, InvalidInput, "there is no image nowhere.png"),
    ("decoder", {}, {"text": IDS, "pair": IDS}, InvalidOption, "this decoder reads one text: leave out --pair"),
    ("transformer", {}, {"text": IDS}, InvalidOption, "needs its target as token ids: give pair"),
    ("encoder", {}, {"text": IDS, "generate": 3}, Unsupported, "this encoder reads texts and writes none"),
    (
        "decoder", {"attention": {"name": "memory_compressed"}}, {"text": IDS, "against": "softmax"}, Unsupported,
        "memory_compressed: No map: a convolution shortens keys and values",
    ),
    (
        "decoder", {"attention": {"name": "memory_compressed"}}, {"text": IDS, "heads": [(0, 0)]}, Unsupported,
        r"layer 0 \(memory_compressed\): No map: a convolution",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "given", "error", "message"), REFUSED)
def test_what_cannot_be_looked_at(
    kind: str, options: dict[str, Any], given: dict[str, Any], error: type[LongspanError], message: str
):
    with pytest.raises(error, match=message):
        look(of_kind(kind, **options), **given)


def test_an_unreadable_image(tmp_path: Path):
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(InvalidInput, match="is not a readable image"):
        look(of_kind("vit"), image=tmp_path / "x.png")


def test_heads_without_detail_still_have_sums_and_tiles_agree():
    """The Python object and the record give the same numbers."""
    seen = maps(of_kind("encoder").eval(), IDS)
    head = seen.record.modules[1].heads[1]
    np.testing.assert_array_equal(seen.head(1, 1), tile(head.detail, np.arange(21), np.arange(21)))
    assert seen.numbers()["modules"][1]["heads"][1]["first"] == pytest.approx(seen.head(1, 1)[:, 0].mean(), abs=1e-6)
    assert repr(seen) == "Maps(encoder: 21 tokens, 2 attentions, 4 heads)"


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(tmp_path: Path):
    seen = maps(of_kind("encoder").eval(), IDS)
    frame = seen._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"') and "<script" not in frame
    seen.save(tmp_path / "x.html")
    assert unescape(frame.partition('srcdoc="')[2].removesuffix('"></iframe>')) == (tmp_path / "x.html").read_text(
        "utf-8"
    )
