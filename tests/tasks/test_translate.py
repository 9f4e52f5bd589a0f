"""Translation from files to BLEU, by models with and without recurrence and attention."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from longspan import hub
from longspan.data.tokenizers.learn import TokenizerOptions
from longspan.decode import Beam, beam_search, search_many
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build
from longspan.models.base import Model
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.bleu import Bleu, bleu
from longspan.train import recipe
from longspan.train.fit import train
from longspan.train.loop import Trainer
from longspan.train.options import TrainOptions
from longspan.train.run import Run
from longspan.train.schedule import Schedule

NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}


def write(folder: Path, count: int = 120) -> None:
    """Numbers in English, and backwards in German."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 6, (count,), generator=draw).tolist()
    rows = [[list(NUMBERS)[i] for i in torch.randint(6, (n,), generator=draw).tolist()] for n in lengths]
    (folder / "numbers.en").write_text("".join(" ".join(row) + "\n" for row in rows))
    (folder / "numbers.de").write_text("".join(" ".join(NUMBERS[w] for w in row[::-1]) + "\n" for row in rows))


def prepare(folder: Path, **options: Any) -> Prepared:
    write(folder)
    words = TokenizerOptions(kind="bpe", size=330)
    given = {"train": f"{folder}/numbers", "share": 0.2, "tokenizer": words, "max_tokens": 128, **options}
    return registry.build("translate", **given).prepare(DataPaths(None, folder / "work"))


SMALL = {
    "transformer": {"width": 32, "layers": 1, "heads": 2, "hidden": 64, "dropout": 0.0},
    "seq2seq": {"embedding": 24, "width": 24, "layers": 1, "cell": "gru", "init_bound": 0.3},
}
KINDS = {
    "transformer": ("transformer", {}),
    "attention": ("seq2seq", {"decoder": "bahdanau", "bidirectional": True, "maxout": 24}),
    "plain": ("seq2seq", {"decoder": "plain"}),
}


def small(kind: str, needs: Any) -> Model:
    torch.manual_seed(0)
    name, options = KINDS[kind]
    return build(name, **SMALL[name], **options, **needs)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_learned_and_measured(tmp_path, kind):
    prepared = prepare(tmp_path, sample=10)
    model = small(kind, prepared.needs)
    options = TrainOptions(steps=15, schedule=Schedule(rate=1e-2), log_every=1, save_every=5, average=2)
    trainer = Trainer(
        Run(tmp_path / "run"),
        model,
        prepared.train,
        prepared.objective,
        options,
        held_out=prepared.held_out,
        tokenizer=prepared.tokenizer,
    )
    figures = train(trainer)
    rows = [row for row in trainer.run.rows() if "loss" in row]
    assert rows[-1]["loss"] < 0.85 * rows[0]["loss"] and rows[0]["nll"] != rows[0]["loss"]
    assert {"loss", "perplexity", "accuracy", "sample_bleu", "bleu", "length_ratio"} == set(figures)
    found = hub.load(tmp_path / "run" / "model")  # the mean of two checkpoints
    final = prepared.objective.final(found.model, prepared.held_out, prepared.held_out.batches(0))
    assert final.sentences == 24 and final.result()["bleu"] == figures["bleu"]
    assert trainer.run.rows()[-1]["result"] == {"held_out": final.result()}
    assert prepared.objective.final(found.model, prepared.train, prepared.train.batches(0)) is None
    pairs = [(tmp_path / f"numbers.{side}").read_text().splitlines()[-24:] for side in ("en", "de")]
    texts = [each.text for each in hub.translate(found, pairs[0], beam=prepared.objective.beam)]
    assert Bleu.of(texts, pairs[1]) == final


def test_a_recipe_is_trained_and_its_result_evaluated(tmp_path):
    write(tmp_path)
    tables = {
        "task": {
            "name": "translate",
            "train": f"{tmp_path}/numbers",
            "test": f"{tmp_path}/numbers",
            "share": 0.2,
            "shared": False,
            "max_tokens": 128,
            "tokenizer": {"kind": "bpe", "size": 300},
            "beams": 2,
        },
        "model": {"name": "transformer", **SMALL["transformer"]},
        "train": {"steps": 3, "average": 2, "save_every": 1},
    }
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(tables))
    run = tmp_path / "run"
    figures = train(recipe.begin(recipe.read(tmp_path / "recipe.toml"), run, data=None))
    found = recipe.evaluate(run, split="test").metrics
    assert found["bleu"] == figures["bleu"] and found["length_ratio"] == figures["length_ratio"]
    lines = (tmp_path / "numbers.en").read_text().splitlines()
    texts = hub.translate(hub.load(run / "model"), lines, beam=Beam(beams=2))
    references = (tmp_path / "numbers.de").read_text().splitlines()
    assert Bleu.of([each.text for each in texts], references).result()["bleu"] == pytest.approx(found["bleu"])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_changes_no_loss(tmp_path, kind):
    prepared = prepare(tmp_path)
    model = small(kind, prepared.needs).double().eval()
    numbers = sorted(range(96), key=lambda number: int(prepared.train.lengths[0, number]))[::12]  # short and long
    whole = prepared.objective.loss(model, prepared.train.load(numbers, 0))
    alone = [prepared.objective.loss(model, prepared.train.load([number], 0)) for number in numbers]
    torch.testing.assert_close(whole.total, sum(each.total for each in alone), rtol=0, atol=1e-9)
    torch.testing.assert_close(whole.parts["nll"], sum(each.parts["nll"] for each in alone), rtol=0, atol=1e-9)
    counts = [prepared.objective.count(prepared.train.load([number], 0)) for number in numbers]
    assert prepared.objective.count(prepared.train.load(numbers, 0)) == sum(counts)


@torch.no_grad()
def test_held_out_figures_are_of_plain_targets(tmp_path):
    prepared = prepare(tmp_path, smoothing=0.1)
    model = small("transformer", prepared.needs).eval()
    batch = prepared.held_out.load([0, 1, 2], 0)
    figures, _ = prepared.objective.measure(model, batch)
    logits = model(batch["source"], batch["ids"], source_mask=batch["source_mask"])
    expected = cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    assert figures.nats == pytest.approx(float(expected), rel=1e-6)
    assert float(prepared.objective.loss(model, batch).total) > figures.nats * 0.5


def test_one_tokenizer_for_both_or_one_each(tmp_path):
    both = prepare(tmp_path)
    assert both.needs == {"vocabulary": both.tokenizer.size, "padding": both.tokenizer.pad}
    assert both.facts["padding"] < 0.25 and both.facts["train pairs"] == 96 and both.facts["held_out pairs"] == 24
    source = both.train.sentence(0)
    assert source[-1] == both.tokenizer.eos and both.tokenizer.encode("one two").ids[-1] == both.tokenizer.eos
    each = prepare(tmp_path, shared=False)
    assert each.needs["source_vocabulary"] != 0 and (tmp_path / "work" / "source_tokenizer.json").is_file()
    assert each.tokenizer.decode(each.train.load([0], 0)["ids"][0].tolist()).split()[0] in NUMBERS.values()
    # The same once more, from the tokenizer that a model brought.
    (tmp_path / "again").mkdir()
    (tmp_path / "work" / "source_tokenizer.json").rename(tmp_path / "again" / "source_tokenizer.json")
    again = registry.build(
        "translate",
        train=f"{tmp_path}/numbers",
        share=0.2,
        tokenizer=TokenizerOptions(kind="bpe", size=330),
        max_tokens=128,
        shared=False,
    ).prepare(DataPaths(None, tmp_path / "again"), each.tokenizer)
    assert again.train.fingerprint() == each.train.fingerprint()


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bytes", "characters"])
def test_any_tokenizer_has_a_beginning_and_an_end(tmp_path, kind):
    size = 60 if kind == "wordpiece" else 30
    prepared = prepare(tmp_path, tokenizer=TokenizerOptions(kind=kind, size=size))
    found = prepared.train.load([0, 1], 0)
    assert (found["ids"][:, 0] == prepared.train.begin).all()
    assert all(row[row != -100][-1] == prepared.train.end for row in found["targets"])
    text = prepared.tokenizer.decode(found["ids"][0].tolist()).strip()
    assert text == (tmp_path / "numbers.de").read_text().splitlines()[0]
    with pytest.raises(InvalidOption, match="special = true"):
        prepare(tmp_path, tokenizer=TokenizerOptions(kind="bytes", special=False))


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(InvalidOption, match="one of the two"):
        prepare(tmp_path, batch=4)
    with pytest.raises(InvalidOption, match="a set, or files"):
        prepare(tmp_path, set="multi30k")
    with pytest.raises(InvalidInput, match="too few to hold some out"):
        prepare(tmp_path, share=0.0)
    with pytest.raises(InvalidInput, match=r"numbers\.fr"):
        prepare(tmp_path, target="fr")


# BLEU


def test_bleu_of_parts_adds_up_to_bleu_of_the_whole():
    from sacrebleu import corpus_bleu

    texts = ["the cat sat on the mat .", "a dog runs quickly home", "nothing in common"]
    references = ["the cat is on the mat .", "a dog runs home quickly now", "two birds fly"]
    whole = Bleu.of(texts, references)
    parts = Bleu.of(texts[:1], references[:1])
    parts.add(Bleu.of(texts[1:], references[1:]))
    assert parts == whole
    assert whole.result()["bleu"] == pytest.approx(corpus_bleu(texts, [references], force=True).score)
    assert Bleu.of(references, references).result()["bleu"] == pytest.approx(100)


@pytest.mark.parametrize("kind", KINDS)
def test_many_sources_are_searched_as_each_alone(tmp_path, kind):
    prepared = prepare(tmp_path)
    model = small(kind, prepared.needs).double().eval()
    data, beam = prepared.held_out, Beam(beams=3, extra=5)
    sources = [data.sentence(number) for number in range(10)]
    done: list[int] = []
    many = search_many(model, sources, [data.begin], data.end, options=beam, tokens=30, progress=done.append)
    assert done[-1] == 10 and len(done) > 1
    for source, (found,) in zip(sources, many):
        ((alone,),) = beam_search(model, source=[source], bos=data.begin, eos=data.end, options=beam)
        assert found.tokens == alone.tokens and found.score == pytest.approx(alone.score, abs=1e-9)
    parts = [bleu(model, data, prepared.tokenizer, beam=beam, numbers=part) for part in (range(5), range(5, 24))]
    parts[0].add(parts[1])
    assert parts[0] == bleu(model, data, prepared.tokenizer, beam=beam)


# From a folder


@pytest.mark.parametrize("shared", [True, False])
def test_a_folder_translates_in_order(tmp_path, shared):
    prepared = prepare(tmp_path, shared=shared)
    model = small("transformer", prepared.needs)
    folder = tmp_path / "work" / "model"
    model.save(folder, tokenizer=prepared.tokenizer.to_json())
    if not shared:
        with pytest.raises(InvalidInput, match="source_tokenizer"):
            hub.translate(hub.load(folder), ["one"])
        (tmp_path / "work" / "source_tokenizer.json").rename(folder / "source_tokenizer.json")
    found = hub.load(folder)
    texts = ["one two three", "", "four", " ", "five six one"]
    beam = Beam(beams=2, max_new=6)
    made = hub.translate(found, texts, beam=beam, tokens=8)
    assert [each.text for each in made] == [hub.translate(found, [text], beam=beam)[0].text for text in texts]
    assert made[1].text == made[3].text == "" and made[0].tokens
    if shared:
        (told,) = hub.generate(found, ["one two three"], beam=beam)
        assert told[0].tokens == made[0].tokens


@pytest.mark.data
@pytest.mark.parametrize(("target", "test", "size"), [("de", None, 1000), ("fr", "mscoco", 461)])
def test_multi30k_is_read(tmp_path, target, test, size):
    root = os.environ.get("LONGSPAN_DATA")
    if not root:
        pytest.skip("LONGSPAN_DATA names no folder of data sets")
    words = TokenizerOptions(kind="bpe", size=2000)
    task = registry.build("translate", set="multi30k", target=target, test=test, tokenizer=words)
    prepared = task.prepare(DataPaths(Path(root), tmp_path))
    facts = prepared.facts
    assert (facts["train pairs"], facts["held_out pairs"], facts["test pairs"]) == (29000, 1014, size)
    assert facts["padding"] < 0.1 and len(prepared.test.references) == size
    with pytest.raises(InvalidOption, match="no test '2018'"):
        registry.build("translate", set="multi30k", test="2018").prepare(DataPaths(Path(root), tmp_path))
    with pytest.raises(InvalidOption, match="no language 'ja'"):
        registry.build("translate", set="multi30k", target="ja").prepare(DataPaths(Path(root), tmp_path))


def test_a_missing_sacrebleu_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    task = registry.build("translate", set="generated-pairs", source="en", target="toy")
    with pytest.raises(Unsupported, match=r"sacrebleu, which is not installed"):
        task.prepare(DataPaths(None, tmp_path))
