"""Our models in the tools of others, each with the real package: Trainer, datasets, pipeline, PEFT, lm-eval."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from longspan.data import Tokenizer
from longspan.errors import Unsupported
from longspan.hub import register, to_transformers
from longspan.models import build

SIZES: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 32, "max_length": 64}
TEXT = "the cat sat on the mat and the dog saw the cat"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    register()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """Whole words, as `AutoTokenizer` reads the folder that ours writes."""
    from tokenizers import Tokenizer as Inner
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[PAD]", "[UNK]", "[MASK]", "[END]", *dict.fromkeys(TEXT.split())]
    inner = Inner(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer(inner, {"pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]", "eos": "[END]"}, {}).save(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def decoder(tokenizer: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    core = build("decoder", vocabulary=len(tokenizer), **SIZES, **options)
    shell = to_transformers(core.eval())
    shell.config.pad_token_id = shell.generation_config.pad_token_id = tokenizer.pad_token_id
    return shell


# Trainer and datasets


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "seed": 5,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(output_dir=str(folder), **{**settings, **given})


def rows(tokenizer: Any) -> Any:
    """A data set of the package `datasets`, from texts, with a map and padding by their collator."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    words = TEXT.split()
    texts = Dataset.from_dict({"text": [" ".join(words[i % 5 : i % 5 + 4 + i % 3]) for i in range(16)]})
    return texts.map(lambda row: {"input_ids": tokenizer(row["text"])["input_ids"]}, remove_columns="text")


def train(tokenizer: Any, model: Any, folder: Path, resume: bool = False, **given: Any) -> Any:
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(model, arguments(folder, **given), data_collator=collate, train_dataset=rows(tokenizer))
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resume else None)
    return trainer


def test_training_resumes_to_the_bit(tmp_path: Path, tokenizer: Any) -> None:
    """4 steps are 2 steps, a new model, and 2 more; dropout included. The checkpoint is a folder that we load too."""
    import longspan

    whole = decoder(tokenizer)
    train(tokenizer, whole, tmp_path / "whole")
    train(tokenizer, decoder(tokenizer), tmp_path / "half", max_steps=4)
    resumed = decoder(tokenizer)
    train(tokenizer, resumed, tmp_path / "half", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters()))
    assert not torch.equal(whole.core.embedding.weight, decoder(tokenizer).core.embedding.weight)
    back = longspan.load(tmp_path / "half" / "checkpoint-4", tokenizer=False).model
    assert torch.equal(back.embedding.weight, whole.core.embedding.weight)


def test_gradients_accumulate_over_tokens(tmp_path: Path, tokenizer: Any) -> None:
    """Two batches of 4 make the step of one batch of 8, though they have different numbers of tokens."""
    whole, halves = decoder(tokenizer, dropout=0.0), decoder(tokenizer, dropout=0.0)
    more: dict[str, Any] = {"max_steps": 1, "save_strategy": "no", "optim": "sgd", "max_grad_norm": 0.0}
    train(tokenizer, whole, tmp_path / "a", per_device_train_batch_size=8, **more)
    train(tokenizer, halves, tmp_path / "b", per_device_train_batch_size=4, gradient_accumulation_steps=2, **more)
    largest = max((a - b).abs().max().item() for a, b in zip(whole.parameters(), halves.parameters()))
    assert largest < 1e-6
    assert not torch.equal(whole.core.embedding.weight, decoder(tokenizer).core.embedding.weight)


def test_training_a_classifier_evaluates(tmp_path: Path, tokenizer: Any) -> None:
    torch.manual_seed(0)
    core = build("encoder", vocabulary=len(tokenizer), tasks=[{"task": "classify", "labels": 2}], **SIZES)
    data = [{"input_ids": [4, 5 + i % 3], "labels": i % 2} for i in range(8)]
    trainer = Trainer(
        to_transformers(core),
        arguments(tmp_path, save_strategy="no"),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=lambda seen: {"shape": seen.predictions.shape[1]},
    )
    trainer.train()
    assert trainer.evaluate()["eval_shape"] == 2


# Pipelines


def test_pipelines(tokenizer: Any) -> None:
    shell = decoder(tokenizer)
    write = pipeline("text-generation", model=shell, tokenizer=tokenizer, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (told,) = write("the cat", max_new_tokens=3, do_sample=False, return_full_text=False)
    ids = shell.generate(**tokenizer("the cat", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    assert told["generated_text"] == tokenizer.decode(ids[0, 2:], skip_special_tokens=True)
    torch.manual_seed(0)
    tasks = ["masked", {"task": "classify", "labels": 2, "names": ["bad", "good"]}]
    core: Any = build("encoder", vocabulary=len(tokenizer), tasks=tasks, **SIZES).eval()
    fill = pipeline("fill-mask", model=to_transformers(core, "masked"), tokenizer=tokenizer, device="cpu")
    best = fill("the [MASK] sat")[0]
    seen = torch.tensor([tokenizer("the [MASK] sat")["input_ids"]])
    scores = core.outputs(seen)["masked"][0, 1].softmax(-1)
    assert best["token"] == int(scores.argmax()) and abs(best["score"] - scores.max().item()) < 1e-6
    classify = pipeline(
        "text-classification", model=to_transformers(core, "classify"), tokenizer=tokenizer, device="cpu"
    )
    assert classify("the cat sat")[0]["label"] in ("bad", "good")


# PEFT


def test_lora(tmp_path: Path, tokenizer: Any) -> None:
    """Counts, step 0, decoding through the joined product of q, k and v, merging, and the base untouched."""
    from peft import LoraConfig, PeftModel, get_peft_model

    base, ids = decoder(tokenizer), torch.tensor([[4, 5, 6, 7], [5, 4, 7, 8]])
    before, plain = {name: tensor.clone() for name, tensor in base.state_dict().items()}, base(ids).logits
    config = LoraConfig(r=2, lora_alpha=4, target_modules=r".*mixer\.(project\.(q|v)|out)", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trainable == 2 * 3 * (16 * 2 + 2 * 16)  # layers · (q, v, out) · (A + B)
    assert torch.equal(model(ids).logits, plain)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    changed = model(ids).logits
    assert (changed - plain).abs().max() > 0.1
    model.eval()
    greedy: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "output_logits": True}
    cached, whole = (
        torch.stack(model.generate(input_ids=ids, use_cache=cache, return_dict_in_generate=True, **greedy).logits, 1)
        for cache in (True, False)
    )
    assert (cached - whole).abs().max() < 1e-5  # the step reads q, k and v by one product, adapters included
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(decoder(tokenizer), tmp_path).eval()
    assert (again(ids).logits - changed).abs().max() < 1e-6
    assert (again.merge_and_unload()(ids).logits - changed).abs().max() < 1e-5
    unloaded = model.unload()
    assert all(torch.equal(tensor, before[name]) for name, tensor in unloaded.state_dict().items())


def test_prefix_tuning_is_refused(tokenizer: Any) -> None:
    from peft import PrefixTuningConfig, get_peft_model

    config = PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2, num_layers=2, num_attention_heads=2, token_dim=16
    )
    model = get_peft_model(decoder(tokenizer), config)
    with pytest.raises(Unsupported, match="PEFT's prefix tuning passes one, and would change nothing"):
        model(input_ids=torch.tensor([[4, 5, 6]]), attention_mask=torch.ones(1, 3, dtype=torch.long))


# lm-evaluation-harness


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tasks"
    folder.mkdir()
    lines = [{"question": "the cat", "choices": ["sat on", "mat dog"], "gold": 0}]
    lines += [{"question": "and the", "choices": ["dog saw the", "cat"], "gold": 1}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "words.yaml").write_text(
        f"""task: longspan_words
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder / "rows.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - metric: acc
"""
    )
    yield folder


@pytest.mark.filterwarnings("ignore")
def test_the_log_likelihoods_of_lm_eval_are_ours(tmp_path: Path, task: Path, tokenizer: Any, monkeypatch: Any) -> None:
    """A local task, offline, on a window model: each answer's log-likelihood by our own sum."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    shell = decoder(tokenizer, attention={"name": "window", "window": 3})
    model = HFLM(pretrained=shell, tokenizer=tokenizer, backend="causal", batch_size=2, max_length=32, device="cpu")
    manager = TaskManager(include_path=str(task), include_defaults=False)
    told = simple_evaluate(model, tasks=["longspan_words"], task_manager=manager, bootstrap_iters=0)
    samples = told["samples"]["longspan_words"]
    assert len(samples) == 2
    for sample in samples:
        for (found, _), answer in zip(sample["filtered_resps"], sample["doc"]["choices"]):
            assert abs(found - log_likelihood(shell.core, tokenizer, sample["doc"]["question"], answer)) < 1e-5


@torch.no_grad()
def log_likelihood(core: Any, tokenizer: Any, question: str, answer: str) -> float:
    first = tokenizer(question)["input_ids"]
    ids: Tensor = torch.tensor([first + tokenizer(answer)["input_ids"]])
    scores = log_softmax(core(ids)[0], -1)
    return float(sum(scores[place - 1, ids[0, place]] for place in range(len(first), ids.shape[1])))


def test_a_folder_with_its_tokenizer(tmp_path: Path, tokenizer: Any) -> None:
    """`AutoTokenizer` and `AutoModelForCausalLM` on one folder, by name of the pipeline."""
    decoder(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size == len(tokenizer)
    wrapped = to_transformers(tmp_path).config
    assert (wrapped.pad_token_id, wrapped.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    assert write.tokenizer("the cat")["input_ids"] == tokenizer("the cat")["input_ids"]
