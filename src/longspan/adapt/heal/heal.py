"""`heal`: check everything, train the stages, measure, and write the healed model."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from longspan import config
from longspan.adapt.heal.options import HealOptions
from longspan.adapt.heal.pair import Pair, read_pair, weights_hash
from longspan.adapt.heal.run import Limits, Position, Run, Show, train_stage
from longspan.adapt.heal.stage1 import Transfer
from longspan.adapt.heal.stage2 import Distillation, held_out_loss
from longspan.adapt.heal.table import HealTable, compare
from longspan.adapt.heal.texts import Texts
from longspan.errors import InvalidInput, InvalidOption
from longspan.hub import sidecar_files
from longspan.manifest import MANIFEST
from longspan.measure.carbon import Assumptions
from longspan.train import checkpoint
from longspan.train.loop import catch_signals

RECORD = "heal.json"
LENGTHS = (1024, 8192, 32768, 65536)  # at which memory and speed are measured
Add = Callable[[Path, HealTable, dict[str, Any]], None]


@dataclass(frozen=True)
class Healed:
    """The healed model's folder and what was measured."""

    folder: Path
    table: HealTable
    record: dict[str, Any]  # as in heal.json


def heal(
    folder: Path | str,
    *,
    teacher: Path | str,
    data: Path | str,
    out: Path | str,
    options: HealOptions | None = None,
    decode_lengths: tuple[int, ...] = LENGTHS,
    show: Show = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
    add: Add = lambda folder, table, record: None,
) -> Healed:
    """Heal the model of `folder`, whose attention was swapped, with the original as its `teacher`.

    `data` is a text file. `out` appears when everything is done; until then the state is beside it in OUT.state, from
    which the same call resumes bit-exactly. `show` gets the progress, `say` lines of text; `add` may put further
    files into the folder before it gets its name. SIGINT and SIGTERM save and raise `train.loop.Interrupted`.

    >>> heal("swapped", teacher="original", data="text.txt", out="healed", options=HealOptions(budget=3600.0))
    """
    options, out = options or HealOptions(), Path(out)
    if out.exists():
        raise InvalidInput(f"{out} exists already; give another --out")
    if not out.resolve().parent.is_dir():
        raise InvalidInput(f"{out} cannot be written: there is no folder {out.resolve().parent}")
    pair = read_pair(folder, teacher)
    limits = [getattr(model, "max_length", None) for model in (pair.teacher, pair.student)]
    longest = min((limit for limit in limits if limit is not None), default=None)
    if longest is not None and options.length > longest:
        options = replace(options, length=longest)
    texts = Texts(
        Path(data),
        pair.tokenizer,
        length=options.length,
        held_out=options.held_out,
        documents=options.documents,
        seed=options.seed,
    )
    stages = _stages(pair, options)
    settings = {
        "teacher": pair.teacher_hash,
        "student": pair.student_hash,
        "text": texts.fingerprint,
        "options": config.plain(options),
    }
    state = out.with_name(f"{out.name}.state")
    with catch_signals() as signals:
        run = Run(state, settings, signals)
        position = run.position()
        if position is not None:
            say(f"resuming stage {position.stage} at step {position.step} of {position.steps}")
        losses = _train(run, pair, texts, options, stages, position, show, say)
        history, position = losses.pop("history"), losses.pop("position")
    if weights_hash(pair.teacher) != pair.teacher_hash:
        raise AssertionError("the teacher's weights changed")
    table = compare(pair, folder, texts, losses, decode_lengths=decode_lengths, say=say)
    record = {
        "folder": str(folder),
        "teacher": str(teacher),
        "data": str(data),
        "sha256": {name: settings[name] for name in ("teacher", "student", "text")},
        "options": settings["options"],
        "seconds": position.spent,
        "tokens": position.tokens,
        "steps": {position.stage: position.step},
        "energy": _energy(position),
        "history": history,
        "table": table.to_json(),
    }
    _write(pair, out, table, record, add)
    run.remove()
    return Healed(out, table, record)


def _stages(pair: Pair, options: HealOptions) -> list[str]:
    """The stages to run; everything that stage 1 cannot do is refused here, before any work."""
    has_own = bool(pair.own_parameters())
    if options.stage == "1" and not has_own:
        raise InvalidOption("the swapped attention has no weights of its own, so stage 1 has nothing to train; use 2")
    wanted = {"1": ["1"], "2": ["2"], "both": ["1", "2"] if has_own else ["2"]}[options.stage]
    if "1" in wanted:
        Transfer(pair, options)
    return wanted


def _train(
    run: Run,
    pair: Pair,
    texts: Texts,
    options: HealOptions,
    stages: list[str],
    position: Position | None,
    show: Show,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the stages; returns the held-out losses of the swapped model and after each stage."""
    rows = texts.held_out.split(options.batch)

    def loss(model: torch.nn.Module | None = None) -> float:
        return sum(held_out_loss(pair, row, model) * len(row) for row in rows) / len(texts.held_out)

    losses: dict[str, Any] = {"teacher": loss(pair.teacher), "swapped": loss()}
    say(f"held-out loss: teacher {losses['teacher']:.4f}, swapped {losses['swapped']:.4f}")
    share = {"1": options.share, "2": 1 - options.share} if len(stages) == 2 else dict.fromkeys(stages, 1.0)
    left = options.budget
    for name in stages:
        if position is not None and int(position.stage) > int(name):
            continue  # done: the tensors of this stage are among those of the next one
        stage = Transfer(pair, options) if name == "1" else Distillation(pair, options)
        seconds = left * share[name] if name == "1" else left - sum(_spent(position, "1"))
        tokens = None if options.tokens is None else max(1, round(options.tokens * share[name]))
        position = train_stage(run, stage, texts, options, position, Limits(max(seconds, 1e-3), tokens), show)
        if name == "1":
            position.history[-1]["loss_after"] = loss()
            say(f"held-out loss after stage 1: {position.history[-1]['loss_after']:.4f}")
    assert position is not None
    after = [line["loss_after"] for line in position.history if "loss_after" in line]
    losses["stage 1"] = after[0] if after else None
    losses["healed"] = loss()
    say(f"held-out loss: healed {losses['healed']:.4f}")
    return {**losses, "history": position.history, "position": position}


def _energy(position: Position) -> dict[str, Any]:
    """Joules and CO2 of training, measurements on held-out texts included, the table not; None: unknown."""
    joules, assumed = position.energy.get("joules"), Assumptions()
    kilograms = None if joules is None else assumed.kilograms(joules)
    return {**position.energy, "kg_co2e": kilograms, "pue": assumed.pue, "kg_per_kwh": assumed.intensity}


def _spent(position: Position | None, name: str) -> list[float]:
    return [] if position is None else [position.spent.get(name, 0.0)]


def _write(pair: Pair, out: Path, table: HealTable, record: dict[str, Any], add: Add) -> None:
    """Writes the folder under another name first."""
    with checkpoint.writing(out) as part:
        pair.student.to(pair.dtype).save(part)
        (part / MANIFEST).unlink()  # the folder gets one of all its files
        sidecar_files.write(pair.source, part)
        (part / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        add(part, table, record)


__all__ = ["LENGTHS", "RECORD", "Healed", "heal"]
