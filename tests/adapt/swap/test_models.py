"""Swaps of whole models: what is copied, how the rest starts, and what is refused before any work."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import random_model
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaModel,
)

import longspan
from longspan import hub
from longspan.adapt.swap import read_attention, read_layers
from longspan.adapt.swap.plan import mixers
from longspan.adapt.swap.start import k_means, share_projection
from longspan.attention.config import AttentionConfig
from longspan.attention.registry import find, names
from longspan.errors import InvalidInput, InvalidOption, LongspanError, UnknownName, Unsupported
from longspan.models import build

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
}
IDS = torch.arange(3, 15)[None]


def llama(**changed: Any) -> longspan.models.base.Model:
    options = {"vocabulary": 40, "width": 32, "layers": 4, "heads": 4, "kv_heads": 2, "hidden": 48, "max_length": 32}
    options |= {"position": "rotary", "norm": "rms", "norm_position": "pre", "dropout": 0.0, "bias": False, **changed}
    return build("decoder", **options).double().eval()


def bert(**changed: Any) -> longspan.models.base.Model:
    options = {"vocabulary": 40, "width": 32, "layers": 2, "heads": 4, "hidden": 48, "max_length": 16}
    return build("encoder", **{**options, "position": "learned", "dropout": 0.0, **changed}).double().eval()


# Text to a plan


def test_an_attention_is_a_name_with_options() -> None:
    assert read_attention("window:window=256,sinks=4") == AttentionConfig("window", window=256, sinks=4)
    assert read_attention("window:dilation=[1,2,1,2],window=3") == AttentionConfig(
        "window", dilation=(1, 2, 1, 2), window=3
    )
    assert read_attention("linear") == AttentionConfig("linear")
    with pytest.raises(UnknownName, match="no attention is called 'windo': did you mean 'window'"):
        read_attention("windo:window=2")
    with pytest.raises(InvalidOption, match="'sinks' is no key=value"):
        read_attention("window:sinks")


def test_layers_are_ranges_with_or_without_their_own_attention() -> None:
    ranges = read_layers("0-2=window:window=8,sinks=4,3=softmax", None)
    assert [(part.first, part.last) for part in ranges] == [(0, 2), (3, 3)]
    assert ranges[0].attention == AttentionConfig("window", window=8, sinks=4)
    assert [(part.first, part.last) for part in read_layers("1,3-", AttentionConfig("linear"))] == [(1, 1), (3, None)]
    with pytest.raises(InvalidOption, match="layers 3- have no attention; write 3-=NAME"):
        read_layers("3-", None)
    with pytest.raises(InvalidOption, match="'window' names no layer"):
        read_layers("window,3", None)
    with pytest.raises(InvalidOption, match="no layer gets the attention linear"):
        read_layers("0=softmax", AttentionConfig("linear"))


def test_layers_that_are_not_named_keep_their_attention() -> None:
    model = llama(attention=("window", "softmax"))
    swapped = longspan.swap(model, layers="2-3=linear").model
    assert [mixer.mechanism.name for mixer in mixers(swapped, "decoder")] == ["window", "softmax", "linear", "linear"]


# What is copied


def test_softmax_changes_nothing_to_the_bit() -> None:
    model = llama()
    swapped = longspan.swap(model, "softmax")
    assert torch.equal(swapped.model(IDS), model(IDS))
    assert swapped.notes == ["no layer has another attention than before"]


@pytest.mark.parametrize("make", [llama, bert])
def test_a_window_over_the_whole_text_is_the_original(make: Any) -> None:
    model = make()
    swapped = longspan.swap(model, "window:window=12").model
    torch.testing.assert_close(swapped(IDS), model(IDS), atol=1e-12, rtol=0)
    narrow = longspan.swap(model, "window:window=1").model
    assert (narrow(IDS) - model(IDS)).abs().max() > 1e-3


@pytest.mark.parametrize("tokens", [None, "first"])
def test_a_wide_longformer_is_the_original(tokens: str | None) -> None:
    model = bert()
    swapped = longspan.swap(model, "longformer:window=12", global_tokens=tokens)
    torch.testing.assert_close(swapped.model(IDS), model(IDS), atol=1e-12, rtol=0)
    assert swapped.model.options.global_tokens == tokens
    narrow = longspan.swap(model, "longformer:window=1", global_tokens=tokens).model
    plain = longspan.swap(model, "window:window=1").model
    assert torch.equal(narrow(IDS), plain(IDS)) == (tokens is None)


def test_global_projections_are_copies_and_are_to_be_trained() -> None:
    swapped = longspan.swap(bert(), "longformer:window=2")
    layer = mixers(swapped.model, "encoder")[1]
    assert torch.equal(layer.extra["global_k"].weight, layer.project["k"].weight)
    assert swapped.layers[1].started["extra.global_k.weight"] == "project.k.weight"
    assert len(swapped.layers[1].untrained) == 6


# How new weights start


def test_linformer_starts_as_the_mean_of_neighbours() -> None:
    layer = mixers(longspan.swap(bert(), "linformer:rank=4").model, "encoder")[0]
    expected = torch.zeros(4, 16, dtype=torch.float64)
    for row in range(4):
        expected[row, 4 * row : 4 * row + 4] = 0.25
    assert torch.equal(layer.mechanism.projection.keys[0], expected)


def test_nystrom_starts_without_its_convolution() -> None:
    swapped = longspan.swap(bert(), "nystrom")
    layer = mixers(swapped.model, "encoder")[0]
    assert layer.mechanism.filters.count_nonzero() == 0
    torch.testing.assert_close(swapped.model(IDS), bert_like(swapped)(IDS), atol=1e-10, rtol=0)


def bert_like(swapped: longspan.adapt.swap.Swap) -> Any:
    """The original: with as many landmarks as tokens Nyström is exact."""
    assert swapped.original is not None
    return swapped.original.model


def test_a_shared_projection_keeps_a_symmetric_product() -> None:
    model = bert()
    old = mixers(model, "encoder")[0]
    old.project["k"].load_state_dict(old.project["q"].state_dict())  # then M is symmetric and has no negative part
    new = mixers(longspan.swap(bert(), "reformer").model, "encoder")[0]
    assert share_projection(new, old) == pytest.approx([1.0] * 4)
    x = torch.randn(7, 32, dtype=torch.float64)
    q, shared = (layer(x).unflatten(1, (4, 8)).transpose(0, 1) for layer in (old.project["q"], new.project["q"]))
    torch.testing.assert_close(shared @ shared.mT, q @ q.mT)


def test_the_share_of_a_shared_projection_is_that_of_the_whole_matrix() -> None:
    model = bert()
    swapped = longspan.swap(model, "reformer")
    old, shares = mixers(model, "encoder")[1], swapped.layers[1].kept_share
    layers = [old.project[name] for name in "qk"]
    w_q, w_k = (torch.cat([layer.weight, layer.bias[:, None]], 1).detach() for layer in layers)
    for head in range(4):
        scores = w_q[8 * head : 8 * head + 8].mT @ w_k[8 * head : 8 * head + 8]
        values = torch.linalg.eigvalsh((scores + scores.mT) / 2)
        assert shares is not None
        assert shares[head] == pytest.approx(float(values[-8:].clamp_min(0).norm() / scores.norm()))
    assert swapped.layers[1].left_out == ["project.k.weight", "project.k.bias"]


def test_centroids_are_means_of_real_points() -> None:
    model, rows = bert(), torch.randint(0, 40, (2, 16), generator=torch.Generator().manual_seed(1))
    drawn = longspan.swap(model, "routing:clusters=2,window=8")
    found = longspan.swap(model, "routing:clusters=2,window=8", text=rows)
    before, after = (mixers(swap.model, "encoder")[0].mechanism.centroids.means for swap in (drawn, found))
    assert not torch.equal(before, after)
    assert found.layers[0].started["mechanism.centroids"] == "k-means of queries and keys of the text"
    apart = torch.tensor([[[5.0, 0, -5], [5, 0.1, -5], [-5, 5, 0], [-5, 5.1, 0]]])
    means = k_means(apart, 2)[0]
    assert means[0].argmax() == 0 and means[1].argmax() == 1


@pytest.mark.parametrize("name", ["hedgehog", "window_linear"])
def test_feature_maps_start_as_the_identity_and_are_to_be_trained(name: str) -> None:
    swapped = longspan.swap(llama(), name)
    assert "identity" in swapped.layers[0].started.values()
    assert swapped.layers[0].untrained and swapped.layers[0].expected == "needs training"
    assert swapped.model(IDS).isfinite().all()


def test_trained_options_of_the_scores_are_kept_or_refused() -> None:
    model = llama(attention=({"name": "softmax", "scale": 0.25},))
    swapped = longspan.swap(model, "window:window=12").model
    assert swapped.options.attention[0] == AttentionConfig("window", window=12, scale=0.25)
    torch.testing.assert_close(swapped(IDS), model(IDS), atol=1e-12, rtol=0)
    with pytest.raises(
        Unsupported, match=r"decoder layer 0: the model was trained with scale=0.25, which linear has not"
    ):
        longspan.swap(model, "linear")


# Longer texts


def test_learned_tables_are_repeated(tmp_path: Path) -> None:
    random_model(BertModel, BertConfig(**SMALL)).save_pretrained(tmp_path / "bert")
    old = hub.load(tmp_path / "bert").model.embedding.position.weight
    new = longspan.swap(tmp_path / "bert", "window", length=40).model.embedding.position.weight
    assert len(new) == 40 and torch.equal(new[:16], old) and torch.equal(new[16], old[0])
    config = RobertaConfig(**{**SMALL, "max_position_embeddings": 18}, pad_token_id=1)
    random_model(RobertaModel, config).save_pretrained(tmp_path / "roberta")
    old = hub.load(tmp_path / "roberta").model.embedding.position.weight
    swapped = longspan.swap(tmp_path / "roberta", "window", length=40)
    new = swapped.model.embedding.position.weight
    assert (len(old), len(new)) == (18, 42) and torch.equal(new[:18], old) and torch.equal(new[18], old[2])
    assert swapped.positions is not None and swapped.positions.method == "repeated"


@pytest.mark.parametrize("rope", ["linear", "ntk", "yarn", "llama3"])
def test_rotary_scaling_by_one_is_the_original_to_the_bit(rope: str) -> None:
    model = llama()
    same = longspan.swap(model, "softmax", length=32, rope=rope)
    assert torch.equal(same.model(IDS), model(IDS))
    twice = longspan.swap(model, "softmax", length=64, rope=rope)
    assert twice.positions is not None and (twice.positions.method, twice.positions.factor) == (rope, 2.0)
    assert not torch.equal(twice.model(IDS), model(IDS))
    assert twice.model(torch.arange(64)[None] % 40).isfinite().all()


def test_ntk_raises_the_base() -> None:
    swapped = longspan.swap(llama(), "softmax", length=64, rope="ntk").model
    assert swapped.options.rotary_layers[0].base == pytest.approx(10000 * 2 ** (8 / 6))


def test_windows_need_no_scaling_and_exact_layers_do() -> None:
    model = llama()
    swapped = longspan.swap(model, "window:window=4", length=128)
    assert swapped.positions is not None and swapped.positions.method == "none"
    assert swapped.notes == ["windows read no farther than before, so rotary positions stay as they are"]
    mixed = longspan.swap(model, "window:window=4", layers="0-2", length=64)
    assert [layer.scaling is not None for layer in mixed.model.options.rotary_layers] == [False, False, False, True]
    assert mixed.notes == ["scaled only in layers 3: windows read no farther than before"]
    assert longspan.swap(model, "linear", length=512).positions.method == "ntk"  # type: ignore[union-attr]


# Sensitivity


def test_first_tokens_stand_at_positions_of_the_cache_in_longer_texts() -> None:
    model = llama()
    for length in (None, 32):  # no farther than in training
        within = longspan.swap(model, "window:window=4,sinks=2", length=length)
        assert within.model.options.attention[0].all_options.sink_positions == "original"
    new = longspan.swap(model, "window:window=4,sinks=2", length=128)
    assert new.model.options.attention[0].all_options.sink_positions == "cache"
    assert new.positions is not None and "windows read no farther than before" in new.positions.note
    old = longspan.swap(model, "window:window=4,sinks=2,sink_positions=original", length=128)
    assert old.model.options.attention[0].all_options.sink_positions == "original"
    assert old.positions is not None
    assert old.positions.note == "queries read the first tokens from up to 128 tokens away, and were trained up to 32"
    # A model that has first tokens keeps their positions; without rotary positions there are none to choose.
    again = longspan.swap(old.model, "window:window=3,sinks=2", length=256)
    assert again.model.options.attention[0].all_options.sink_positions == "original"
    same = longspan.swap(old.model, "window:window=4,sinks=2")
    assert same.notes == ["no layer has another attention than before"]
    learned = longspan.swap(llama(position="learned"), "window:window=4,sinks=2", length=128)
    assert "sink_positions" not in learned.model.options.attention[0].options


def test_the_worst_layers_stay_exact() -> None:
    model, rows = llama(), torch.randint(0, 40, (128, 32), generator=torch.Generator().manual_seed(0))
    swapped = longspan.swap(model, "window:window=1", keep_worst="25%", text=rows)
    found = swapped.sensitivity
    assert found is not None and found.tokens == 4096 and len(found.kept) == 1
    assert found.kept[0] == max(found.rises, key=lambda layer: found.rises[layer])
    with torch.no_grad():
        loss = [
            float(torch.nn.functional.cross_entropy(net(rows)[:, :-1].flatten(0, 1).float(), rows[:, 1:].flatten()))
            for net in (model, longspan.swap(model, "window:window=1", layers="2").model)
        ]
    assert found.exact == pytest.approx(loss[0], abs=1e-6) and found.rises[2] == pytest.approx(
        loss[1] - loss[0], abs=1e-6
    )
    names = [mixer.mechanism.name for mixer in mixers(swapped.model, "decoder")]
    assert names.count("softmax") == 1 and names[found.kept[0]] == "softmax"
    assert [mixer.mechanism.name for mixer in mixers(model, "decoder")] == ["softmax"] * 4
    with pytest.raises(InvalidInput, match="needs at least 4,096 tokens of text, not 32"):
        longspan.swap(model, "window", keep_worst=0.25, text=rows[:1])


# Refusals


def test_what_cannot_stand_in_a_place_is_refused_by_layer() -> None:
    refused: list[tuple[Any, str, str]] = [
        (llama(), "linformer", r"decoder layer 0: linformer has no causal form; these can: softmax, window"),
        (llama(), "reformer", r"decoder layer 0: reformer has one projection .* rotary positions; these have two"),
        (llama(position="sinusoidal"), "reformer", r"decoder layer 0: .* this model groups its queries"),
        (bert(), "retention", r"encoder layer 0: retention is causal only"),
        (bert(position="relative"), "linear", r"encoder layer 0: linear takes no bias on its scores, which relative"),
        (llama(), "synthesizer", r"decoder layer 0: synthesizer compares no queries and keys"),
    ]
    for model, name, message in refused:
        with pytest.raises(Unsupported, match=message):
            longspan.swap(model, name)
    with pytest.raises(InvalidInput, match="there is no layer 7: the decoder has 0 to 3"):
        longspan.swap(llama(), layers="2-7=window")
    with pytest.raises(Unsupported, match="the attention of a model 'recurrent' cannot be swapped"):
        longspan.swap(build("recurrent", vocabulary=12, width=8, layers=1), "window")
    with pytest.raises(InvalidOption, match="rope yarn scales rotary positions for longer texts, and the model's"):
        longspan.swap(bert(), "window", length=32, rope="yarn")
    scaled = llama(rotary_scaling={"kind": "linear", "factor": 2.0})
    with pytest.raises(Unsupported, match=r"layer 0: its rotary positions are scaled already \(linear, by 2\)"):
        longspan.swap(scaled, "linear", length=64)


CAUSAL = [name for name in names() if find(name).supports.causal]


@pytest.mark.parametrize("name", CAUSAL)
def test_models_with_grouped_queries_take_what_can_read_their_key_heads(name: str) -> None:
    """9 query heads and 3 key heads, as SmolLM2: swapped layers keep the key heads, or are refused."""
    model = llama(width=36, heads=9, kv_heads=3, layers=1, head_dim=4)
    if not find(name).supports.grouped:
        with pytest.raises(Unsupported, match="decoder layer 0: "):
            longspan.swap(model, name, force=True)
        return
    found = longspan.swap(model, name, force=True)
    mixer = mixers(found.model, "decoder")[0]
    assert mixer.mechanism.supports.grouped and mixer.heads == {"q": 9, "k": 3, "v": 3}
    torch.testing.assert_close(mixer.project["k"].weight, mixers(model, "decoder")[0].project["k"].weight)
    assert found.model.text_states(IDS).isfinite().all()


def test_an_encoder_decoder_is_swapped_on_one_side(tmp_path: Path) -> None:
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    config = BartConfig(vocab_size=40, max_position_embeddings=16, **sizes)
    random_model(BartForConditionalGeneration, config).save_pretrained(tmp_path / "bart")
    original = hub.load(tmp_path / "bart")
    swapped = longspan.swap(original, "window:window=2", stack="decoder")
    assert [mixer.mechanism.name for mixer in mixers(swapped.model, "decoder")] == ["window"] * 2
    assert [mixer.mechanism.name for mixer in mixers(swapped.model, "encoder")] == ["softmax"] * 2
    assert swapped.notes == ["the decoder's self-attention was swapped; cross-attention and the encoder are as before"]
    longer = longspan.swap(original, "window", length=40).model
    weight, old = longer.source.position.weight, original.model.source.position.weight
    assert len(weight) == 42 and torch.equal(weight[18], old[2])


@pytest.mark.parametrize("theirs", [(LlamaForCausalLM, LlamaConfig), (GPT2LMHeadModel, GPT2Config)])
def test_a_folder_is_written_and_read(theirs: Any, tmp_path: Path) -> None:
    kind, config = theirs
    sizes = (
        SMALL
        if config is LlamaConfig
        else {"vocab_size": 40, "n_embd": 24, "n_layer": 4, "n_head": 4, "n_positions": 16}
    )
    random_model(kind, config(**sizes)).save_pretrained(tmp_path / "theirs")
    swapped = longspan.swap(tmp_path / "theirs", "window:window=3,sinks=2", layers="1-", out=tmp_path / "out")
    loaded = longspan.load(tmp_path / "out").model
    assert torch.equal(loaded(IDS), swapped.model(IDS))
    record = json.loads((tmp_path / "out" / "swap.json").read_text())
    assert record["layers"][0]["attention"]["name"] == "softmax"
    assert record["layers"][1]["attention"] == {"name": "window", "window": 3, "sinks": 2}
    assert record["source"] == str(tmp_path / "theirs") and len(record["source_sha256"]) == 64
    with pytest.raises(LongspanError, match="out exists already; give the name of a new folder"):
        longspan.swap(tmp_path / "theirs", "window", out=tmp_path / "out")
