"""Our models as models of transformers: the same numbers, folders that both sides read, states of their own size."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.models.every import KINDS, of_kind, of_mechanism
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

import longspan
from longspan.attention import registry as attention
from longspan.errors import InvalidOption, UnknownName, Unsupported
from longspan.hub import register, to_transformers
from longspan.hub.transformers_models.auto import CLASSES
from longspan.hub.transformers_models.configuration import LongspanConfig
from longspan.models import build
from longspan.models.base import CausalModel

CAUSAL = ("decoder", "universal_decoder", "transformer_xl", "compressive", "recurrent")
PAIRS = ("transformer", "seq2seq", "universal")
STREAMING = [name for name in attention.ATTENTION.entries if attention.find(name).supports.streaming]
HEADS = {
    "AutoModelForMaskedLM": "masked",
    "AutoModelForSequenceClassification": "classify",
    "AutoModelForTokenClassification": "tag",
    "AutoModelForQuestionAnswering": "span",
    "AutoModelForMultipleChoice": "choose",
}
GREEDY: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(autouse=True)
def known() -> None:
    register()


def ids(rows: int = 2, length: int = 9) -> Tensor:
    return torch.randint(1, 11, (rows, length), generator=torch.Generator().manual_seed(3))


def near(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of products, which depends on where in memory the weights lie."""
    return a.shape == b.shape and bool((a - b).abs().max() < 2e-6)


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@torch.no_grad()
def scores(model: Any, prompt: Tensor, **given: Any) -> Tensor:
    """The logits of each step of generation."""
    out = model.generate(prompt, return_dict_in_generate=True, output_logits=True, **{**GREEDY, **given})
    return torch.stack(out.logits, 1)


# Folders


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_folder_of_ours_is_read_by_transformers_and_back(tmp_path: Path, kind: str) -> None:
    core = of_kind(kind).eval()
    assert isinstance(core, CausalModel)
    core.save(tmp_path / "ours")
    loaded, told = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values()), told
    assert same_weights(loaded.core, core)
    with torch.no_grad():
        assert near(loaded(ids()).logits, core.text_logits(ids()))
        loaded.save_pretrained(tmp_path / "theirs")
        back = longspan.load(tmp_path / "theirs").model
        assert type(back) is type(core) and same_weights(back, core)
        assert near(back.text_logits(ids()), core.text_logits(ids()))


@pytest.mark.parametrize("kind", PAIRS)
def test_an_encoder_decoder(tmp_path: Path, kind: str) -> None:
    """Weights to the bit, padding in the source, steps and beams with and without the state."""
    core = of_kind(kind).eval()
    core.save(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert same_weights(loaded.core, core)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    with torch.no_grad():
        ours = core(ids(), ids(), source_mask=mask.bool())
        assert near(loaded(ids(), attention_mask=mask, decoder_input_ids=ids()).logits, ours)
    given = {"attention_mask": mask, "decoder_start_token_id": 1}
    assert (scores(loaded, ids(), **given) - scores(loaded, ids(), use_cache=False, **given)).abs().max() < 1e-5
    beams = {"num_beams": 3, **given, **GREEDY}
    assert loaded.generate(ids(), **beams).tolist() == loaded.generate(ids(), use_cache=False, **beams).tolist()
    labels = ids().masked_fill(mask == 0, -100)
    loaded.config.decoder_start_token_id = 1
    by_hand = torch.nn.functional.cross_entropy(
        core(ids(), loaded.prepare_decoder_input_ids_from_labels(labels)).flatten(0, 1), labels.flatten()
    )
    assert abs(loaded(ids(), labels=labels).loss - by_hand) < 1e-6


@pytest.mark.parametrize("automatic", HEADS)
def test_heads(tmp_path: Path, automatic: str) -> None:
    """Those of the folder; a model without the head gets a new one, with the body's weights."""
    task = HEADS[automatic]
    head = {"task": task, **({"labels": 3} if task in ("classify", "tag") else {})}
    core: Any = of_kind("encoder", tasks=[head], segments=2).eval()
    core.save(tmp_path / "head")
    loaded = getattr(transformers, automatic).from_pretrained(tmp_path / "head")
    mask, kinds = torch.ones(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    mask[0, 6:], kinds[:, 4:] = 0, 1
    given = {"attention_mask": mask, "token_type_ids": kinds}
    with torch.no_grad():
        ours = core.outputs(ids(), key_mask=mask.bool(), segments=kinds)[task]
        if task == "choose":
            theirs = loaded(ids()[:, None], **{key: value[:, None] for key, value in given.items()}).logits[:, 0]
        else:
            out = loaded(ids(), **given)
            theirs = torch.stack([out.start_logits, out.end_logits], -1) if task == "span" else out.logits
    assert near(theirs, ours)
    of_kind("encoder", tasks=None).save(tmp_path / "body")
    new, told = getattr(transformers, automatic).from_pretrained(tmp_path / "body", output_loading_info=True)
    assert all(f"core.heads.{task}." in name for name in told["missing_keys"]) and told["missing_keys"]
    assert all(parameter.isfinite().all() and parameter.device.type == "cpu" for parameter in new.parameters())


def test_the_losses_of_heads() -> None:
    """By hand."""
    cross = torch.nn.functional.cross_entropy
    tasks = ["masked", {"task": "classify", "labels": 3}, {"task": "tag", "labels": 3}, "span", "choose"]
    core: Any = of_kind("encoder", tasks=tasks).eval()
    out = core.outputs(ids())
    tags, places = torch.randint(3, (2, 9)), torch.tensor([1, 4])
    found = to_transformers(core, "masked")(ids(), labels=ids()).loss
    assert abs(found - cross(out["masked"].flatten(0, 1), ids().flatten())) < 1e-6
    found = to_transformers(core, "classify")(ids(), labels=tags[:, 0]).loss
    assert abs(found - cross(out["classify"], tags[:, 0])) < 1e-6
    found = to_transformers(core, "tag")(ids(), labels=tags).loss
    assert abs(found - cross(out["tag"].flatten(0, 1), tags.flatten())) < 1e-6
    found = to_transformers(core, "span")(ids(), start_positions=places, end_positions=places).loss
    assert abs(found - (cross(out["span"][..., 0], places) + cross(out["span"][..., 1], places)) / 2) < 1e-6
    found = to_transformers(core, "choose")(ids()[None], labels=torch.tensor([1])).loss
    assert abs(found - cross(out["choose"][None], torch.tensor([1]))) < 1e-6


@pytest.mark.parametrize("kind", ["vit", "resnet", "perceiver"])
def test_images(tmp_path: Path, kind: str) -> None:
    core: Any = of_kind(kind).eval()
    core.save(tmp_path)
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    pixels = torch.randn(2, 3, 8, 12)
    with torch.no_grad():
        assert near(loaded(pixels, labels=torch.tensor([1, 2])).logits, core.outputs(pixels)["classify"])
    assert loaded.config.num_labels == 5


def test_regression_and_names_of_labels(tmp_path: Path) -> None:
    of_kind("encoder", tasks=[{"task": "regress", "labels": 1}]).save(tmp_path / "number")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "number")
    out = loaded(ids(), labels=torch.tensor([0.5, 1.0]))
    assert (
        loaded.config.problem_type == "regression"
        and abs(out.loss - torch.nn.functional.mse_loss(out.logits[:, 0], torch.tensor([0.5, 1.0]))) < 1e-6
    )
    of_kind("encoder", tasks=[{"task": "classify", "labels": 2, "names": ["no", "yes"]}]).save(tmp_path / "names")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "names").config.id2label == {0: "no", 1: "yes"}


def test_hidden_states() -> None:
    core: Any = of_kind("encoder").eval()
    out = to_transformers(core, "states")(ids(), output_hidden_states=True)
    assert near(out.last_hidden_state, core.text_states(ids())) and len(out.hidden_states) == 3
    assert type(AutoModel.from_config(LongspanConfig.of(core))).__name__ == "LongspanModel"


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    """A shared embedding, and layers that share their attention."""
    core = build("transformer", **KINDS["transformer"], source_length=20, groups=1, share="attention").eval()
    shell = to_transformers(core)
    shell.save_pretrained(tmp_path)
    stored, ours = load_file(tmp_path / "model.safetensors"), tmp_path / "ours"
    core.save(ours)
    assert len(stored) == len(load_file(ours / "model.safetensors")) < len(core.state_dict())
    for folder in (tmp_path, ours):
        loaded = AutoModelForSeq2SeqLM.from_pretrained(folder)
        assert loaded.core.source.weight is loaded.core.target.weight
        with torch.no_grad():
            assert near(loaded(ids(), decoder_input_ids=ids()).logits, core(ids(), ids()))


@pytest.mark.parametrize(
    "options",
    [
        {"position": "alibi"},
        {"attention": {"name": "performer", "features": 8}},
        {"attention": {"name": "reformer", "chunk": 4, "buckets": 4}},
    ],
)
def test_what_is_computed_and_not_learned_survives(tmp_path: Path, options: dict[str, Any]) -> None:
    """transformers builds on the meta device: slopes, random features and rotations are filled after it."""
    core = of_kind("decoder", **options).eval()
    core.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same_weights(loaded.core, core)
    assert near(loaded(ids()).logits, core(ids()))


def test_half_precision(tmp_path: Path) -> None:
    of_kind("decoder").save(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)(ids()).logits.dtype == torch.bfloat16


def test_a_process_without_longspan_says_so(tmp_path: Path) -> None:
    of_kind("decoder").save(tmp_path)
    code = "import sys; from transformers import AutoModelForCausalLM as A; A.from_pretrained(sys.argv[1])"
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert told.returncode == 1 and "has model type `longspan` but Transformers does not recognize" in told.stderr


# Generation


@pytest.mark.parametrize("name", STREAMING)
def test_generation_with_every_mechanism_that_decodes(name: str) -> None:
    """Greedy steps by logits, and beams, with the state and without; padding on the left, or a refusal."""
    core = of_mechanism(name).eval()
    assert isinstance(core, CausalModel)
    shell, prompt = to_transformers(core), ids()
    assert (scores(shell, prompt) - scores(shell, prompt, use_cache=False)).abs().max() < 1e-5
    beams = {"num_beams": 4, **GREEDY}
    assert shell.generate(prompt, **beams).tolist() == shell.generate(prompt, use_cache=False, **beams).tolist()
    mask = torch.ones_like(prompt)
    mask[0, :4] = 0
    if core.left_padding:
        padded = scores(shell, prompt * mask, attention_mask=mask)
        assert (padded[:1] - scores(shell, prompt[:1, 4:])).abs().max() < 1e-5
        assert (padded[1:] - scores(shell, prompt[1:])).abs().max() < 1e-5
    else:
        with pytest.raises(Unsupported, match="cannot read texts padded on the left"):
            shell.generate(prompt, attention_mask=mask, **GREEDY)


@pytest.mark.parametrize("kind", ["universal_decoder", "transformer_xl", "compressive", "recurrent"])
def test_generation_with_other_models(kind: str) -> None:
    shell = to_transformers(of_kind(kind).eval())
    with torch.no_grad():
        out = shell(ids(), use_cache=True)
        after = shell(ids()[:, :1], past_key_values=out.past_key_values)
    assert out.past_key_values is after.past_key_values and after.past_key_values.get_seq_length() == 10
    assert shell.generate(ids(), **GREEDY).shape == (2, 14)


@pytest.mark.parametrize("kind", CAUSAL)
def test_padding_on_the_right_changes_nothing(kind: str) -> None:
    """As batches of training have it, also for models that take no mask."""
    shell, mask = to_transformers(of_kind(kind).eval()), torch.ones(2, 9, dtype=torch.long)
    mask[0, 5:] = 0
    labels = ids().masked_fill(mask == 0, -100)
    with torch.no_grad():
        batch = shell(ids(), attention_mask=mask, labels=labels)
        assert near(batch.logits[:1, :5], shell(ids()[:1, :5]).logits)
    assert batch.loss.isfinite()


def test_states_have_the_size_of_their_mechanism() -> None:
    """Of a window of 5 and of linear attention: the same after 20 and after 40 tokens; of softmax it grows."""
    sizes = {}
    for name in ("window", "linear", "softmax"):
        shell = to_transformers(of_mechanism(name).eval())
        with torch.no_grad():
            sizes[name] = [shell(ids(2, n), use_cache=True).past_key_values.bytes for n in (20, 40)]
    assert sizes["window"][0] == sizes["window"][1] == 2 * 2 * 2 * 2 * 5 * 8 * 4
    assert sizes["linear"][0] == sizes["linear"][1]
    assert sizes["softmax"][1] == 2 * sizes["softmax"][0]


def test_an_empty_cache_is_not_false() -> None:
    shell = to_transformers(of_kind("decoder").eval())
    cache = shell(ids()[:, :1], use_cache=True).past_key_values
    assert cache and len(cache) == 0 and repr(cache).startswith("LongspanCache(length=1, bytes=")


def test_the_last_logits_only() -> None:
    shell = to_transformers(of_kind("decoder").eval())
    with torch.no_grad():
        whole = shell(ids()).logits
        assert near(shell(ids(), logits_to_keep=3).logits, whole[:, -3:])
        assert (shell(ids(), logits_to_keep=1, use_cache=True).logits - whole[:, -1:]).abs().max() < 1e-6


# Refusals


def test_refusals(tmp_path: Path) -> None:
    shell = to_transformers(of_kind("decoder").eval())
    foreign = transformers.DynamicCache()
    for given, message in (
        ({"past_key_values": foreign}, "keeps its own state, a LongspanCache, and cannot read a DynamicCache"),
        ({"output_attentions": True}, "LongspanForCausalLM does not take output_attentions"),
        ({"inputs_embeds": torch.zeros(1)}, "does not take inputs_embeds"),
    ):
        with pytest.raises(Unsupported, match=message):
            shell(ids(), **given)
    with pytest.raises(Unsupported, match="load it with another vocabulary"):
        shell.resize_token_embeddings(20)
    with pytest.raises(ValueError, match=r"[Ss]tateful"):
        shell.generate(ids(1), assistant_model=shell, **GREEDY)
    with pytest.raises(UnknownName, match=r"no task is called 'maskd': did you mean 'masked'\?"):
        to_transformers(of_kind("encoder"), "maskd")
    with pytest.raises(Unsupported, match="this encoder has no head for 'tag': its heads are for masked"):
        to_transformers(of_kind("encoder"), "tag")
    with pytest.raises(Unsupported, match="transformers has no class for a set_transformer"):
        to_transformers(of_kind("set_transformer"))
    with pytest.raises(Unsupported, match="needs a model that predicts the next token, and 'encoder' is not one"):
        to_transformers(of_kind("encoder"), "next")
    with pytest.raises(InvalidOption, match="needs the kind of model and its options"):
        CLASSES["AutoModelForCausalLM"](LongspanConfig())
    of_kind("transformer").save(tmp_path)
    with pytest.raises(Unsupported, match="reads a source; use AutoModelForSeq2SeqLM"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_written_configuration_has_the_names_that_tools_read(tmp_path: Path) -> None:
    to_transformers(of_kind("decoder", max_length=32)).save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    plain = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    assert (
        record.items() >= {**plain, "max_position_embeddings": 32, "model_type": "longspan", "model": "decoder"}.items()
    )
    assert "auto_map" not in record
