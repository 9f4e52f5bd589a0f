"""Windows, packed texts, steps with a cache, weights, memory: what a layer of theirs asks of ours."""

from typing import Any

import pytest
import torch
from tests.hub.transformers_interface.families import (
    DECODERS,
    LENGTH,
    VOCABULARY,
    WINDOW,
    family,
    largest,
    run,
    texts,
)

from longspan.audit.counting import LargestTensor
from longspan.hub import register
from longspan.hub.transformers_interface import mask_codes

# Mechanisms that decode, without weights of their own, with blocks far smaller than the text.
CAUSAL = [
    "longspan:window?window=3",
    "longspan:window?dilation=2&window=2",
    "longspan:longformer?window=3",
    "longspan:sparse?stride=3",
    "longspan:image_local?memory=3&query_block=2",
    "longspan:axial?width=3",
    "longspan:reformer?buckets=4&chunk=3",
    "longspan:linear",
    "longspan:performer?features=16",
    "longspan:cosformer",
    "longspan:retention",
]
ENCODING = [*CAUSAL[:3], *CAUSAL[4:10], "longspan:bigbird?block=2&random=1", "longspan:nystrom?kernel=0&landmarks=4"]


# Windows


@pytest.mark.parametrize("name", ["mistral", "gemma3", "modernbert"])
def test_a_window_counts_as_theirs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to `eager` at 3 windows; with a window that is off by one it is not."""
    model, (ids, _) = family(name), texts()
    theirs = run(model, "eager", ids).logits
    assert largest(run(model, "longspan:softmax", ids).logits, theirs) < 1e-5
    read = mask_codes.read

    def off_by_one(mask: torch.Tensor) -> mask_codes.Seen:
        seen = read(mask)
        window = seen.window and seen.window + 1
        return mask_codes.Seen(seen.texts, seen.causal, window)

    monkeypatch.setattr(mask_codes, "read", off_by_one)
    assert largest(run(model, "longspan:softmax", ids).logits, theirs) > 0.01 * theirs.abs().max()


@pytest.mark.parametrize("name", ["gemma3", "modernbert", "qwen2"])
def test_other_mechanisms_leave_sliding_layers_as_they_are(name: str) -> None:
    """A linear mechanism in the full layers: the first layer, which slides, has the weights of `eager`."""
    model, (ids, _) = family(name), texts()
    sliding = [kind == "sliding_attention" for kind in model.config.layer_types].index(True)
    model.set_attn_implementation("eager")
    theirs = weights(model, ids)
    model.set_attn_implementation(f"longspan:linear?layers={sliding},")
    ours = weights(model, ids)
    assert largest(ours[0], theirs[0]) < 1e-5 and largest(ours[1], theirs[1]) < 1e-5
    assert (ours[sliding] > 0).sum() < (ours[1 - sliding] > 0).sum()


@torch.no_grad()
def weights(model: Any, ids: torch.Tensor, **given: Any) -> tuple[torch.Tensor, ...]:
    found: tuple[torch.Tensor, ...] = model(ids, output_attentions=True, **given).attentions
    return found


def test_the_smaller_of_two_windows_counts() -> None:
    model, (ids, _) = family("mistral"), texts()
    theirs = run(model, "eager", ids).logits
    assert largest(run(model, "longspan:window?window=100", ids).logits, theirs) < 1e-5
    assert largest(run(model, f"longspan:window?window={WINDOW - 1}", ids).logits, theirs) < 1e-5
    assert largest(run(model, f"longspan:window?window={WINDOW - 2}", ids).logits, theirs) > 0.05
    model.set_attn_implementation("longspan:window?dilation=2&window=9")  # reads one key, two tokens back
    assert {tuple(row.nonzero()[:, 0].tolist()) for row in weights(model, ids)[0][0, 0]} == {
        (0,), (1,), *((i - 2, i) for i in range(2, LENGTH))
    }  # fmt: skip


def test_a_bias_by_distance() -> None:
    """T5: a window wider than the text is `eager`; with a cache the window of a step is that of the whole text."""
    model, (ids, mask) = family("t5"), texts("right")
    target = torch.randint(3, VOCABULARY, (2, LENGTH))
    given = {"attention_mask": mask, "decoder_input_ids": target, "use_cache": False}
    theirs = run(model, "eager", ids, **given).logits
    assert largest(run(model, "longspan:window?window=20", ids, **given).logits, theirs) < 1e-5
    whole = run(model, "longspan:window?window=3", ids, **given).logits
    assert largest(whole, theirs) > 0.01
    encoded = model.get_encoder()(ids, attention_mask=mask)
    cached, cache = [], None
    for step in range(LENGTH):
        out = run(
            model,
            "longspan:window?window=3",
            encoder_outputs=encoded,
            attention_mask=mask,
            decoder_input_ids=target[:, step : step + 1],
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        cached.append(out.logits)
    assert largest(torch.cat(cached, 1), whole) < 1e-5


# Caches and padding


@pytest.mark.parametrize("kind", CAUSAL)
def test_steps_with_a_cache_equal_the_whole_text(kind: str) -> None:
    """By logits; and a text padded on the left is the text alone."""
    model, (ids, mask) = family("llama"), texts("left")
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    whole = run(model, kind, ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    alone = run(model, kind, ids[:1, 4:], use_cache=False).logits
    assert largest(whole[:1, 4:], alone) < 1e-5
    cached, cache = [], None
    for part in (slice(0, 7), *(slice(step, step + 1) for step in range(7, LENGTH))):
        given = {"attention_mask": mask[:, : part.stop], "position_ids": positions[:, part]}
        out = run(model, kind, ids[:, part], past_key_values=cache, use_cache=True, **given)
        cache = out.past_key_values
        cached.append(out.logits)
    assert largest(torch.cat(cached, 1)[mask.bool()], whole[mask.bool()]) < 1e-5


@pytest.mark.parametrize("kind", ["longspan:window?window=3", "longspan:linear"])
def test_an_encoder_decoder_with_a_cache(kind: str) -> None:
    """BART: cached = uncached by logits. A window does not touch cross-attention: its weights reach everything."""
    model, (ids, mask) = family("bart"), texts("right")
    target = torch.randint(3, VOCABULARY, (2, LENGTH))
    given = {"attention_mask": mask, "decoder_input_ids": target}
    out = run(model, kind, ids, **given, use_cache=False, output_attentions=True)
    real = mask.bool()[:, None, None].expand(-1, 4, LENGTH, -1)
    assert (out.cross_attentions[0][real] > 0).all()
    cached, cache = [], None
    for step in range(LENGTH):
        given = {"attention_mask": mask, "decoder_input_ids": target[:, step : step + 1]}
        after = run(model, kind, ids, **given, past_key_values=cache, use_cache=True)
        cache = after.past_key_values
        cached.append(after.logits)
    assert largest(torch.cat(cached, 1), out.logits) < 1e-5


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("kind", ENCODING)
def test_an_encoder_does_not_see_padding(kind: str, padding: str) -> None:
    model, (ids, mask) = family("bert"), texts(padding)
    real = mask[0].bool()
    positions = torch.arange(LENGTH)[None] - (4 if padding == "left" else 0)
    batch = run(model, kind, ids, attention_mask=mask, position_ids=positions.clamp_min(0)).logits
    alone = run(model, kind, ids[:1, real]).logits
    assert largest(batch[:1, real], alone) < 1e-5


# Packed texts


PACKED = [
    (name, given, kind)
    for name in ("llama", "gpt2", "mistral", "bert", "modernbert")
    for given in ("positions", "cache", "mask", "lengths")
    for kind in ("longspan:softmax", "longspan:window?window=2", "longspan:linear", "longspan:sparse?stride=3")
    if not (name in ("bert", "modernbert") and (given == "cache" or "sparse" in kind))  # there is no such thing
    if name != "mistral" or ("linear" not in kind and "sparse" not in kind)  # whose layers all slide
]


@pytest.mark.parametrize(("name", "given", "kind"), PACKED)
def test_packed_texts_are_read_separately(name: str, given: str, kind: str) -> None:
    model, (ids, _) = family(name), texts(rows=1)
    parts = [slice(0, 5), slice(5, LENGTH)]
    alone = torch.cat([run(model, kind, ids[:, part]).logits for part in parts], 1)
    positions = torch.cat([torch.arange(5), torch.arange(LENGTH - 5)])[None]
    lengths = torch.tensor([0, 5, LENGTH], dtype=torch.int32)
    cumulative = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 7, "max_length_k": 7}
    cached = {} if name in ("bert", "modernbert") else {"use_cache": given == "cache"}
    more = {"mask": {"attention_mask": torch.ones_like(ids)}, "lengths": cumulative}.get(given, {})
    packed = run(model, kind, ids, position_ids=positions, **cached, **more).logits
    assert largest(packed, alone) < 1e-5


def test_a_packed_text_goes_on_with_a_cache_and_packing_can_be_off() -> None:
    model, (ids, _) = family("llama"), texts(rows=1)
    positions = torch.cat([torch.arange(5), torch.arange(LENGTH - 5)])[None]
    alone = run(model, "longspan:linear", ids[:, 5:]).logits
    first = run(model, "longspan:linear", ids[:, :9], position_ids=positions[:, :9], use_cache=True)
    last = run(
        model, "longspan:linear", ids[:, 9:], position_ids=positions[:, 9:], past_key_values=first.past_key_values
    )
    assert largest(last.logits, alone[:, 4:]) < 1e-5
    name = register("softmax", packing=False)
    leaking = run(model, name, ids, position_ids=positions, attention_mask=torch.ones_like(ids)).logits
    assert largest(leaking[:, 5:], run(model, "longspan:softmax", ids[:, 5:]).logits) > 0.05


# Weights


@pytest.mark.parametrize("name", DECODERS)
def test_weights_are_those_of_eager(name: str) -> None:
    model, (ids, _) = family(name), texts()
    model.set_attn_implementation("eager")
    theirs = weights(model, ids, use_cache=False)
    model.set_attn_implementation("longspan:softmax")
    ours = weights(model, ids, use_cache=False)
    assert len(ours) == len(theirs) == 2
    assert all(largest(a, b) < 1e-5 for a, b in zip(ours, theirs))


@pytest.mark.parametrize("kind", [*CAUSAL, "longspan:softmax"])
def test_weights_sum_to_one(kind: str) -> None:
    model, (ids, mask) = family("llama"), texts("left")
    model.set_attn_implementation(kind)
    found = weights(model, ids, attention_mask=mask, use_cache=False)
    assert len(found) == 2 and found[0].shape == (2, 4, LENGTH, LENGTH)
    for layer in found:
        assert largest(layer.triu(1), torch.zeros_like(layer)) < 1e-6
        assert layer[0, :, :, :4].abs().max() < 1e-6  # padding
        if "retention" not in kind and "cosformer" not in kind:  # whose rows decay, or are 0 where no feature is left
            rows = layer.sum(-1).transpose(1, 2)[mask.bool()]
            assert largest(rows, torch.ones_like(rows)) < 1e-5


# Memory


@pytest.mark.parametrize("kind", ["longspan:linear", "longspan:window?window=64"])
@pytest.mark.parametrize("name", ["gpt2_long", "bert_long"])
def test_no_tensor_of_queries_times_keys(name: str, kind: str) -> None:
    """4,096 tokens, one of them padding: the mask included."""
    length = 4096
    model = long_model(name)
    ids, mask = torch.ones(1, length, dtype=torch.long), torch.ones(1, length, dtype=torch.long)
    mask[0, 0] = 0
    with LargestTensor() as seen:
        run(model, kind, ids, attention_mask=mask)
    assert 0 < seen.elements < length * length // 8
    with LargestTensor() as seen:
        run(model, "eager", ids, attention_mask=mask)
    assert seen.elements >= length * length


def long_model(name: str) -> Any:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    register()
    small: dict[str, Any] = {"vocab_size": 5, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if name == "bert_long":
        return BertModel(BertConfig(**small, intermediate_size=16, max_position_embeddings=4096)).eval()
    return GPT2Model(GPT2Config(vocab_size=5, n_embd=16, n_layer=1, n_head=2, n_positions=4096)).eval()
