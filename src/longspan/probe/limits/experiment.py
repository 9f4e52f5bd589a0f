"""Train small models on short words and test them on long ones."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan import config, files
from longspan.config import option
from longspan.errors import InvalidInput, UnknownName, suggest
from longspan.models.base import CausalModel
from longspan.models.registry import build
from longspan.nn.loss import IGNORED
from longspan.probe.limits.languages import LANGUAGES, Language, Words, nearest_noun
from longspan.probe.scoring import Tell, quiet
from longspan.train.optim import Optimizer, clip_gradients
from longspan.train.schedule import Schedule

TEST = 2**31  # seed of the test words, far from those of training
TIMES = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)  # tested lengths, as multiples of the longest trained one
FIRST_TOP = 4  # the longest word at the start of training
HARD = "longspan.probe.limits.hard:HardAttention"
TOLD = 250  # steps between two progress lines


@dataclass(frozen=True, kw_only=True)
class LimitOptions(config.Options):
    """Sizes of the models, of training and of the tests."""

    longest: int = option(8, "longest word in training", low=4, high=512)
    steps: int = option(600, "updates of each model", low=1)
    rate: float = option(3e-3, "highest learning rate", above=0)
    batch: int = option(64, "words per update, all of one length", low=1)
    width: int = option(32, "width of the states", low=4)
    layers: int = option(2, "blocks of the Transformers; the LSTM has one layer", low=1)
    heads: int = option(4, "attention heads", low=1)
    depth: int = option(4, "deepest nesting in training", low=1)
    words: int = option(500, "test words of each length", low=10)


@dataclass(frozen=True)
class ModelKind:
    """A model of the comparison."""

    title: str
    build: Callable[[int, LimitOptions], CausalModel]


def _lstm(vocabulary: int, options: LimitOptions) -> CausalModel:
    sizes = {"vocabulary": vocabulary, "width": options.width, "layers": 1}
    return CausalModel.require(build("recurrent", **sizes, dropout=0.0, forget_bias=1.0, init_bound=0.1), "limits")


def _transformer(**choices: Any) -> Callable[[int, LimitOptions], CausalModel]:
    def make(vocabulary: int, options: LimitOptions) -> CausalModel:
        sizes = {"width": options.width, "layers": options.layers, "heads": options.heads, "hidden": 4 * options.width}
        style = {"norm_position": "pre", "activation": "gelu", "dropout": 0.0, "tied": False}
        return CausalModel.require(build("decoder", vocabulary=vocabulary, **sizes, **style, **choices), "limits")

    return make


MODELS = {
    "lstm": ModelKind("LSTM", _lstm),
    "transformer": ModelKind("Transformer", _transformer(position="sinusoidal")),
    "no-positions": ModelKind("Transformer without positions", _transformer(position="none")),
    "hard": ModelKind(
        "Transformer with hard attention", _transformer(position="sinusoidal", attention=[{"name": HARD}])
    ),
}


@dataclass(frozen=True)
class Cell:
    """One trained model: right answers by length and, for nested languages, by depth at the longest trained length."""

    language: str
    model: str
    seed: int
    options: dict[str, Any]
    parameters: int
    cpu_seconds: float
    loss: float  # mean of the last 50 updates
    lengths: dict[int, int]
    depths: dict[int, int] = field(default_factory=dict)


def test_words(language: Language, options: LimitOptions, length: int, depth: int) -> Words:
    """The same words for all models."""
    number = list(LANGUAGES).index(language.name)
    generator = np.random.default_rng((TEST, number, length, depth))
    return language.balanced(generator, options.words, length, depth)


def test_lengths(language: Language, options: LimitOptions) -> list[int]:
    """Half of the longest trained length to eight times it."""
    return sorted({language.fit(round(times * options.longest)) for times in TIMES})


def test_depths(language: Language, options: LimitOptions) -> list[int]:
    """Depths up to twice the deepest trained one that fit into the longest trained length; none if not nested."""
    most = min(2 * options.depth, options.longest // 2)
    return list(range(1, most + 1)) if language.nested else []


def guesses(language: Language, options: LimitOptions, length: int) -> dict[str, float]:
    """The shares that rules without learning get: the commonest label and, for agreement, the nearest noun."""
    letters, labels = test_words(language, options, length, options.depth)
    last = labels[:, -1]
    shares = {"commonest label": float(np.bincount(last).max() / len(last))}
    if language.name == "agreement":
        shares["nearest noun"] = float((nearest_noun(letters) == last).mean())
    return shares


def train_cell(name: str, kind: str, seed: int, options: LimitOptions, tell: Tell = quiet) -> Cell:
    """Train one model on one language and test it."""
    language, model_kind = _known(name, LANGUAGES, "language"), _known(kind, MODELS, "model")
    began = time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_kind.build(len(language.letters) + 1, options)
        loss = _train(model, language, seed, options, tell)
        model.eval()
        lengths = {
            length: _right(model, language, test_words(language, options, length, options.depth))
            for length in test_lengths(language, options)
        }
        top = language.fit(options.longest)
        depths = {
            depth: _right(model, language, test_words(language, options, top, depth))
            for depth in test_depths(language, options)
        }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = time.process_time() - began
    return Cell(name, kind, seed, config.plain(options), parameters, seconds, loss, lengths, depths)


def _train(model: CausalModel, language: Language, seed: int, options: LimitOptions, tell: Tell) -> float:
    """Words get longer during the first half: long words alone give the LSTM nothing to start from."""
    generator, steps = np.random.default_rng(seed), options.steps
    schedule = Schedule(kind="linear", rate=options.rate, warmup=max(1, steps // 20))
    optimizer = Optimizer(decay=0.0).build(model)
    model.train()
    losses = []
    for step in range(1, steps + 1):
        top = min(options.longest, FIRST_TOP + int(2 * step / steps * (options.longest - FIRST_TOP)))
        drawn = int(generator.integers(language.shortest, max(top, language.shortest) + 1))
        length = language.fit(top if step % 2 else drawn)  # the longest words are the hardest
        letters, labels = language.draw(generator, options.batch, length, options.depth)
        logits = _logits(model, language, letters)
        loss = cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels).flatten(), ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        clip_gradients(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step, steps) * group["scale"]
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % TOLD == 0:
            tell(f"step {step} of {steps}, words of up to {top}: loss {np.mean(losses[-50:]):.4f}")
    return float(np.mean(losses[-50:]))


def _logits(model: CausalModel, language: Language, letters: np.ndarray) -> Tensor:
    """The scores of the labels after each letter; a token stands in front of every word."""
    ids = torch.from_numpy(np.pad(letters, ((0, 0), (1, 0)), constant_values=language.begin))
    return model.text_logits(ids)[:, 1:, : len(language.labels)]


@torch.no_grad()
def _right(model: CausalModel, language: Language, words: Words) -> int:
    letters, labels = words
    answers = _logits(model, language, letters)[:, -1].argmax(-1)
    return int((answers == torch.from_numpy(labels[:, -1])).sum())


def run_cells(
    languages: Sequence[str],
    models: Sequence[str],
    seeds: int,
    options: LimitOptions,
    folder: Path | None = None,
    tell: Tell = quiet,
) -> list[Cell]:
    """All combinations. With a folder, finished ones are kept there and not trained again."""
    for language in languages:
        _known(language, LANGUAGES, "language")
    for model in models:
        _known(model, MODELS, "model")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    plan = [(language, model, seed) for language in languages for seed in range(seeds) for model in models]
    cells = []
    for number, (language, model, seed) in enumerate(plan, start=1):
        start = f"{number} of {len(plan)}: {language}, {model}, seed {seed}"
        path = None if folder is None else folder / f"{language}-{model}-{seed}.json"
        cell = None if path is None else _read(path, options)
        if cell is None:
            cell = train_cell(language, model, seed, options, partial(_tell, tell, start))
            if path is not None:
                files.write_text(path, json.dumps(asdict(cell), indent=1) + "\n")
        cells.append(cell)
    return cells


def _tell(tell: Tell, start: str, line: str) -> None:
    tell(f"{start}: {line}")


def _read(path: Path, options: LimitOptions) -> Cell | None:
    """A finished cell with the same options; other options are an error, since results would be mixed."""
    if not path.is_file():
        return None
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in ("lengths", "depths"):
            value[name] = {int(key): int(hits) for key, hits in value[name].items()}
        cell = Cell(**value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{path} is no result of this command ({error}); move it away") from None
    if cell.options != config.plain(options):
        raise InvalidInput(f"{path} was made with other options; give another --out")
    return cell


def _known(name: str, table: dict[str, Any], what: str) -> Any:
    if name not in table:
        raise UnknownName(f"there is no {what} {name!r}; {suggest(name, tuple(table))}")
    return table[name]


__all__ = [
    "MODELS",
    "Cell",
    "LimitOptions",
    "guesses",
    "run_cells",
    "test_depths",
    "test_lengths",
    "test_words",
    "train_cell",
]
