"""Generation speed relative to Hugging Face `generate`, with the same model sizes, options and number of tokens.

    OMP_WAIT_POLICY=ACTIVE python -m benchmarks.generate [--repeats 3] [--only gpt2] [--layers 6 --width 512]

A GPT-2 decoder (prompt 128, 128 new tokens), a Llama decoder (prompt 128, 64 new; always the shape of SmolLM2-135M: 30
layers of 576, 9 heads that share 3 key heads) and a BART encoder–decoder (source 128, 64 new). Random weights, greedy
and with 4 beams, batch 1 and 8. Prints tokens per second of wall time for the whole call, prompt included. Run it on a
quiet machine.
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from longspan.decode import Beam, beam_search, generate
from longspan.measure.timing import compare, wall
from longspan.models import build
from longspan.models.base import CausalModel

VOCABULARY, PROMPT = 8192, 128
NEW = {"gpt2": 128, "llama": 64, "bart": 64}


def models(kind: str, layers: int, width: int) -> tuple[CausalModel, nn.Module]:
    """Ours and theirs, of one size."""
    if kind == "llama":
        return llama()
    heads, max_length = width // 64, 1024
    sizes = {"vocabulary": VOCABULARY, "width": width, "heads": heads, "hidden": 4 * width, "max_length": max_length}
    choices = {"activation": "gelu_tanh", "position": "learned", "scale": False, "layers": layers}
    if kind == "gpt2":
        ours = build("decoder", **sizes, **choices, norm_position="pre")
        ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
        theirs = GPT2Config(
            vocab_size=VOCABULARY, n_positions=max_length, n_embd=width, n_layer=layers, n_head=heads, **ends
        )
        return ours, GPT2LMHeadModel(theirs)
    ours = build("transformer", **sizes, **choices)
    both = {"encoder_layers": layers, "decoder_layers": layers, "d_model": width}
    heads_of = {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
    inner = {"encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1, "decoder_start_token_id": 2}
    fixed = {"forced_eos_token_id": None, "forced_bos_token_id": None, "activation_function": "gelu_new"}
    config = BartConfig(
        vocab_size=VOCABULARY, max_position_embeddings=max_length, **both, **heads_of, **inner, **ends, **fixed
    )
    return ours, BartForConditionalGeneration(config)


def llama() -> tuple[CausalModel, nn.Module]:
    """The shape of SmolLM2-135M."""
    layers, width, heads, shared, hidden, vocabulary, max_length = 30, 576, 9, 3, 1536, 49152, 1024
    ours = build(
        "decoder",
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=shared,
        hidden=hidden,
        max_length=max_length,
        activation="swiglu",
        norm="rms",
        position="rotary",
        norm_position="pre",
        scale=False,
        bias=False,
    )
    theirs = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        intermediate_size=hidden,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return ours, LlamaForCausalLM(theirs)


def ours(model: CausalModel, ids: Tensor, new: int, beams: int) -> None:
    given = {"source": ids, "bos": 2} if model.reads_source else {"prompts": ids}
    if beams == 1:
        generate(model, max_new=new, **given)
    else:
        beam_search(model, options=Beam(beams=beams, max_new=new, alpha=0.0), **given)


@torch.inference_mode()
def theirs(model: nn.Module, ids: Tensor, new: int, beams: int) -> None:
    counts = {"max_new_tokens": new, "min_new_tokens": new, "num_beams": beams, "do_sample": False}
    model.generate(ids, attention_mask=torch.ones_like(ids), **counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="gpt2, llama or bart")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"{'tokens/s':26}{'Hugging Face':>14}{'longspan':>10}{'ratio':>8}   goal 2")
    for kind in NEW:
        if given.only not in kind:
            continue
        torch.manual_seed(0)
        own, other = models(kind, given.layers, given.width)
        own.eval(), other.eval()
        for batch in (1, 8):
            for beams in (1, 4):
                ids = torch.randint(3, own.vocabulary, (batch, PROMPT))
                cases: dict[str, Callable[[], None]] = {
                    "theirs": partial(theirs, other, ids, NEW[kind], beams),
                    "ours": partial(ours, own, ids, NEW[kind], beams),
                }
                best = compare(cases, given.repeats, wall)
                rates = [batch * NEW[kind] / best[name] for name in ("theirs", "ours")]
                what = "greedy" if beams == 1 else f"{beams} beams"
                name = f"{kind}, batch {batch}, {what}"
                print(f"{name:26}{rates[0]:14.0f}{rates[1]:10.0f}{rates[1] / rates[0]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
