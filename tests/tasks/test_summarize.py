"""Summaries from a table and from WikiText to ROUGE, by new and by pretrained models."""

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from tests.hub.parity import random_model
from tests.tasks.small import run
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

from longspan import hub
from longspan.data.text.headings import headed_paragraphs
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.errors import InvalidInput, Notice, Unsupported
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.rouge import Rouge
from longspan.tasks.summarize import lead

TOPICS = {"cat": "about cats", "dog": "about dogs", "fish": "on fishes of the sea"}
WORDS = {"kind": "bpe", "size": 340}
WIKI = """
 = A title =

 The lead belongs to no section .

 = = Early life = =

 She was born in 1900 . She had a role @-@ model .
 He , too .

 = = = Works = = =

 = = <unk> work = =

 Left out , as its heading is unknown .

 = Another =

 Lead .

 = = Plot = =

 A last one .
"""


def table(folder: Path, count: int = 45) -> Path:
    path = folder / "news.csv"
    rows = [
        f'"The {word} number {at} sat down. It was {at}. It ate. The {word} slept.",{TOPICS[word]}'
        for at, word in ((at, list(TOPICS)[at % 3]) for at in range(count))
    ]
    path.write_text("\n".join(["article,highlights", *rows]) + "\n")
    return path


def options(folder: Path, **given: Any) -> dict[str, Any]:
    named = {"train": str(table(folder)), "text": "article", "summary": "highlights", "tokenizer": WORDS}
    return {"name": "summarize", **named, "batch": 8, "length": 40, "summary_length": 16, **given}


def prepare(folder: Path, **given: Any) -> Prepared:
    named = {key: value for key, value in options(folder, **given).items() if key != "name"}
    return registry.build("summarize", **named).prepare(DataPaths(None, folder / "work"))


def test_rouge_is_the_mean_of_the_package_and_adds_up() -> None:
    texts, references = ["the cats sat .\nit ate", "a dog", ""], ["the cat sat .\nit was eating", "two dogs ran", "x"]
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references)]
    found = Rouge.of(texts[:1], references[:1])
    found.add(Rouge.of(texts[1:], references[1:]))
    for ours, theirs in (("rouge1", "rouge1"), ("rouge2", "rouge2"), ("rougeL", "rougeLsum")):
        assert found.result()[ours] == pytest.approx(100 * sum(score[theirs].fmeasure for score in scores) / 3)
    assert found.result()["length_ratio"] == 8 / 11
    assert Rouge().result() == {} and set(found.sampled()) == {"sample_rouge1", "sample_rouge2", "sample_rougeL"}


def test_without_rouge_score_the_task_fails_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(Unsupported, match=r"rouge-score, which is not installed: pip install longspan\[train\]"):
        prepare(tmp_path)


def test_a_table_gives_pairs_facts_and_baselines(tmp_path: Path) -> None:
    found = prepare(tmp_path, share=0.2)
    assert (len(found.train), len(found.held_out)) == (36, 9)
    assert found.facts["held out"] == "9 of 45 rows, drawn by seed 0"
    names = list(found.facts["baselines"])
    assert names[:2] == ["first sentence", "first three sentences"] and names[2].startswith("always '")
    assert found.facts["baselines"][names[2]]["rouge1"] > found.facts["baselines"][names[0]]["rouge1"]
    batch = found.train.load([0], 0)
    assert batch["source"].shape[1] <= 40 and batch["targets"][0, -1] == found.tokenizer.eos


def test_long_summaries_are_not_trained_on_and_long_texts_are_cut(tmp_path: Path) -> None:
    found = prepare(tmp_path, length=8, summary_length=4, share=0.2)
    kept = found.facts["train texts left out, summary too long"]
    assert kept > 0 and len(found.train) + kept == 36
    assert int(found.train.load([0], 0)["source"].shape[1]) == 8
    with pytest.raises(InvalidInput, match="every summary has 2 tokens or more; give a larger summary_length"):
        prepare(tmp_path, summary_length=2)


def test_a_model_learns_to_summarise_and_is_used(tmp_path: Path) -> None:
    sizes = {"layers": 1, "heads": 2, "width": 32, "hidden": 64, "dropout": 0.0, "source_length": 40, "max_length": 17}
    metrics = run(tmp_path / "run", options(tmp_path, share=0.2, sample=4), {"name": "transformer", **sizes}, steps=70)
    assert metrics["rouge1"] > 90 and metrics["sample_rouge1"] > 90
    model = hub.load(tmp_path / "run" / "model")
    texts = ["The dog number 99 sat down.", "", "The fish number 98 sat down. It was 98."]
    assert [one.text for one in hub.summarize(model, texts)] == ["about dogs", "", "on fishes of the sea"]
    long = "The cat number 3 sat down. " * 20
    with pytest.warns(Notice, match="1 of 2 texts are longer than 40 tokens; what follows is not read"):
        found = hub.summarize(model, [long, texts[0]])
    assert found[0].text == "about cats"


def test_a_pretrained_t5_starts_as_it_was_trained_to(tmp_path: Path) -> None:
    own = learn(TokenizerOptions(**WORDS), [table(tmp_path).read_text()])
    config = T5Config(
        vocab_size=own.size, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=7
    )
    config.task_specific_params = {"summarization": {"prefix": "sum: ", "num_beams": 2, "max_length": 9}}
    random_model(T5ForConditionalGeneration, config, torch.float32).save_pretrained(tmp_path / "t5")
    own.save(tmp_path / "t5")
    found = hub.load(tmp_path / "t5")
    search = hub.use.summarize.search_of(found)
    assert (search.beams, search.max_new, search.length_penalty) == (2, 8, "power")
    text = "The cat sat down."
    (one,) = hub.summarize(found, [text])
    (same,) = hub.translate(found, [f"sum: {text}"], beam=search)
    assert one.tokens == same.tokens and len(one.tokens) <= 8
    run(tmp_path / "run", options(tmp_path, prefix="sum: "), {"from": str(tmp_path / "t5")}, steps=1)
    assert hub.load(tmp_path / "run" / "model").model.options.start == 7


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_paragraphs_of_wikitext_have_headings(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"wiki.tokens{ending}"
    path.write_bytes(gzip.compress(WIKI.encode()) if ending else WIKI.encode())
    found = [(row.line, row.fields["summary"], row.fields["text"].split("\n")) for row in headed_paragraphs(path)]
    assert found == [
        (8, "Early life", ["She was born in 1900 .", "She had a role-model ."]),
        (9, "Early life", ["He , too ."]),
        (23, "Plot", ["A last one ."]),
    ]
    assert lead(next(headed_paragraphs(path)).fields["text"], 1) == "She was born in 1900 ."


def test_a_file_of_wikitext_without_headings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.tokens"
    path.write_text(" = Title = \n\n text \n")
    with pytest.raises(InvalidInput, match="has no paragraphs under a heading"):
        registry.build("summarize", train=str(path)).prepare(DataPaths(None, tmp_path / "work"))
