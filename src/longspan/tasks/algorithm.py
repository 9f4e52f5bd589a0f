"""Algorithmic problems: write the target of a source, symbol by symbol; for decoders and encoder–decoders.

A decoder reads the source and the target as one text, and learns the target only. An example is *exact* if every symbol
and the end are right, given the right symbols before: then greedy decoding writes exactly the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.sets.algorithms import PADDING, PROBLEMS, Algorithm, alphabet
from longspan.data.sets.algorithms import tokenizer as tokenizer_of
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidOption, Unsupported
from longspan.models.base import CausalModel, EncoderDecoder, Model
from longspan.nn.loss import IGNORED
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss

HELD_OUT, TEST = 2**32, 2**33  # seeds of these splits: the same for every run, and for no training data
LEVELS = 12  # most levels that are reported one by one


@dataclass
class LevelCounts:
    """Counts over the examples of one level."""

    examples: int = 0
    exact: int = 0
    steps: float = 0.0  # of a model that halts, over `positions`
    positions: int = 0

    def add(self, other: "LevelCounts") -> None:
        self.examples, self.exact = self.examples + other.examples, self.exact + other.exact
        self.steps, self.positions = self.steps + other.steps, self.positions + other.positions


@dataclass
class AlgorithmMetrics(Metrics):
    """Loss and accuracy over target symbols, the share of exact targets and, of a model that halts, its mean steps."""

    nats: float = 0.0
    right: int = 0
    tokens: int = 0
    levels: dict[int, LevelCounts] = field(default_factory=dict)
    name: str = "level"
    each_level: bool = False  # whether `result` is by level, instead of the totals

    def add(self, other: Metrics) -> None:
        assert isinstance(other, AlgorithmMetrics)
        self.nats, self.right = self.nats + other.nats, self.right + other.right
        self.tokens += other.tokens
        for level, counts in other.levels.items():
            self.levels.setdefault(level, LevelCounts()).add(counts)

    def result(self) -> dict[str, float]:
        if self.each_level:
            return self._by_level()
        total = LevelCounts()
        for counts in self.levels.values():
            total.add(counts)
        metrics = {"loss": self.nats / max(self.tokens, 1), "accuracy": self.right / max(self.tokens, 1)}
        metrics["exact"] = total.exact / max(total.examples, 1)
        if total.positions:
            metrics["steps"] = total.steps / total.positions
        return metrics

    def _by_level(self) -> dict[str, float]:
        levels = sorted(self.levels)
        # Neighbouring levels are joined where there are many.
        size = -(-len(levels) // LEVELS)
        groups = [levels[start : start + size] for start in range(0, len(levels), size)]
        metrics: dict[str, float] = {}
        for group in groups:
            total = LevelCounts()
            for level in group:
                total.add(self.levels[level])
            name = f"{self.name}_{group[0]}" + (f"_to_{group[-1]}" if len(group) > 1 else "")
            metrics[f"exact_{name}"] = total.exact / total.examples
            if total.positions:
                metrics[f"steps_{name}"] = total.steps / total.positions
        return metrics

    def table(self) -> list[dict[str, Any]]:
        return [
            {
                "label": f"{self.name.replace('_', ' ')} {level}",
                "support": counts.examples,
                "said": {"right": counts.exact, "wrong": counts.examples - counts.exact},
            }
            for level, counts in sorted(self.levels.items())
        ]


class SolveProblem(Objective):
    """The cross-entropy of the target; `level` is what the levels of the problem are called."""

    def __init__(self, level: str) -> None:
        self.level = level

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, targets = self._read(model, batch)
        total = _nats(logits, targets)
        extra = model.auxiliary_loss()
        if extra is None:
            return TaskLoss(total, {})
        count = self.count(batch)  # the extra loss is a mean: multiplied by the count to be a sum
        return TaskLoss(total + extra * count, {"auxiliary": extra.detach() * count, "text": total.detach()})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[AlgorithmMetrics, Any]:
        return self._measure(model, batch), None

    def final(self, model: Model, data: Data, batches: Sequence[Sequence[int]]) -> Metrics | None:
        """Exact targets and steps by level."""
        total = AlgorithmMetrics(name=self.level, each_level=True)
        for numbers in batches:
            batch = {name: tensor.to(model.device) for name, tensor in data.load(numbers, 0).items()}
            total.add(self._measure(model, batch))
        return total

    def _measure(self, model: Model, batch: Batch) -> AlgorithmMetrics:
        logits, targets = self._read(model, batch)
        real = targets != IGNORED
        right = (logits.argmax(-1) == targets) & real
        metrics = AlgorithmMetrics(float(_nats(logits, targets)), int(right.sum()), int(real.sum()), name=self.level)
        exact = (right == real).all(1).tolist()
        steps, counts = self._steps(model, batch, real)
        for row, level in enumerate(batch["level"].tolist()):
            taken = (0.0, 0) if steps is None or counts is None else (float(steps[row]), int(counts[row]))
            metrics.levels.setdefault(level, LevelCounts()).add(LevelCounts(1, int(exact[row]), *taken))
        return metrics

    def _steps(self, model: Model, batch: Batch, real: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The sums over each row of the steps at its real positions, and how many those are."""
        taken = model.halting_steps()
        if not taken:
            return None, None
        masks = [batch["source_mask"], real] if isinstance(model, EncoderDecoder) else [batch["text"] != PADDING]
        steps = torch.stack([(count * mask).sum(1) for count, mask in zip(taken.values(), masks, strict=True)]).sum(0)
        return steps, torch.stack([mask.sum(1) for mask in masks]).sum(0)

    def _read(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits and the targets."""
        if isinstance(model, EncoderDecoder):
            real = batch["source_mask"]
            mask = None if bool(real.all()) else real
            return model(batch["source"], batch["ids"], source_mask=mask), batch["targets"]
        causal = CausalModel.require(model, SolveAlgorithm.name)
        if causal.reads_source:
            raise Unsupported(f"the task {SolveAlgorithm.name!r} needs a decoder or an encoder–decoder")
        return causal.text_logits(batch["text"]), batch["text_targets"]


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


class SolveAlgorithm(Task):
    """Problems that are drawn without end. The sizes of the test set may differ, to see what carries over."""

    name = "algorithm"

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        problem: str = option("copy", "what to compute", choices=tuple(PROBLEMS))
        symbols: int = option(10, "size of the alphabet, of problems that leave it open", low=2, high=10**6)
        smallest: int = option(1, "smallest size: symbols, digits of a number, or depth of an expression", low=1)
        largest: int = option(20, "largest size", low=1)
        test_smallest: int | None = option(None, "smallest size in the test set; as held out unless given", low=1)
        test_largest: int | None = option(None, "largest size in the test set", low=1)
        examples: int = option(100_000, "examples of an epoch; each epoch has new ones", low=1, high=2**32 - 1)
        held_out_examples: int = option(
            1000, "examples of the held-out set, and of the test set", low=1, high=2**32 - 1
        )
        batch: int = option(64, "examples per batch", low=1)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        sizes = options.smallest, options.largest
        test = options.test_smallest or sizes[0], options.test_largest or sizes[1]
        for (low, high), name in ((sizes, ""), (test, "test_")):
            if low > high:
                raise InvalidOption(f"{name}smallest is {low}, above {name}largest, {high}")

        def data(seed: int, sizes: tuple[int, int], examples: int, fixed: bool) -> Algorithm:
            return Algorithm(
                options.problem,
                symbols=options.symbols,
                sizes=sizes,
                examples=examples,
                batch=options.batch,
                seed=seed,
                fixed=fixed,
            )

        problem = PROBLEMS[options.problem]
        words = tokenizer_of(options.problem, options.symbols)
        facts = {"problem": f"{options.problem} ({problem.what})", "sizes": f"{sizes[0]} to {sizes[1]}"}
        if test != sizes:
            facts["test sizes"] = f"{test[0]} to {test[1]}"
        return Prepared(
            data(folders.seed, sizes, options.examples, False),
            data(HELD_OUT, sizes, options.held_out_examples, True),
            SolveProblem(problem.level.replace(" ", "_")),
            data(TEST, test, options.held_out_examples, True),
            words,
            needs={"vocabulary": words.size},
            facts={**facts, "symbols": len(alphabet(options.problem, options.symbols))},
        )


__all__ = ["AlgorithmMetrics", "LevelCounts", "SolveAlgorithm", "SolveProblem"]
