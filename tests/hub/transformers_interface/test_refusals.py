"""What cannot work is refused by name, before it runs."""

from typing import Any

import pytest
import torch
import transformers
from tests.hub.transformers_interface.families import LENGTH, family, largest, run, texts

from longspan.errors import LongspanError, Unsupported
from longspan.hub import register, use_attention
from longspan.hub.transformers_interface.mechanisms import Sizes, make
from longspan.hub.transformers_interface.names import Implementation

TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 9,
}


@pytest.mark.parametrize(
    ("kind", "config", "options"),
    [
        ("OpenAIGPTModel", "OpenAIGPTConfig", {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}),
        ("LongformerModel", "LongformerConfig", TINY),
        ("DebertaV2Model", "DebertaV2Config", TINY),
        ("BloomModel", "BloomConfig", {"hidden_size": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}),
    ],
)
def test_models_that_do_not_use_the_interface(kind: str, config: str, options: dict[str, Any]) -> None:
    register()
    made = getattr(transformers, config)(**options)
    message = f"{kind} does not call transformers' AttentionInterface, so longspan:linear would change nothing in it"
    model = getattr(transformers, kind)(made)
    with pytest.raises(Unsupported, match=message):
        model.set_attn_implementation("longspan:linear")
    made._attn_implementation = "longspan:linear"
    with pytest.raises(Unsupported, match=message):
        getattr(transformers, kind)(made)


def test_soft_caps_and_sinks() -> None:
    """Right by `longspan:softmax` (test_equal_to_eager.py), and refused elsewhere."""
    with pytest.raises(Unsupported, match=r"Gemma2ForCausalLM, whose scores are capped \(attn_logit_softcapping 50\)"):
        family("gemma2").set_attn_implementation("longspan:linear")
    with pytest.raises(Unsupported, match="cannot be used in GptOssAttention, which has attention sinks"):
        run(family("gpt_oss"), "longspan:linear", texts()[0])


def test_a_model_whose_layers_all_slide() -> None:
    message = "longspan:linear would replace nothing in MistralForCausalLM: every layer has a sliding window of 4"
    with pytest.raises(Unsupported, match=message):
        family("mistral").set_attn_implementation("longspan:linear")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("llama", "longspan:bigbird", "longspan:bigbird cannot be used in causal layers: bigbird has no causal form"),
        ("llama", "longspan:nystrom?kernel=0", "cannot be used in causal layers: nystrom has no causal form"),
        ("llama", "longspan:reformer?form=released", "what an earlier token reads changes with later ones"),
        ("bert", "longspan:retention", "longspan:retention cannot be used in an encoder: retention is causal only"),
        ("bert", "longspan:etc", "use_attention(model, 'etc')"),
        ("bert", "longspan:linear?global_first=1", "linear chooses no global tokens; global_first is for longformer"),
        ("vit", "longspan:cosformer", "this model's configuration has no max_position_embeddings"),
        ("t5", "longspan:linear", "T5Attention, which adds a bias by position to its scores"),
    ],
)
def test_mechanisms_where_they_have_no_form(name: str, kind: str, message: str) -> None:
    ids = torch.randn(1, 3, 8, 8) if name == "vit" else texts()[0]
    with pytest.raises(LongspanError) as refused:
        run(family(name), kind, ids, **({"decoder_input_ids": ids} if name == "t5" else {}))
    assert message in str(refused.value)


def test_dropout_on_weights_that_a_mechanism_does_not_have() -> None:
    model, ids = transformers.BertModel(transformers.BertConfig(**TINY)).train(), torch.ones(1, 4, dtype=torch.long)
    model.set_attn_implementation("longspan:linear")
    with pytest.raises(
        Unsupported, match=r"no attention weights to drop, and this model trains with a dropout of 0\.1"
    ):
        model(ids)
    model.set_attn_implementation("longspan:window?window=2")
    assert model(ids).last_hidden_state.isfinite().all()


def test_a_mask_of_the_user() -> None:
    keep = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    with pytest.raises(Unsupported, match="LlamaAttention, which has a mask of its own"):
        run(family("llama"), "longspan:linear", texts()[0], attention_mask=keep, use_cache=False)


def test_a_prefix_that_is_read_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix-LM mask: exact attention takes it, others refuse it before they run."""
    from transformers.models.llama import modeling_llama

    whole, (ids, _) = modeling_llama.create_causal_mask, texts()

    def prefix(**given: Any) -> Any:
        return whole(**given, or_mask_function=lambda b, h, q, k: (q < 4) & (k < 4))

    monkeypatch.setattr(modeling_llama, "create_causal_mask", prefix)
    model = family("llama")
    theirs = run(model, "eager", ids, use_cache=False).logits
    assert largest(run(model, "longspan:softmax", ids, use_cache=False).logits, theirs) < 1e-5
    with pytest.raises(Unsupported, match="longspan:linear cannot compute this model's mask"):
        run(model, "longspan:linear", ids, use_cache=False)


def test_blocks_that_are_read_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Image tokens: one block among many tokens is enough."""
    from transformers.models.llama import modeling_llama

    whole = modeling_llama.create_causal_mask
    blocks = torch.full((1, 300), -1)
    blocks[0, 200:203] = 0
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **given: whole(**given, block_sequence_ids=blocks))
    with pytest.raises(Unsupported, match="longspan:linear cannot compute this model's mask"):
        run(family("llama"), "longspan:linear", torch.ones(1, 300, dtype=torch.long), use_cache=False)


def test_weights_of_a_mechanism_that_transforms_its_values() -> None:
    model = use_attention(transformers.BertModel(transformers.BertConfig(**TINY)).eval(), "inducing", points=2)
    with pytest.raises(Unsupported, match=r"so it has no \(queries, keys\) weights: leave out output_attentions"):
        model(torch.ones(1, 4, dtype=torch.long), output_attentions=True)


def test_first_tokens_at_positions_of_the_cache() -> None:
    """Their queries arrive rotated, so they cannot be rotated at another position."""
    implementation = Implementation("window", {"sinks": 2, "sink_positions": "cache"})
    with pytest.raises(Unsupported, match="rotates queries a second time, and a model of transformers hands them on"):
        make(implementation, Sizes(heads=2, head_dim=4, value_dim=4, causal=True))
