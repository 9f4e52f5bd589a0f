"""Translation by a decoder: source, separator and target as one text (Liu et al. 2018)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.test_translate import prepare, write
from torch.nn.functional import log_softmax

from longspan import hub
from longspan.cli.main import main
from longspan.decode import Beam, beam_search
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build
from longspan.nn.loss import IGNORED
from longspan.tasks.base import Prepared
from longspan.tasks.bleu import Bleu
from longspan.train import recipe
from longspan.train.fit import train

MEMORY = [{"name": "memory_compressed", "layer": kind, "block": 4} for kind in ("local", "memory")]
SIZES = {"width": 32, "layers": 2, "heads": 2, "hidden": 64, "dropout": 0.0}


def decoder(ready: Prepared, **options: Any) -> Any:
    torch.manual_seed(0)
    return build("decoder", **SIZES, **options, **ready.needs)


@pytest.mark.parametrize("source_loss", [True, False])
def test_a_pair_is_one_text_with_a_separator(tmp_path: Path, source_loss: bool) -> None:
    ready = prepare(tmp_path, form="joined", source_loss=source_loss)
    batch, tokenizer = ready.held_out.load([0, 7], 0), ready.tokenizer
    lines = [(tmp_path / f"numbers.{side}").read_text().splitlines() for side in ("en", "de")]
    for row, number in enumerate((96, 103)):  # the last fifth of 120 pairs is held out
        source, target = (tokenizer.encode(side[number], special=False).ids for side in lines)
        text = [*source, tokenizer.bos, *target, tokenizer.eos]
        size = len(text) - 1
        assert batch["ids"][row, :size].tolist() == text[:-1] and batch["ids"][row, size:].eq(tokenizer.pad).all()
        hidden = 0 if source_loss else len(source)
        wanted = [IGNORED] * hidden + text[1 + hidden :]
        assert batch["targets"][row, :size].tolist() == wanted and batch["targets"][row, size:].eq(IGNORED).all()
        assert batch["of_target"][row].nonzero().flatten().tolist() == list(range(len(source), size))
    assert tokenizer.encode("one two").ids[-1] == tokenizer.bos  # every command puts the separator after a source


def test_losses_are_counted_over_both_sides_and_metrics_over_the_target(tmp_path: Path) -> None:
    ready = prepare(tmp_path, form="joined", smoothing=0.0)
    model, batch = decoder(ready).double(), ready.held_out.load([0, 3, 9], 0)
    chances = log_softmax(model(batch["ids"]), -1)
    nats = -chances.gather(-1, batch["targets"].clamp(min=0)[..., None])[..., 0]
    real = batch["targets"] != IGNORED
    torch.testing.assert_close(ready.objective.loss(model, batch).total, nats[real].sum())
    assert ready.objective.count(batch) == int(real.sum())
    with torch.no_grad():
        metrics, _ = ready.objective.measure(model, batch)
    assert metrics.tokens == int(batch["of_target"].sum())
    assert metrics.nats == pytest.approx(float(nats[batch["of_target"]].sum().detach()))


def test_a_batch_has_whole_texts_within_its_tokens(tmp_path: Path) -> None:
    data = prepare(tmp_path, form="joined").train
    for numbers in data.batches(0):
        assert data.load(numbers, 0)["ids"].numel() <= 128
    assert sorted(number for batch in data.batches(0) for number in batch) == list(range(96))


@pytest.mark.parametrize("attention", ["softmax", MEMORY])
def test_a_decoder_learns_to_translate_and_the_command_says_the_same(
    tmp_path: Path, attention: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    tables = {
        "task": {
            "name": "translate",
            "train": f"{tmp_path}/numbers",
            "form": "joined",
            "share": 0.2,
            "max_tokens": 128,
            "tokenizer": {"kind": "bpe", "size": 330},
            "beams": 2,
            "sample": 5,
        },
        "model": {"name": "decoder", **SIZES, "attention": attention},
        "train": {"steps": 10, "schedule": {"rate": 1e-2}, "log_every": 1},
    }
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(tables))
    metrics = train(recipe.begin(recipe.read(tmp_path / "recipe.toml"), tmp_path / "run", data=None))
    assert {"loss", "accuracy", "sample_bleu", "bleu"} <= set(metrics)
    sources, references = ((tmp_path / f"numbers.{side}").read_text().splitlines()[96:] for side in ("en", "de"))
    loaded = hub.load(tmp_path / "run" / "model")
    texts = [each.text for each in hub.translate(loaded, sources, beam=Beam(beams=2))]
    assert Bleu.of(texts, references).result()["bleu"] == metrics["bleu"]
    assert main(["translate", str(tmp_path / "run"), *sources[:3], "--beams", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == texts[:3]
    continued = hub.generate(loaded, sources[:2], beam=Beam(beams=2, max_new=6))
    limited = hub.translate(loaded, sources[:2], beam=Beam(beams=2, max_new=6))
    assert [row[0].tokens for row in continued] == [each.tokens for each in limited]


def test_limits_of_prompts(tmp_path: Path) -> None:
    model = decoder(prepare(tmp_path, form="joined"))
    hypotheses = beam_search(model, [[5, 6], [7]], options=Beam(beams=1), limits=[3, 1])
    assert [len(best.tokens) for best, *_ in hypotheses] == [3, 1]
    with pytest.raises(InvalidInput, match="expected a limit for each of 2 prompts, got 1"):
        beam_search(model, [[5, 6], [7]], options=Beam(beams=1), limits=[3])


def test_what_does_not_fit_the_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="they share a tokenizer"):
        prepare(tmp_path, form="joined", shared=False)
    ready = prepare(tmp_path, form="joined")
    model = build("transformer", width=16, layers=1, heads=2, hidden=16, **ready.needs)
    with pytest.raises(Unsupported, match=r"'transformer' reads the source by itself, and with form = 'joined'"):
        ready.objective.loss(model, ready.train.load([0], 0))
    plain = prepare(tmp_path).tokenizer
    decoder(ready).save(tmp_path / "plain", tokenizer=plain.to_json())
    with pytest.raises(Unsupported, match="reads no source, and its texts end with no separator"):
        hub.translate(hub.load(tmp_path / "plain"), ["one"])
