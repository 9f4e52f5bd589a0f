"""`longspan:softmax` gives the logits of `eager`: every family, padding on either side, with and without caches."""

from typing import Any

import pytest
import torch
from tests.hub.transformers_interface.families import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    LENGTH,
    VOCABULARY,
    family,
    largest,
    run,
    texts,
)
from transformers import StaticCache

PADDING = ["none", "right", "left"]


def test_images() -> None:
    model, pixels = family("vit"), torch.randn(2, 3, 8, 8)
    assert largest(run(model, "longspan:softmax", pixels).logits, run(model, "eager", pixels).logits) < 1e-5


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str, padding: str) -> None:
    model, (ids, mask) = family(name), texts(padding)
    ours, theirs = (run(model, kind, ids, attention_mask=mask).logits for kind in ("longspan:softmax", "eager"))
    assert largest(ours[mask.bool()], theirs[mask.bool()]) < 1e-5


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name: str, padding: str) -> None:
    """Whole texts, and the logits of greedy steps with a cache that grows and with one of fixed size."""
    model, (ids, mask) = family(name), texts(padding)
    whole = {"attention_mask": mask, "use_cache": False}
    ours, theirs = (run(model, kind, ids, **whole).logits for kind in ("longspan:softmax", "eager"))
    assert largest(ours[mask.bool()], theirs[mask.bool()]) < 1e-5
    if padding == "right":  # no text is continued after padding
        return
    for cache in ("dynamic", "static"):
        ours, theirs = (steps(model, kind, cache, ids, mask) for kind in ("longspan:softmax", "eager"))
        assert largest(ours, theirs) < 1e-5, cache


def steps(model: Any, kind: str, cache: str, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    model.set_attn_implementation(kind)
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    out = model.generate(
        ids,
        attention_mask=mask,
        cache_implementation=cache,
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
    )
    return torch.stack(out.logits, 1)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders(name: str, padding: str) -> None:
    """Source and target of one length, where cross-attention looks like self-attention; and generation."""
    model, (ids, mask) = family(name), texts(padding)
    target = torch.randint(3, VOCABULARY, (2, LENGTH))
    given = {"attention_mask": mask, "decoder_input_ids": target, "use_cache": False}
    ours, theirs = (run(model, kind, ids, **given).logits for kind in ("longspan:softmax", "eager"))
    assert largest(ours, theirs) < 1e-5
    for cache in ("dynamic", "static"):
        ours, theirs = (steps(model, kind, cache, ids, mask) for kind in ("longspan:softmax", "eager"))
        assert largest(ours, theirs) < 1e-5, cache


def test_a_prompt_read_in_two_parts_with_a_static_cache() -> None:
    model, (ids, _) = family("mistral"), texts()
    whole = run(model, "eager", ids, use_cache=False).logits
    cache = StaticCache(config=model.config, max_cache_len=20)
    model.set_attn_implementation("longspan:softmax")
    with torch.no_grad():
        first = model(ids[:, :7], past_key_values=cache).logits
        second = model(ids[:, 7:], past_key_values=cache).logits
    assert largest(torch.cat([first, second], 1), whole) < 1e-5


def test_a_mask_of_the_user() -> None:
    """Four dimensions, boolean or to be added, as `eager` takes them."""
    model, (ids, _) = family("llama"), texts()
    keep = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    keep[5:, 2] = False
    added = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~keep, torch.finfo(torch.float32).min)
    theirs = run(model, "eager", ids, attention_mask=added, use_cache=False).logits
    for mask in (added, keep.expand(2, 1, -1, -1)):
        assert largest(run(model, "longspan:softmax", ids, attention_mask=mask, use_cache=False).logits, theirs) < 1e-5
