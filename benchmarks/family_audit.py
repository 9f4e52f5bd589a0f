"""The audit over families of transformers: causality, padding on both sides, and packing, in eager and sdpa.

    python -m benchmarks.family_audit [NAME …]      # all families: some minutes

Each family is built with a small random configuration, windows included, and audited by `longspan.audit` at 96 tokens
in float32. The results go to docs/family-audit.json and, as a table, to docs/family-audit.md.
"""

import json
import math
import platform
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from longspan.audit import Claims, Reading
from longspan.audit.behaviour import causal_perturbation, masks, padding_amount
from longspan.audit.finding import Measurement, Worst, check, difference, spread
from longspan.audit.packing import packing_borders, packing_cached, packing_masked, packing_positions
from longspan.audit.subjects import AuditSubject
from longspan.audit.targets import subjects_of

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "family-audit.json", DOCS / "family-audit.md"
DATE = "2026-11-18"
LENGTH = 96
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,  # so large that tokens attend to some others and not to all alike
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"sliding_window": 16}
LOCAL = {**GROUPED, **WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CAUSAL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_inner": 48},
    "openai-gpt": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 4, "n_inner": 48},
    "bloom": {},
    "llama": GROUPED,
    "mistral": {**GROUPED, **WINDOW},
    "mixtral": {**GROUPED, **WINDOW, **EXPERTS},
    "qwen2": {**LOCAL, "use_sliding_window": True},
    "qwen3": {**LOCAL, "use_sliding_window": True},
    "gemma": GROUPED,
    "gemma2": {**LOCAL, "query_pre_attn_scalar": 8},
    "gemma3_text": {**LOCAL, "query_pre_attn_scalar": 8},
    "phi": {},
    "phi3": {"num_key_value_heads": 2, **WINDOW},
    "smollm3": {"num_key_value_heads": 2, "no_rope_layers": [1, 0]},
    "olmo2": {"num_key_value_heads": 2},
    "stablelm": {"num_key_value_heads": 2},
    "starcoder2": {"num_key_value_heads": 2, **WINDOW},
    "falcon": {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    "cohere": {"num_key_value_heads": 2},
    "granite": {"num_key_value_heads": 2},
    "gpt_oss": {**LOCAL, **EXPERTS},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"],
        "attention_head_size": 8,
        "axial_pos_embds": False,
        "feed_forward_size": 48,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 4,
        "hash_seed": 0,
    },
}
BIDIRECTIONAL: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "max_position_embeddings": 162},
    "xlm-roberta": {"pad_token_id": 1, "max_position_embeddings": 162},
    "distilbert": {"hidden_dim": 48},
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 16},
    "mpnet": {"pad_token_id": 1, "max_position_embeddings": 162},
    "deberta-v2": {},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    "longformer": {"attention_window": 16, "pad_token_id": 1, "max_position_embeddings": 162},
    "big_bird": {"block_size": 8, "num_random_blocks": 1, "attention_type": "block_sparse"},
    "nystromformer": {"num_landmarks": 8, "segment_means_seq_len": LENGTH},
}


@check("the content of padding changes no other output", lambda claims: True)
def padding_right(subject: AuditSubject) -> Measurement:
    return _content(subject, "padding behind")


@check("the content of padding changes no other output", lambda claims: True)
def padding_left(subject: AuditSubject) -> Measurement:
    return _content(subject, "padding before")


def _content(subject: AuditSubject, side: str) -> Measurement:
    worst, mask = Worst(), masks(2, subject.length)[side]
    sample = subject.sample(2, subject.length, seed=0)
    with torch.no_grad():
        expected = subject.run(sample, mask)
        for seed in (101, 102):
            output = subject.run(subject.replace(sample, ~mask, seed), mask)
            worst.see(difference(output[mask], expected[mask], spread(expected[mask])), side)
    return worst.against(subject.same)


CHECKS = {
    "causality": causal_perturbation,
    "padding right": padding_right,
    "padding left": padding_left,
    "more padding": padding_amount,
    "packed: positions": packing_positions,
    "with cache": packing_cached,
    "with mask": packing_masked,
    "cu_seq_lens": packing_borders,
}


def build(family: str, implementation: str, causal: bool) -> Any:
    """A small random model."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**SIZES, **(CAUSAL if causal else BIDIRECTIONAL)[family]})
    torch.manual_seed(0)
    kind = AutoModelForCausalLM if causal else AutoModel
    model = kind.from_config(config, attn_implementation=implementation)
    used = model.config._attn_implementation
    if used != implementation:
        raise ValueError(f"{implementation} was asked for, and {used} is used")
    return model.eval()


def measure(family: str, implementation: str, causal: bool) -> dict[str, Any]:
    """The measured change of each check, in standard deviations of the output, and what was not measured."""
    try:
        module = build(family, implementation, causal)
    except Exception as error:
        return {"refused": " ".join(str(error).split()).partition(" yet.")[0][:200]}
    (subject,) = subjects_of(module, Claims(causal=causal), name=family, reading=Reading(length=LENGTH, kind="tokens"))
    subject.long_length = None
    results: dict[str, Any] = {}
    for name, measured in CHECKS.items():
        if name == "causality" and not causal:
            continue
        finding = measured(subject)
        number = None if math.isnan(finding.measured) else finding.measured
        results[name] = {"verdict": finding.verdict, "measured": number, "detail": finding.detail}
    return results


# The page


def cell(result: dict[str, Any] | None) -> str:
    if result is None or result["verdict"] == "not measured":
        return "–"
    value = result["measured"]
    if result["verdict"] == "pass":
        return "0"
    return "**∞**" if value is None or math.isinf(value) else f"**{value:.2g}**"


def page(record: dict[str, Any]) -> str:
    rows, leaks, refused = [], [], []
    for key, result in record["families"].items():
        family, implementation = key.split(" ")
        if "refused" in result:
            refused.append(f"- `{family}`, {implementation}: {result['refused']}")
            continue
        rows.append(f"| `{family}` | {implementation} | {' | '.join(cell(result.get(name)) for name in CHECKS)} |")
        bad = [name for name in ("causality", "padding right", "padding left", "more padding") if _fails(result, name)]
        leaks += [
            f"- `{family}` ({implementation}), {name}: {result[name]['detail'] or cell(result[name])}" for name in bad
        ]
    families = {key.split(" ")[0] for key in record["families"]}
    head = f"| family | attention | {' | '.join(CHECKS)} |\n|{'---|' * (len(CHECKS) + 2)}"
    return "\n".join(
        [
            "# An audit of Hugging Face's families",
            "",
            f"{len(families)} families of transformers {record['transformers']} (torch {record['torch']}), {DATE},",
            "with small random weights, audited by `longspan.audit` at 96 tokens in float32.",
            "Written by `python -m benchmarks.family_audit`; numbers in",
            "[family-audit.json](family-audit.json).",
            "",
            "Each cell is the largest change of an output that should not change, in standard deviations of",
            "the output: 0 is right (below 1e-5, or 1e-4 where sums are taken in another order), bold is a",
            "leak, – was not measured (no such form, or no such argument).",
            "",
            "- **causality**: later tokens change an earlier output.",
            "- **padding right, left**: the content of masked tokens changes the output of real ones.",
            "- **more padding**: 1 to 17 masked tokens appended change the output of real ones.",
            "- **packed**: three texts in one row change each other, or differ from each text alone; told apart",
            "  by `position_ids` without a cache, with the default cache, with a mask of ones, and by",
            "  `cu_seq_lens_q` and `cu_seq_lens_k` alone.",
            "",
            head,
            *rows,
            "",
            "## Leaks besides packing",
            "",
            *(leaks or ["None."]),
            "",
            "## Not built",
            "",
            *(refused or ["All families were built."]),
            "",
            "To audit one yourself: write a function that returns the model, and run",
            "`longspan audit mymodule:function --causal --padding --packing`.",
            "",
        ]
    )


def _fails(result: dict[str, Any], name: str) -> bool:
    return name in result and result[name]["verdict"] == "fail"


def main(chosen: Sequence[str]) -> None:
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"families": {}}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "date": DATE}
    record |= {**versions, "python": platform.python_version(), "command": "python -m benchmarks.family_audit"}
    for group, causal in ((CAUSAL, True), (BIDIRECTIONAL, False)):
        for family in group:
            if chosen and family not in chosen:
                continue
            for implementation in ("eager", "sdpa"):
                result = measure(family, implementation, causal)
                record["families"][f"{family} {implementation}"] = result
                shown = {name: cell(result[name]) for name in result} if "refused" not in result else result
                print(family, implementation, shown, flush=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
