"""How a model is trained."""

from dataclasses import dataclass

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.train.optim import Optimizer
from longspan.train.schedule import Schedule

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(config.Options):
    """The loop's options; those of a recipe's table `[train]`."""

    steps: int | None = option(None, "updates of the weights", low=1)
    epochs: float | None = option(None, "passes over the data, where steps are not given", above=0, high=1e6)
    accumulate: int = option(1, "micro-batches per update and process", low=1)
    clip: float = option(1.0, "the longest gradient; 0: any", low=0)
    seed: int = option(0, "of initial weights, order and dropout", low=0)
    unfreeze_every: int = option(
        0, "steps after which one more block is trained, from the top, beside the heads; 0: all at once", low=0
    )
    precision: str = option("float32", "of the products; bfloat16 gains on hardware that has it", choices=PRECISIONS)
    recompute: bool = option(False, "whether activations of blocks are computed again in the backward pass")
    compile: bool = option(False, "whether torch compiles the step")
    shard: bool = option(False, "whether parameters are split over the processes (FSDP2)")
    log_every: int = option(10, "steps between rows of metrics.jsonl", low=1)
    tensorboard: bool = option(False, "whether the same rows are written for TensorBoard too")
    evaluate_every: int = option(0, "steps between evaluations; 0: at the end only", low=0)
    save_every: int = option(0, "steps between checkpoints; 0: at the end only", low=0)
    keep: int = option(2, "checkpoints that are kept, beside the best", low=1)
    watch: str = option("loss", "the figure by which the best checkpoint is known")
    higher: bool = option(False, "whether a higher figure is better")
    patience: int = option(0, "evaluations without a better figure before it stops; 0: never", low=0)
    ema: float = option(0.0, "decay of a running mean of the weights, which is then what is evaluated", low=0, below=1)
    average: int = option(0, "last checkpoints whose mean is the result; 0: the last one, or the best", low=0)
    bad_steps: int = option(10, "steps with infinite gradients in a row before it stops", low=1)
    spike: float = option(0.0, "a loss so many times its running mean is warned of; 0: never", low=0)
    roll_back: bool = option(False, "whether a spike goes back to the last checkpoint")
    schedule: Schedule = option(Schedule, "the learning rate")
    optimizer: Optimizer = option(Optimizer, "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.epochs is None):
            raise InvalidOption("give steps or epochs, one of the two")
        if self.ema and self.average > 1:
            raise InvalidOption("ema is a mean of the weights, and so is average; give one of the two")
        if self.patience and not self.evaluate_every:
            raise InvalidOption("patience counts evaluations; give evaluate_every too")

    def total(self, batches: int) -> int:
        """Updates in all, where an epoch has so many batches."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * batches))


__all__ = ["TrainOptions"]
