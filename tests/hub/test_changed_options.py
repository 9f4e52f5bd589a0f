"""Checkpoints with another attention or another length than they were trained with."""

import re
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
    RobertaConfig,
    RobertaModel,
)

from longspan import hub
from longspan.attention import names
from longspan.errors import InvalidInput, InvalidOption, LongspanError, Unsupported
from longspan.models import build

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 12,
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    random_model(BertModel, BertConfig(**SMALL)).save_pretrained(folder)
    return folder


def test_global_projections_start_from_the_sliding_ones(theirs: Path) -> None:
    found = hub.load(theirs, options={"attention": {"name": "longformer", "window": 4}})
    assert found.fresh == [] and found.unused == []
    for block in found.model.stack.blocks:
        for name in "qkv":
            sliding, of_globals = block.mixer.project[name], block.mixer.extra[f"global_{name}"]
            assert torch.equal(sliding.weight, of_globals.weight) and torch.equal(sliding.bias, of_globals.bias)
            assert sliding.weight.data_ptr() != of_globals.weight.data_ptr()
    # A window over all of the text is dense attention, with global tokens and without.
    dense = hub.load(theirs, dtype=torch.float64)
    wide = hub.load(theirs, dtype=torch.float64, options={"attention": {"name": "longformer", "window": 12}})
    ids = torch.arange(1, 11)[None]
    mask = torch.zeros(1, 10, dtype=torch.bool)
    mask[:, 0] = True
    with torch.no_grad():
        expected = dense.model(ids)
        for streams in (None, {"global_mask": mask}):
            torch.testing.assert_close(wide.model(ids, streams=streams), expected, atol=1e-12, rtol=0)


OWN = {  # mechanisms that a BERT cannot become, with what the error names
    "etc": "etc has weights of its own that the file has nothing for: stack.blocks.0.mixer.mechanism.labels.",
    "memory_compressed": "memory_compressed has weights of its own that the file has nothing for: stack.blocks.0.mixer",
    "inducing": "inducing has weights of its own that the file has nothing for: stack.blocks.0.mixer.mechanism.points;",
    "sinkhorn": "sinkhorn has weights of its own that the file has nothing for: stack.blocks.0.mixer.mechanism.sorting",
    "linformer": "linformer has weights of its own that the file has nothing for: stack.blocks.0.mixer.mechanism.proje",
    "nystrom": "nystrom has weights of its own that the file has nothing for: stack.blocks.0.mixer.mechanism.filters;",
    "reformer": "the file has encoder.layer.0.attention.self.key.",
    "synthesizer": "the file has encoder.layer.0.attention.self.key.bias, ",
    "sparse": "encoder self-attention, layer 0: sparse is causal only",
    "retention": "encoder self-attention, layer 0: retention is causal only",
    "gated_linear": "encoder self-attention, layer 0: gated_linear is causal only",
    "hedgehog": "hedgehog has weights of its own that the file has nothing for: stack.blocks.0.mixer.mechanism.query",
    "window_linear": "encoder self-attention, layer 0: window_linear is causal only",
}
OPTIONS = {
    "etc": {"global_tokens": 2},
    "linformer": {"rank": 4},
    "nystrom": {"landmarks": 4},
    "sinkhorn": {"block": 4},
    "window": {"window": 4},
}


@pytest.mark.parametrize("name", names())
def test_every_mechanism_is_taken_or_refused_by_name(theirs: Path, name: str) -> None:
    options = {"attention": {"name": name, **OPTIONS.get(name, {})}}
    if name in OWN:
        with pytest.raises(Unsupported, match=f": {re.escape(OWN[name])}"):
            hub.load(theirs, options=options)
        return
    try:
        found = hub.load(theirs, options=options)
    except LongspanError as error:  # defaults may be too large for 12 positions
        assert "at most the max_length of 12" in str(error)
        found = hub.load(theirs, options={**options, "max_length": 4096})
    with torch.no_grad():
        assert found.model(torch.arange(1, 11)[None]).isfinite().all()


def test_tables_of_positions_are_repeated_or_cut(theirs: Path) -> None:
    table = hub.load(theirs).model.embedding.position.weight
    for length in (5, 12, 13, 30):
        found = hub.load(theirs, options={"max_length": length}).model
        assert found.options.max_length == length
        rows = found.embedding.position.weight
        assert len(rows) == length and all(torch.equal(rows[at], table[at % 12]) for at in range(length))
    found = hub.load(theirs, options={"max_length": 30}).model
    with torch.no_grad():
        assert torch.equal(
            found(torch.ones(1, 9, dtype=torch.long)),
            hub.load(theirs).model(torch.ones(1, 9, dtype=torch.long)),
        )
        assert found(torch.ones(1, 30, dtype=torch.long)).shape == (1, 30, 24)


def test_a_longer_model_is_written_and_read_there(theirs: Path, tmp_path: Path) -> None:
    found = hub.load(theirs, options={"max_length": 30})
    hub.save(found, tmp_path)
    again = BertModel.from_pretrained(tmp_path).eval()
    assert again.config.max_position_embeddings == 30
    ids = torch.randint(1, 40, (1, 30))
    with torch.no_grad():
        torch.testing.assert_close(again(ids).last_hidden_state, found.model(ids), atol=1e-5, rtol=0)
    longformer = hub.load(theirs, options={"attention": {"name": "longformer", "window": 4}})
    with pytest.raises(LongspanError):
        hub.save(longformer, tmp_path / "other")


def test_rows_before_the_first_position_stay(tmp_path: Path) -> None:
    config = RobertaConfig(**{**SMALL, "max_position_embeddings": 14}, pad_token_id=1)
    random_model(RobertaModel, config).save_pretrained(tmp_path / "roberta")
    table = hub.load(tmp_path / "roberta").model.embedding.position.weight
    rows = hub.load(tmp_path / "roberta", options={"max_length": 30}).model.embedding.position.weight
    assert len(rows) == 32 and torch.equal(rows[:14], table)
    assert all(torch.equal(rows[2 + at], table[2 + at % 12]) for at in range(30))


def test_decoders_and_both_are_lengthened(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=4, n_positions=12)
    random_model(GPT2LMHeadModel, config).save_pretrained(tmp_path / "gpt2")
    found = hub.load(tmp_path / "gpt2", options={"max_length": 20}).model
    assert found(torch.ones(1, 20, dtype=torch.long)).shape == (1, 20, 40)
    config = BartConfig(
        vocab_size=40,
        d_model=24,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_position_embeddings=12,
    )
    random_model(BartForConditionalGeneration, config).save_pretrained(tmp_path / "bart")
    both = hub.load(tmp_path / "bart", options={"max_length": 20, "source_length": 30}).model
    assert both.max_length == 20 and both.options.source_length == 30
    tables = {name: len(p) for name, p in both.named_parameters() if ".position." in name}
    assert sorted(tables.values()) == [22, 32]


def test_other_options_that_the_file_has_nothing_for(theirs: Path) -> None:
    with pytest.raises(Unsupported, match=r"the file has encoder\.layer\.1\..*, and with the options layers the model"):
        hub.load(theirs, options={"layers": 1})
    with pytest.raises(InvalidInput, match=r"lacks encoder\.layer\.2\..* than config\.json and these options say$"):
        hub.load(theirs, options={"layers": 3})
    with pytest.raises(Unsupported, match=r"the options ask for .*, and the file has nothing for it"):
        hub.load(theirs, options={"embedding_projection": True})


# Folders of longspan and files


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    sizes = {"vocabulary": 40, "width": 24, "layers": 2, "heads": 4, "hidden": 40, "max_length": 12}
    build("encoder", **sizes, position="learned").save(folder)
    return folder


def test_options_of_our_own_folders(ours: Path) -> None:
    plain = hub.load(ours, dtype=torch.float64).model
    ids = torch.arange(1, 11)[None]
    wide = {"attention": {"name": "longformer", "window": 12}, "max_length": 30}
    model = hub.load(ours, dtype=torch.float64, options=wide).model
    assert model.options.max_length == 30 and not model.training
    with torch.no_grad():
        torch.testing.assert_close(model(ids), plain(ids), atol=1e-12, rtol=0)
    rows, table = model.embedding.position.weight, plain.embedding.position.weight
    assert all(torch.equal(rows[at], table[at % 12]) for at in range(30))


def test_what_mechanisms_draw_is_the_same_at_every_load_of_our_own_folders(ours: Path) -> None:
    options = {"attention": {"name": "performer", "features": 8}}
    ids = torch.arange(1, 11)[None]
    torch.manual_seed(1)
    first = hub.load(ours, options=options).model
    torch.manual_seed(2)
    with torch.no_grad():
        assert torch.equal(first(ids), hub.load(ours, options=options).model(ids))


def test_options_that_our_own_folders_have_nothing_for(ours: Path) -> None:
    said = "the file has stack.blocks.1..*, and with the options layers the model has no place for it"
    with pytest.raises(Unsupported, match=f"{ours}.*{said}"):
        hub.load(ours, options={"layers": 1})
    with pytest.raises(Unsupported, match="linformer has weights of its own that the file has nothing for"):
        hub.load(ours, options={"attention": {"name": "linformer", "rank": 4}})
    with pytest.raises(InvalidInput, match=r"is \(40, 24\) there, and \(50, 24\) with these options"):
        hub.load(ours, options={"vocabulary": 50})


def test_options_of_a_gguf_file(tmp_path: Path) -> None:
    sizes = {"vocabulary": 40, "width": 24, "layers": 2, "heads": 4, "hidden": 40, "max_length": 12}
    hub.save(build("llama3-8b", **sizes, kv_heads=2, rotary_scaling=None), tmp_path / "llama", family="llama")
    hub.convert(tmp_path / "llama", tmp_path / "model.gguf", to="gguf")
    ids = torch.arange(1, 11)[None]
    model = hub.load(tmp_path / "model.gguf", options={"attention": {"name": "window", "window": 4}}).model
    expected = hub.load(tmp_path / "llama", options={"attention": {"name": "window", "window": 4}}).model
    with torch.no_grad():
        torch.testing.assert_close(model(ids), expected(ids), atol=1e-5, rtol=0)
        assert not torch.allclose(model(ids), hub.load(tmp_path / "model.gguf").model(ids), atol=1e-3)


@pytest.mark.weights
def test_minilm_reads_longer_texts_with_sliding_windows(minilm: Path) -> None:
    attention = {"name": "longformer", "window": 256}
    found = hub.load(minilm, options={"max_length": 4096, "attention": attention})
    texts = ["A cat sits on the mat.", "Dogs run in the park."]
    torch.testing.assert_close(hub.embed(found, texts), hub.embed(hub.load(minilm), texts), atol=1e-5, rtol=0)
    assert hub.embed(found, ["a cat and a dog " * 300]).isfinite().all()


def test_options_are_changed_by_their_former_names_too(theirs: Path, ours: Path) -> None:
    for folder in (theirs, ours):
        assert hub.load(folder, options={"place": "post"}).model.options.norm_position == "post"
        with pytest.raises(InvalidOption, match="has both norm_position and its former name place; keep norm_position"):
            hub.load(folder, options={"place": "post", "norm_position": "post"})
