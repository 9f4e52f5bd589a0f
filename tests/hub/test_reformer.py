"""Reformer here and there: hashed and local layers, all heads, odd configurations, the release's leak and its cache."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer import modeling_reformer as theirs_reformer

from longspan import hub
from longspan.errors import Unsupported
from longspan.hub.families.reformer import REFORMER
from longspan.models import build
from longspan.models.presets import PRESETS, shrink
from longspan.nn.recorder import recording

VOCABULARY, CHUNK = 40, 4
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "attn_layers": ["local", "lsh", "lsh"],
    "num_attention_heads": 3,
    "attention_head_size": 6,
    "feed_forward_size": 40,
    "axial_pos_shape": (8, 8),
    "axial_pos_embds_dim": (8, 16),
    "max_position_embeddings": 64,
    "local_attn_chunk_length": CHUNK,
    "lsh_attn_chunk_length": CHUNK,
    "num_buckets": 6,
    "num_hashes": 2,
    "hash_seed": 3,
}
DECODER = {**SMALL, "is_decoder": True}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def ids(length: int, seed: int = 0, batch: int = 2) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def random_reformer(cls: str, given: dict[str, Any], dtype: torch.dtype = torch.float64) -> Any:
    """With the bias of the output layer at 0, which transformers 5 leaves out (see below)."""
    model = random_model(getattr(theirs_reformer, cls), ReformerConfig(**given), dtype)
    if hasattr(model, "lm_head"):
        torch.nn.init.zeros_(model.lm_head.bias)
    return model


# Equal numbers


@DTYPES
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("side", ["right", "left", None])
def test_states_equal_theirs(folder: Path, side: str | None, decoder: bool, dtype: torch.dtype) -> None:
    """Many chunks, the last one not whole; for several rounds in float32 see below."""
    rounds = 2 if dtype == torch.float64 else 1
    theirs = random_reformer("ReformerModel", {**SMALL, "is_decoder": decoder, "num_hashes": rounds}, dtype)
    found = loaded(theirs, folder)
    text, mask = (ids(22), None) if side is None else padded(VOCABULARY, length=22, side=side)
    with torch.no_grad():
        expected = theirs(text, attention_mask=mask, output_hidden_states=True, use_cache=False)
        with recording(found.model.stack, maps=False) as seen:
            out = (found.model.hidden if decoder else found.model)(text, key_mask=mask)
    assert_close(out, expected.last_hidden_state, mask)
    assert len(expected.hidden_states) == len(seen.streams) == len(seen.states) == 4
    for (_, own), other in zip(seen.streams, expected.hidden_states):  # theirs are padded to whole chunks
        assert_close(own, other[:, :22], mask)
    assert torch.equal(seen.states[-1], out)


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 24, 64])
def test_any_length(folder: Path, length: int, decoder: bool) -> None:
    theirs = random_reformer("ReformerModel", {**SMALL, "is_decoder": decoder})
    found = loaded(theirs, folder)
    with torch.no_grad():
        expected = theirs(ids(length), use_cache=False).last_hidden_state
        assert_close((found.model.hidden if decoder else found.model)(ids(length)), expected)


ODD: dict[str, dict[str, Any]] = {
    "local layers alone": {"attn_layers": ["local"], "num_hashes": 1},
    "hashed layers alone": {"attn_layers": ["lsh", "lsh"]},
    "one round": {"num_hashes": 1},
    "many rounds": {"num_hashes": 5},
    "a product of hashes": {"num_buckets": [2, 4]},
    "longer hashed chunks": {"lsh_attn_chunk_length": 8, "local_attn_chunk_length": 2},
    "no look back": {"lsh_num_chunks_before": 0, "local_num_chunks_before": 0},
    "further back": {"lsh_num_chunks_before": 2, "local_num_chunks_before": 2},
    "learned positions": {"axial_pos_embds": False},
    "gelu, eps, chunks": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "chunk_size_feed_forward": 8},
}
AHEAD = {"lsh_num_chunks_after": 1, "local_num_chunks_after": 2}


@pytest.mark.parametrize("given", ODD.values(), ids=list(ODD))
def test_logits_equal_theirs_and_go_back_bit_for_bit(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = random_reformer("ReformerModelWithLMHead", {**DECODER, **given})
    found = loaded(theirs, folder)
    with torch.no_grad():
        assert_close(found.model(ids(24)), theirs(ids(24), use_cache=False).logits)
    assert_round_trip(found, folder, theirs_reformer.ReformerModelWithLMHead, tmp_path / "back")
    again = hub.load(tmp_path / "back")
    assert again.model.options == found.model.options


# (class, attribute of their output, our task)
HEADS = [
    ("ReformerForMaskedLM", "logits", "masked"),
    ("ReformerForSequenceClassification", "logits", "classify"),
    ("ReformerForQuestionAnswering", "start_logits", "span"),
]


@pytest.mark.parametrize("given", [{}, AHEAD], ids=["behind", "both sides"])
@pytest.mark.parametrize(("name", "attribute", "task"), HEADS, ids=[task for _, _, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, attribute: str, task: str, given: dict[str, Any]
) -> None:
    labels = {"num_labels": 5} if task == "classify" else {}
    theirs = random_reformer(name, {**SMALL, **given, **labels})
    found = loaded(theirs, folder)
    text, mask = padded(VOCABULARY, length=24)
    with torch.no_grad():
        own = found.model.outputs(text, key_mask=mask)[task]
        expected = getattr(theirs(text, attention_mask=mask), attribute)
    own = own[..., 0] if task == "span" else own
    assert_close(own, expected, None if task == "classify" else mask)
    assert_round_trip(found, folder, getattr(theirs_reformer, name), tmp_path / "back")


@pytest.mark.parametrize("name", ["ReformerForSequenceClassification", "ReformerForQuestionAnswering", "ReformerModel"])
def test_causal_bodies_without_an_output_layer(folder: Path, tmp_path: Path, name: str) -> None:
    """The released checkpoints are decoders, from which such models start; their output layer is new here."""
    theirs = random_reformer(name, DECODER)
    found = loaded(theirs, folder)
    assert found.fresh == ["head.weight", "head.bias"] and found.model.name == "decoder"
    with torch.no_grad():
        given = theirs(ids(24)) if name != "ReformerModel" else theirs(ids(24), use_cache=False)
        if name == "ReformerModel":
            assert_close(found.model.hidden(ids(24)), given.last_hidden_state)
        elif name == "ReformerForQuestionAnswering":
            assert_close(found.model.outputs(ids(24))["span"][..., 1], given.end_logits)
        else:
            assert_close(found.model.outputs(ids(24))["classify"], given.logits)
    assert_round_trip(found, folder, getattr(theirs_reformer, name), tmp_path / "back")


# Maps


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_maps_equal_theirs(folder: Path, decoder: bool) -> None:
    """Theirs are chunk by chunk: local ones in the order of the text, hashed ones in that of the buckets."""
    theirs = random_reformer("ReformerModel", {**SMALL, "num_hashes": 1, "is_decoder": decoder})
    found, length = loaded(theirs, folder), 24
    with torch.no_grad(), recording(found.model.stack) as seen:
        expected = theirs(ids(length), output_attentions=True, use_cache=True)
        (found.model.hidden if decoder else found.model)(ids(length))
    buckets = expected.past_buckets_states.buckets_cache
    for layer, (own, chunks) in enumerate(zip(seen.maps, expected.attentions, strict=True)):
        order = torch.arange(length).expand(2, 3, -1)
        if layer > 0:
            order = buckets[layer][:, :, 0].argsort(dim=-1, stable=True)
        queries = order.unflatten(-1, (-1, CHUNK))
        keys = torch.cat([queries.roll(1, 2), queries], -1)
        whole = torch.zeros(2, 3, length, length, dtype=torch.float64)
        at = (queries[..., None] * length + keys[..., None, :]).flatten(2)
        whole = whole.flatten(2).scatter_add_(2, at, chunks.flatten(2)).unflatten(2, (length, length))
        assert_close(own, whole)


def test_maps_of_a_text_of_one_chunk(folder: Path) -> None:
    theirs = random_reformer("ReformerModelWithLMHead", DECODER)
    found = loaded(theirs, folder)
    with torch.no_grad(), recording(found.model.stack) as seen:
        expected = theirs(ids(CHUNK), output_attentions=True, use_cache=False)
        found.model(ids(CHUNK))
    for own, other in zip(seen.maps, expected.attentions, strict=True):
        assert_close(own, other)


# Where equality ends


def test_a_bias_that_transformers_5_leaves_out(folder: Path) -> None:
    """Its output layer has one in the file; up to version 4 and in trax it was added, and here it is."""
    theirs = random_model(theirs_reformer.ReformerModelWithLMHead, ReformerConfig(**DECODER))
    assert theirs.lm_head.bias.abs().max() > 0.1
    found = loaded(theirs, folder)
    with torch.no_grad():
        assert_close(found.model(ids(24)), theirs(ids(24), use_cache=False).logits + theirs.lm_head.bias)


def test_a_token_that_reads_itself_alone_in_float32(folder: Path) -> None:
    """Theirs lowers its score by 10⁵, beside which float32 cannot tell how much each of several rounds weighs."""
    theirs = random_reformer("ReformerModelWithLMHead", {**DECODER, "num_hashes": 3}, torch.float32)
    found = loaded(theirs, folder)
    text = ids(24)
    with torch.no_grad():
        rough, fine = theirs(text, use_cache=False).logits, found.model(text)
        theirs.double()
        # The rotations of float64 are others, but the first token reads itself by any.
        expected = theirs(text, use_cache=False).logits[:, 0]
    assert (rough[:, 0] - expected).abs().max() > 1e-4
    assert (fine[:, 0] - expected).abs().max() < 1e-5


def test_a_text_of_few_local_chunks_that_looks_far_back(folder: Path) -> None:
    """Their ring then goes around more than once, and keys of the past are counted twice; ours are once."""
    given = {**DECODER, "attn_layers": ["local"], "local_num_chunks_before": 2}
    theirs = random_reformer("ReformerModelWithLMHead", given)
    found = loaded(theirs, folder)
    with torch.no_grad():
        few, many = ((found.model(ids(n)) - theirs(ids(n), use_cache=False).logits).abs().max() for n in (8, 12))
    assert few > 1e-3 and many < 1e-8


def test_padding_to_both_kinds_of_chunks(folder: Path) -> None:
    """Theirs pads to a multiple of both lengths, and the ring goes through the padding: equal if given that, masked."""
    theirs = random_reformer("ReformerModelWithLMHead", {**DECODER, "local_attn_chunk_length": 6})
    found = loaded(theirs, folder)
    text, mask = torch.nn.functional.pad(ids(15), (0, 9)), torch.arange(24).expand(2, -1) < 15
    with torch.no_grad():
        expected = theirs(ids(15), use_cache=False).logits
        assert_close(found.model(text, key_mask=mask)[:, :15], expected)
        assert (found.model(ids(15)) - expected).abs().max() > 1e-6


def test_default_buckets_are_those_of_the_longest_text(folder: Path) -> None:
    for longest, wanted in ((16, 8), (64, (4, 8))):
        given = {**DECODER, "num_buckets": None, "max_position_embeddings": longest}
        theirs = random_reformer("ReformerModelWithLMHead", given)
        found = loaded(theirs, folder)
        assert found.model.options.attention[1].all_options.buckets == wanted
        with torch.no_grad():
            assert_close(found.model(ids(longest)), theirs(ids(longest), use_cache=False).logits)


# What the release gets wrong


def strict(folder: Path) -> Any:
    """The same weights in the form that decodes."""
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, "lsh_form": "strict"}))
    return hub.load(folder).model


def test_their_future_changes_the_past_and_ours_does_not(folder: Path) -> None:
    theirs = random_reformer("ReformerModelWithLMHead", {**DECODER, "num_hashes": 1})
    faithful = loaded(theirs, folder).model
    text, other = ids(24), torch.cat([ids(24)[:, :20], ids(24, seed=1)[:, 20:]], 1)
    with torch.no_grad():

        def moved(run: Any) -> float:
            return float((run(text) - run(other))[:, :20].abs().max())

        assert moved(lambda x: theirs(x, use_cache=False).logits) > 1e-3
        assert moved(faithful) > 1e-3
        assert moved(strict(folder)) < 1e-12


def test_their_cache_gives_other_logits_and_ours_does_not(folder: Path) -> None:
    theirs = random_reformer("ReformerModelWithLMHead", {**DECODER, "num_hashes": 1})
    found = loaded(theirs, folder)
    text = ids(24)
    with torch.no_grad():
        whole = theirs(text, use_cache=False).logits
        state = theirs(text[:, :16], use_cache=True).past_buckets_states
        steps = []
        for place in range(16, 24):
            out = theirs(text[:, place : place + 1], past_buckets_states=state, use_cache=True)
            state = out.past_buckets_states
            steps.append(out.logits)
        assert (torch.cat(steps, 1) - whole[:, 16:]).abs().max() > 1e-3
        with pytest.raises(Unsupported, match="reformer decodes in its strict form only"):
            found.model.start(2)
        model = strict(folder)
        whole, state, steps = model(text), model.start(2), []
        for piece in text.split([16, *[1] * 8], dim=1):
            logits, state = model.extend(piece, state)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-10)


def test_the_strict_form_goes_with_the_folder(folder: Path, tmp_path: Path) -> None:
    theirs = random_reformer("ReformerModelWithLMHead", DECODER)
    theirs.save_pretrained(folder)
    model = strict(folder)
    hub.save(hub.Pretrained(model), tmp_path / "back", family="reformer")
    again = hub.load(tmp_path / "back").model
    assert again.options == model.options
    with torch.no_grad():
        assert torch.equal(again(ids(20)), model(ids(20)))
    read = theirs_reformer.ReformerModelWithLMHead.from_pretrained(tmp_path / "back")
    assert torch.equal(read.lm_head.decoder.weight, theirs.lm_head.decoder.weight)


# Sizes


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        (
            "reformer-enwik8",
            {
                "vocab_size": 258,
                "hidden_size": 1024,
                "attn_layers": ["local", "local", "lsh", "local"] * 3,
                "num_attention_heads": 8,
                "attention_head_size": 128,
                "feed_forward_size": 4096,
                "axial_pos_shape": (128, 512),
                "axial_pos_embds_dim": (256, 768),
                "max_position_embeddings": 65536,
            },
        ),
        (
            "reformer-crime",
            {
                "num_attention_heads": 2,
                "axial_pos_shape": (512, 1024),
                "max_position_embeddings": 524288,
            },
        ),
    ],
)
def test_presets_are_as_large_as_the_released_models(preset: str, given: dict[str, Any]) -> None:
    with torch.device("meta"):
        theirs = theirs_reformer.ReformerModelWithLMHead(ReformerConfig(**given, is_decoder=True))
    assert PRESETS[preset].exact == sum(parameter.numel() for parameter in theirs.parameters())


def test_a_preset_is_written_and_read_again(tmp_path: Path) -> None:
    row = shrink(PRESETS["reformer-crime"])
    model = build(row.model, **row.options).eval()
    hub.save(model, tmp_path, family="reformer")
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["attn_layers"] == ["local", "lsh"] * 2 and record["lsh_form"] == "strict"
    again = hub.load(tmp_path).model
    for number in (1, 3):  # which are not in the file: these were drawn, and not seeded
        own, other = (each.stack.stack.blocks[number][0].mixer.mechanism for each in (model, again))
        other.rotations.copy_(own.rotations)
    with torch.no_grad():
        assert torch.equal(again(ids(20) % 11), model(ids(20) % 11))


# Training


def test_loaded_models_can_be_trained(folder: Path) -> None:
    theirs = random_reformer("ReformerModelWithLMHead", DECODER)
    model = loaded(theirs, folder).model.train()
    with recording(model.stack) as seen:
        model(ids(24)).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert len(seen.maps) == 3 and len(seen.states) == 4  # the second run of the layers is not seen


def test_each_kind_of_layer_has_its_dropout(folder: Path) -> None:
    given = {"local_attention_probs_dropout_prob": 0.3, "lsh_attention_probs_dropout_prob": 0.1}
    model = loaded(random_reformer("ReformerModel", {**SMALL, **given}), folder).model
    assert [mix.mixer.mechanism.dropout for mix, _ in model.stack.pairs()] == [0.3, 0.1, 0.1]


# Configurations


def test_missing_keys_mean_their_defaults() -> None:
    own, theirs = REFORMER.options({}), ReformerConfig()
    for each in REFORMER.fields:
        expected = getattr(theirs, each.theirs, each.default)
        assert own[each.ours] == (expected if each.values is None else each.values[expected]), each.theirs
    local, hashed = own["attention"][:2]
    assert own["layers"] == 6 and local.options == {"query_block": 64, "memory": 64, "memory_after": 0, "ring": True}
    assert (local.dropout, hashed.dropout) == (0.05, 0.0) and hashed.options["rounds"] == 1
    assert (own["axes"], own["axis_widths"]) == (theirs.axial_pos_shape, theirs.axial_pos_embds_dim)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attn_layers": ["local", "full"]}, "attn_layers are of 'local' and 'lsh'"),
        ({"axial_pos_shape": [4, 4, 4]}, "axial_pos_shape is"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"lsh_form": "loose"}, "lsh_form is 'loose'"),
        ({"is_decoder": True, "lsh_num_chunks_after": 1}, "lsh_num_chunks_after is 1; a decoder reads nothing behind"),
        ({"is_decoder": True, "local_num_chunks_after": 1}, "local_num_chunks_after is 1"),
        ({"architectures": ["ReformerModelWithLMHead"]}, "no reformer is called 'ReformerModelWithLMHead'"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any], message: str) -> None:
    random_reformer("ReformerModel", SMALL).save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, **given}))
    with pytest.raises(Unsupported, match=message):
        hub.load(folder)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("window", "reformer's layers are 'image_local' or 'reformer'"),
        ("reformer", r"cannot say AttentionConfig\('reformer'"),  # whose keys are of length 1 exactly
        ({"name": "image_local", "query_block": 4, "memory": 6}, r"cannot say AttentionConfig\('image_local'"),
    ],
    ids=str,
)
def test_models_that_are_no_reformers_of_theirs(tmp_path: Path, attention: Any, message: str) -> None:
    sizes = {"width": 8, "layers": 1, "heads": 2, "hidden": 8, "max_length": 16, "position": "learned"}
    model = build(
        "decoder", **sizes, norm_position="pre", reversible=True, tied=False, head_bias=True, attention=attention
    )
    with pytest.raises(Unsupported, match=message):
        hub.save(model, tmp_path, family="reformer")
