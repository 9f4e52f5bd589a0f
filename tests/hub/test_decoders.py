"""Relatives of Llama here and there: every family by the same tests, each with the settings that make it differ."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hub.decoders import SMALL, assert_same, in_double
from tests.hub.generation import assert_same_texts
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.mistral import modeling_mistral
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.smollm3 import modeling_smollm3

from longspan import hub
from longspan.decode import Beam, beam_search, generate
from longspan.errors import InvalidInput, InvalidOption, Unsupported

F, S = "full_attention", "sliding_attention"


@dataclass
class Case:
    """A family: its module and names there, small settings, variants of them, and settings that are refused."""

    module: Any
    prefix: str
    config: str
    base: dict[str, Any]
    odd: dict[str, dict[str, Any]]
    refused: dict[str, dict[str, Any]]  # by what the error says
    tasks: dict[str, str] = field(default_factory=dict)  # classes for tasks

    def build(self, cls: str = "ForCausalLM", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
        config = getattr(transformers, self.config)(**{**SMALL, **self.base, **given})
        config._experts_implementation = "eager"  # others have no float64
        return random_model(getattr(self.module, self.prefix + cls), config, dtype)


LONG = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.3, 1.7],
    "long_factor": [2.0, 4.0, 5.5],
    "attention_factor": None,
}
HEADS = {"ForSequenceClassification": "classify", "ForTokenClassification": "tag"}
CASES = {
    "mistral": Case(
        modeling_mistral,
        "Mistral",
        "MistralConfig",
        {"hidden_size": 24, "sliding_window": 4},
        {
            "window": {"tie_word_embeddings": True},
            "no-window": {"sliding_window": None},
            "wide-heads": {"sliding_window": 3, "head_dim": 14, "num_key_value_heads": 1},
        },
        {
            "sliding_window is 1; it can be 2 or more": {"sliding_window": 1},
            "sliding_window must be a number of tokens, not '4'": {"sliding_window": "4"},
            "layer_types of a mistral are all sliding_attention": {"layer_types": [F] * 3},
            "layer_types has 'chunked_attention'": {"layer_types": ["chunked_attention"] * 3},
            "layer_types must list the kinds of 3 layers": {"layer_types": [F]},
            "attention_bias is True": {"attention_bias": True},
            "rope_type is 'dynamic'": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        },
        {**HEADS, "ForQuestionAnswering": "span"},
    ),
    "qwen2": Case(
        modeling_qwen2,
        "Qwen2",
        "Qwen2Config",
        {"hidden_size": 24},
        {
            "full": {},
            "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
            "windows": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "types": {"use_sliding_window": True, "sliding_window": 3, "layer_types": [S, F, S], "head_dim": 10},
        },
        {
            "sliding_window must be a number of tokens, not None": {"layer_types": [S, F, F]},
            "attention_bias is False": {"attention_bias": False},
            "hidden_act is 'mish'": {"hidden_act": "mish"},
        },
        {**HEADS, "ForQuestionAnswering": "span"},
    ),
    "qwen3": Case(
        modeling_qwen3,
        "Qwen3",
        "Qwen3Config",
        {"hidden_size": 24, "head_dim": 10},
        {
            "full": {},
            "tied": {"tie_word_embeddings": True, "attention_bias": True},
            "windows": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
            "yarn": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}},
        },
        {
            "mlp_bias is True": {"mlp_bias": True},
            "rope_type is 'longrope'": {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
            "partial_rotary_factor is 0.5": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        },
        {**HEADS, "ForQuestionAnswering": "span"},
    ),
}
CASES |= {
    "gemma2": Case(
        modeling_gemma2,
        "Gemma2",
        "Gemma2Config",
        {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 4, "attn_logit_softcapping": 2.0},
        {
            "alternating": {"final_logit_softcapping": 5.0},
            "no-caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
            "untied": {"layer_types": [F, S, S], "query_pre_attn_scalar": 10, "tie_word_embeddings": False},
        },
        {
            "use_bidirectional_attention is True": {"use_bidirectional_attention": True},
            "query_pre_attn_scalar must be a number above 0, not 0": {"query_pre_attn_scalar": 0},
            "option softcap must be above 0": {"attn_logit_softcapping": -1.0},
        },
        HEADS,
    ),
    "gemma3_text": Case(
        modeling_gemma3,
        "Gemma3",
        "Gemma3TextConfig",
        {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 4, "layer_types": [S, S, F]},
        {
            "local": {},
            "scaled": {
                "rope_parameters": {
                    F: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                    S: {"rope_type": "default", "rope_theta": 500.0},
                },
                "final_logit_softcapping": 5.0,
            },
            "untied": {"layer_types": [F, F, F], "attention_bias": True, "tie_word_embeddings": False},
        },
        {
            "use_bidirectional_attention is True": {"use_bidirectional_attention": True},
            "attn_logit_softcapping is 50.0": {"attn_logit_softcapping": 50.0},
            "rope_type is 'dynamic'": {"rope_parameters": {F: {"rope_type": "dynamic", "factor": 2.0}}},
        },
        {"TextForSequenceClassification": "classify"},
    ),
    "smollm3": Case(
        modeling_smollm3,
        "SmolLM3",
        "SmolLM3Config",
        {"hidden_size": 24},
        {
            "every-second": {"no_rope_layer_interval": 2},
            "untied": {"no_rope_layers": [0, 1, 0], "tie_word_embeddings": False, "attention_bias": True},
            "windows": {"use_sliding_window": True, "sliding_window": 3, "no_rope_layers": [1, 0, 1], "mlp_bias": True},
        },
        {
            "no_rope_layers must have 1 or 0 for 3 layers": {"no_rope_layers": [1]},
            "rope_type is 'dynamic'": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        },
        {**HEADS, "ForQuestionAnswering": "span"},
    ),
    "phi3": Case(
        modeling_phi3,
        "Phi3",
        "Phi3Config",
        {"hidden_size": 24, "original_max_position_embeddings": 64},
        {
            "plain": {"resid_pdrop": 0.1},
            "partial": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.7}, "sliding_window": 4},
            "long": {"rope_parameters": LONG, "max_position_embeddings": 128, "original_max_position_embeddings": 8},
            "short": {"rope_parameters": LONG, "tie_word_embeddings": True, "max_position_embeddings": 128},
        },
        {
            "rope_type is 'linear'; for phi3 it can be": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "short_factor must list a divisor": {"rope_scaling": {"rope_type": "longrope", "long_factor": [1, 1, 1]}},
            "longrope has 2 divisors for 3 pairs": {
                "rope_scaling": {**LONG, "short_factor": [1, 1], "long_factor": [1, 2]}
            },
        },
        HEADS,
    ),
    "gpt_oss": Case(
        modeling_gpt_oss,
        "GptOss",
        "GptOssConfig",
        {"hidden_size": 24, "head_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4},
        {
            "tied": {"tie_word_embeddings": True, "swiglu_limit": 0.3, "attention_bias": False},
            "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "layer_types": [F, S, S]},
            "yarn": {},
        },
        {
            "hidden_act is 'gelu'": {"hidden_act": "gelu"},
            "9 of 5 experts cannot read a token": {"num_experts_per_tok": 9},
            "quantization_config are not read": {"quantization_config": {"quant_method": "mxfp4"}},
        },
        HEADS,
    ),
    "olmo2": Case(
        modeling_olmo2,
        "Olmo2",
        "Olmo2Config",
        {"hidden_size": 24},
        {
            "plain": {},
            "tied": {"tie_word_embeddings": True, "num_key_value_heads": 1, "attention_bias": True, "head_dim": 10},
            "llama3": {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
        },
        {"clip_qkv is 8.0": {"clip_qkv": 8.0}, "mlp_bias is True": {"mlp_bias": True}},
        {"ForSequenceClassification": "classify"},
    ),
}
ODD = [pytest.param(CASES[name], given, id=f"{name}-{odd}") for name in CASES for odd, given in CASES[name].odd.items()]
REFUSED = [
    pytest.param(CASES[name], given, said, id=f"{name}-{said}".replace(" ", "-"))
    for name in CASES
    for said, given in CASES[name].refused.items()
]
TASKS = [
    pytest.param(CASES[name], cls, task, id=f"{name}-{task}")
    for name in CASES
    for cls, task in CASES[name].tasks.items()
]
EVERY = [pytest.param(case, id=name) for name, case in CASES.items()]


@pytest.mark.parametrize("case,given", ODD)
def test_logits_states_maps_and_steps_equal_theirs(
    folder: Path, tmp_path: Path, case: Case, given: dict[str, Any]
) -> None:
    with in_double(case.module):
        assert_same(case.build(**given), folder, tmp_path / "back")


@pytest.mark.parametrize("case", EVERY)
def test_single_precision_and_generation(folder: Path, case: Case) -> None:
    theirs = case.build(dtype=torch.float32, **list(case.odd.values())[-1])
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)
    for beams in (1, 3):
        assert_same_texts(found, theirs, beams=beams, new=10)


@pytest.mark.parametrize("case,cls,task", TASKS)
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, case: Case, cls: str, task: str
) -> None:
    with in_double(case.module):
        theirs = case.build(cls, num_labels=2)
    found = loaded(theirs, folder)
    assert not found.fresh
    ids, mask = padded(40, side="left")
    ids = ids * mask  # they look for the last token that is not padding
    with torch.no_grad(), in_double(case.module):
        expected = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)[task]
    if task == "span":
        assert_close(own, torch.stack((expected.start_logits, expected.end_logits), -1), mask)
    else:
        assert_close(own, expected.logits, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("case,given,said", REFUSED)
def test_settings_that_would_change_results_are_refused_by_name(
    folder: Path, case: Case, given: dict[str, Any], said: str
) -> None:
    case.build(dtype=torch.float32, num_hidden_layers=3).save_pretrained(folder)
    rewritten(folder, **given)
    with pytest.raises((InvalidInput, InvalidOption, Unsupported), match=said):
        hub.load(folder)


def rewritten(folder: Path, *without: str, **given: Any) -> None:
    """Other keys in config.json."""
    record = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in record.items() if key not in without}
    (folder / "config.json").write_text(json.dumps({**kept, **given}))


# The old spelling of keys


def options_of(folder: Path, case: str, *without: str, **given: Any) -> Any:
    CASES[case].build(dtype=torch.float32).save_pretrained(folder)
    rewritten(folder, *without, **given)
    return hub.load(folder).model.options


def windows(options: Any) -> list[int | None]:
    """Our window of each layer; None without one."""
    return [each.all_options.window if each.name == "window" else None for each in options.attention]


@pytest.mark.parametrize("case", ["mistral", "qwen2", "qwen3"])
def test_old_rotary_keys(folder: Path, case: str) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    options = options_of(folder, case, "rope_parameters", rope_theta=1e6, rope_scaling=scaling)
    assert (options.rotary_base, options.rotary_scaling.factor) == (1e6, 2.0)
    options = options_of(folder, case, "rope_parameters")
    assert (options.rotary_base, options.rotary_scaling) == (1e4, None)


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_that_grow_past_the_original_length_are_read_again(folder: Path, beams: int) -> None:
    """Phi-3 rotates all tokens of a longer text otherwise; theirs drops its cache there, and so does ours."""
    theirs = CASES["phi3"].build(dtype=torch.float32, **CASES["phi3"].odd["long"])
    found, prompt = loaded(theirs, folder), torch.tensor([[5, 9, 17, 4]])
    with torch.no_grad():
        expected = theirs.generate(prompt, max_new_tokens=12, do_sample=False, num_beams=beams, length_penalty=0.0)
    if beams == 1:
        own = generate(found.model, prompt.tolist(), max_new=12, eos=2).tokens[0]
    else:
        options = Beam(beams=beams, length_penalty="none", max_new=12)
        own = beam_search(found.model, prompt.tolist(), options=options, eos=2)[0][0].tokens
    assert [*prompt[0].tolist(), *own] == [token for token in expected[0].tolist() if token not in (0, 2)]


def test_a_text_of_a_batch_is_read_as_alone_past_the_original_length(folder: Path) -> None:
    found = loaded(CASES["phi3"].build(**CASES["phi3"].odd["long"]), folder)
    prompts = [[5, 9, 17, 4, 8, 3, 21], [7], [11, 3, 22, 30]]
    together = generate(found.model, prompts, max_new=9).tokens
    assert together == [generate(found.model, [prompt], max_new=9).tokens[0] for prompt in prompts]
    state = found.model.start(1)
    ids = torch.tensor([prompts[0] + together[0]])
    with torch.no_grad():
        picked = found.model(ids)[0, len(prompts[0]) - 1 : -1].argmax(-1).tolist()
        _, state = found.model.extend(ids[:, :12], state)  # from the start on a longer text
        found.model.extend(ids[:, 12:], state)
    assert picked[3:] == together[0][3:]  # the first tokens were chosen when the text was short


def test_old_windows_of_mistral_and_qwen(folder: Path) -> None:
    assert windows(options_of(folder, "mistral", "sliding_window")) == [4095]
    upper = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    for case in ("qwen2", "qwen3"):
        assert windows(options_of(folder, case, "layer_types", **upper)) == [None, None, 4]
        assert windows(options_of(folder, case, "layer_types", **{**upper, "use_sliding_window": False})) == [None]


def test_old_windows_and_rotations_of_gemma(folder: Path) -> None:
    assert windows(options_of(folder, "gemma2", "layer_types")) == [3, None, 3]
    old = {"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    options = options_of(folder, "gemma3_text", "layer_types", "rope_parameters", **old, sliding_window_pattern=2)
    assert windows(options) == [3, None, 3]
    near, whole, _ = options.rotary_layers
    assert (near.base, near.scaling, whole.base, whole.scaling.factor) == (2e4, None, 2e6, 8.0)
    options = options_of(folder, "gemma3_text", "layer_types", "rope_parameters")
    assert windows(options) == [3] and {layer.base for layer in options.rotary_layers} == {1e4}


def test_old_keys_of_smollm3(folder: Path) -> None:
    options = options_of(folder, "smollm3", "rope_parameters", "no_rope_layers", no_rope_layer_interval=3)
    assert options.rotary_base == 2e6 and [layer.rotate for layer in options.rotary_layers] == [True, True, False]
    options = options_of(folder, "smollm3", "rope_parameters", "no_rope_layers", "no_rope_layer_interval")
    assert options.rotary_layers is None
    near = {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [0, 1, 1]}
    assert windows(options_of(folder, "smollm3", "layer_types", **near)) == [4, None, None]


def test_old_keys_of_gpt_oss(folder: Path) -> None:
    options = options_of(folder, "gpt_oss", "rope_parameters", "layer_types")
    assert (options.rotary_base, options.rotary_scaling.factor) == (150000.0, 32.0)
    assert windows(options) == [3, None, 3] and not options.rotary_scaling.round_bounds
    options = options_of(folder, "gpt_oss", "num_experts_per_tok", experts_per_token=3, rope_theta=2.0)
    assert options.experts.active == 3


def test_models_that_a_family_cannot_say_are_not_written(folder: Path, tmp_path: Path) -> None:
    mixed = [{"name": "window", "window": 3}, "softmax", "softmax"]
    found = loaded(CASES["mistral"].build(), folder, options={"attention": mixed})
    with pytest.raises(Unsupported, match="all layers of a mistral have a window or none has"):
        hub.save(found, tmp_path / "back")
    dilated = [{"name": "window", "window": 3, "dilation": 2}]
    found = loaded(CASES["mistral"].build(), folder, options={"attention": dilated})
    with pytest.raises(Unsupported, match="cannot say attention"):
        hub.save(found, tmp_path / "back")
    two = [{"name": "window", "window": 3}, {"name": "window", "window": 4}, "softmax"]
    found = loaded(CASES["qwen2"].build(), folder, options={"attention": two})
    with pytest.raises(Unsupported, match=r"a qwen2 has one window for all layers, and this model has \[4, 5\]"):
        hub.save(found, tmp_path / "back")
    assert not (tmp_path / "back").exists()
