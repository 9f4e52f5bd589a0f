"""Mechanisms with weights of their own: saved and loaded with the model, to the bit, and never replaced in silence.

Logits are compared up to the rounding of products, which depends on where in memory the weights lie.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hub.transformers_interface.families import FAMILIES, LENGTH, family, largest, texts
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertForMaskedLM,
)

from longspan.errors import InvalidOption, Unsupported
from longspan.hub import use_attention

ENCODING: dict[str, dict[str, Any]] = {
    "linformer": {"rank": 4},
    "nystrom": {"landmarks": 4, "kernel": 3},
    "inducing": {"points": 3},
    "synthesizer": {},
    "sinkhorn": {"block": 4},
    "memory_compressed": {"stride": 2},
    "routing": {"clusters": 3, "window": 4, "block": 4},
    "longformer": {"window": 2, "global_first": 1},
    "etc": {"global_tokens": 3, "radius": 2, "labels": 2},
}
CAUSAL: dict[str, dict[str, Any]] = {
    **{name: ENCODING[name] for name in ("synthesizer", "sinkhorn", "memory_compressed", "routing")},
    "gated_linear": {"rank": 4},
    "hedgehog": {},
    "window_linear": {"window": 3},
    "softmax": {"score": "general"},
}


def fresh(name: str) -> Any:
    """A new model with the weights of the shared one: `use_attention` changes the model that it is given."""
    kind, config, options = FAMILIES[name]
    model = getattr(transformers, kind)(getattr(transformers, config)(**options))
    model.load_state_dict(family(name).state_dict())
    return model.eval()


@torch.no_grad()
def logits(model: Any, ids: Tensor, **given: Any) -> Tensor:
    found: Tensor = model(ids, **given).logits
    return found


@pytest.mark.parametrize("mechanism", ENCODING)
def test_an_encoder_is_saved_and_loaded(tmp_path: Path, mechanism: str) -> None:
    """And a text padded on the left, or packed after another, is the text alone."""
    model, (ids, mask) = use_attention(fresh("bert"), mechanism, **ENCODING[mechanism]), texts("left")
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    before = logits(model, ids, **given)
    assert largest(before, logits(fresh("bert"), ids, **given)) > 1e-3
    model.save_pretrained(tmp_path)
    loaded, told = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    assert largest(logits(loaded.eval(), ids, **given), before) < 2e-6
    assert largest(before[:1, 4:], logits(loaded, ids[:1, 4:])) < 1e-5
    packed = {"position_ids": torch.tensor([[*range(5), *range(ids.shape[1] - 5)]])}
    apart = [logits(model, ids[1:, :5]), logits(model, ids[1:, 5:])]
    for kind in (model, loaded):
        assert largest(logits(kind, ids[1:], **packed), torch.cat(apart, 1)) < 1e-5


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_a_decoder_is_saved_and_loaded(tmp_path: Path, mechanism: str) -> None:
    """Grouped queries; no token sees the next; steps with their cache, or a refusal if states are needed."""
    model, (ids, _) = use_attention(fresh("llama"), mechanism, **CAUSAL[mechanism]), texts()
    before = logits(model, ids, use_cache=False)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert largest(logits(loaded, ids, use_cache=False), before) < 2e-6
    other = ids.clone()
    other[:, 7:] = 3 + (other[:, 7:] + 5) % 50
    assert largest(logits(loaded, other, use_cache=False)[:, :7], before[:, :7]) < 1e-5
    first = loaded(ids[:, :7], use_cache=True)
    if any(stream.kind == "hidden" for stream in loaded.model.layers[0].self_attn.longspan.streams):
        with pytest.raises(Unsupported, match="hidden states of all tokens, which their cache does not keep"):
            logits(loaded, ids[:, 7:], past_key_values=first.past_key_values)
    else:
        cache = first.past_key_values
        after = [logits(loaded, ids[:, step : step + 1], past_key_values=cache) for step in range(7, ids.shape[1])]
        assert largest(torch.cat(after, 1), before[:, 7:]) < 1e-5


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("longformer", {"window": LENGTH, "global_first": 2}),
        ("etc", {"global_tokens": 3, "radius": LENGTH, "labels": 0}),
    ],
)
def test_global_tokens_start_as_the_model(mechanism: str, options: dict[str, Any]) -> None:
    """Their projections are copies: where everything is read, the model is what it was; then they are trained."""
    model, (ids, mask) = use_attention(fresh("bert"), mechanism, **options), texts("right")
    given = {"attention_mask": mask}
    assert largest(logits(model, ids, **given)[mask.bool()], logits(fresh("bert"), ids, **given)[mask.bool()]) < 1e-5
    maps = model(ids, attention_mask=mask, output_attentions=True).attentions[0].sum(-1).transpose(1, 2)[mask.bool()]
    assert largest(maps, torch.ones_like(maps)) < 1e-5
    model(ids, labels=ids).loss.backward()
    projections = [weight for name, weight in model.named_parameters() if "longspan_projections" in name]
    assert projections and all(weight.grad is not None for weight in projections)
    with pytest.raises(Unsupported, match="has none for q alone"):
        use_attention(fresh("modernbert"), mechanism, **options)
    with pytest.raises(Unsupported, match="cannot be used in causal layers"):
        use_attention(fresh("llama"), mechanism, **options)


def test_an_encoder_decoder_and_images(tmp_path: Path) -> None:
    """BART's self-attention, encoder and decoder, and not its cross-attention; ViT with a table for its patches."""
    model, (ids, mask) = use_attention(fresh("bart"), "sinkhorn", block=4), texts("right")
    assert not any("encoder_attn.longspan" in name for name in model.state_dict())
    given = {"attention_mask": mask, "decoder_input_ids": ids}
    before = logits(model, ids, **given)
    model.save_pretrained(tmp_path / "bart")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "bart").eval()
    assert largest(logits(loaded, ids, **given), before) < 2e-6
    model, pixels = use_attention(fresh("vit"), "linformer", rank=4, max_length=17), torch.randn(1, 3, 8, 8)
    before = logits(model, pixels)
    model.save_pretrained(tmp_path / "vit")
    assert (
        largest(logits(AutoModelForImageClassification.from_pretrained(tmp_path / "vit").eval(), pixels), before) < 2e-6
    )


def test_new_processes(tmp_path: Path) -> None:
    """Without longspan an error of transformers, by the Auto class and by the plain one; with it the same
    weights to the bit."""
    model, (ids, _) = use_attention(fresh("bert"), "linformer", rank=4), texts()
    model.save_pretrained(tmp_path / "model")
    torch.save({"ids": ids, "logits": logits(model, ids), "weights": model.state_dict()}, tmp_path / "seen.pt")
    code = """
import sys, torch
from transformers import AutoModelForMaskedLM, BertForMaskedLM
folder, seen = sys.argv[1], torch.load(sys.argv[2])
for kind in (AutoModelForMaskedLM, BertForMaskedLM):
    try:
        kind.from_pretrained(folder)
    except ValueError as error:
        print("refused", "longspan" in str(error))
import longspan.hub
longspan.hub.register()
with torch.no_grad():
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    print((model(seen["ids"]).logits - seen["logits"]).abs().max().item() < 2e-6)
print(all(torch.equal(tensor, seen["weights"][name]) for name, tensor in model.state_dict().items()))
"""
    run = [sys.executable, "-c", code, str(tmp_path / "model"), str(tmp_path / "seen.pt")]
    told = subprocess.run(run, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["refused True", "refused True", "True", "True"]


def test_another_attention_is_refused(tmp_path: Path) -> None:
    model = use_attention(fresh("bert"), "linformer", rank=4)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["longspan"] == "longspan:linformer?rank=4"
    with pytest.raises(InvalidOption, match="it cannot be built with attn_implementation='sdpa'"):
        AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    with pytest.raises(Unsupported, match="'eager' would leave them unused"):
        model.set_attn_implementation("eager")
    with pytest.raises(Unsupported, match="has weights of its own, which a name cannot bring along"):
        BertForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"use_attention\(model, 'linformer', rank=4\)"):
        family("bert").set_attn_implementation("longspan:linformer?rank=4")
    with pytest.raises(Unsupported, match="bert already has one"):
        use_attention(model, "sinkhorn")


def test_a_refusal_changes_nothing() -> None:
    model = fresh("llama")
    with pytest.raises(Unsupported, match="linformer has no causal form"):
        use_attention(model, "linformer", rank=4)
    assert type(model).__name__ == "LlamaForCausalLM" and model.config._attn_implementation == "sdpa"
    with pytest.raises(InvalidOption, match="changes a model of transformers, not Linear"):
        use_attention(torch.nn.Linear(2, 2), "window")
    assert use_attention(model, "window", window=3) is model
    assert model.config._attn_implementation == "longspan:window?window=3"


def test_weights_of_a_bare_model() -> None:
    model = use_attention(fresh("bert").bert, "linformer", rank=4)
    assert [tuple(layer.shape) for layer in model(texts()[0], output_attentions=True).attentions] == [
        (2, 4, 12, 12)
    ] * 2


def test_only_some_layers() -> None:
    model = use_attention(fresh("bert"), "linformer", rank=4, layers=[1])
    assert [name.split(".")[3] for name in model.state_dict() if "longspan" in name] == ["1"]


def test_training_moves_the_weights() -> None:
    model, (ids, _) = use_attention(fresh("bert"), "linformer", rank=4).train(), texts()
    model(ids, labels=ids).loss.backward()
    gradients = [weight.grad for name, weight in model.named_parameters() if "longspan" in name]
    assert len(gradients) == 2 and all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
