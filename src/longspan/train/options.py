"""Options of training: the table [train] of a recipe."""

from dataclasses import dataclass

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.train.optim import Optimizer
from longspan.train.schedule import Schedule

PRECISIONS = ("float32", "bfloat16", "auto")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(config.Options):
    """The options of `fit.train` and `Trainer`."""

    steps: int | None = option(None, "number of updates", low=1)
    epochs: float | None = option(None, "passes over the data, instead of steps", above=0, high=1e6)
    accumulate: int = option(1, "micro-batches per update and process", low=1)
    clip: float = option(1.0, "largest gradient norm; 0: no clipping", low=0)
    seed: int = option(0, "seed of the initial weights, the data order and dropout", low=0)
    unfreeze_every: int = option(
        0, "gradual unfreezing: train one more block from the top every so many steps; 0: all from the start", low=0
    )
    precision: str = option(
        "float32",
        "precision of matrix products; bfloat16 is faster on hardware that has it; auto: bfloat16 if a trial says so",
        choices=PRECISIONS,
    )
    recompute: bool = option(False, "recompute activations of blocks in the backward pass, to save memory")
    compile: bool = option(False, "compile the forward pass with torch.compile")
    shard: bool = option(False, "split the parameters over the processes (FSDP2)")
    log_every: int = option(10, "steps between rows of metrics.jsonl", low=1)
    tensorboard: bool = option(False, "write the same rows for TensorBoard too")
    evaluate_every: int = option(0, "steps between evaluations; 0: only at the end", low=0)
    save_every: int = option(0, "steps between checkpoints; 0: only at the end", low=0)
    keep: int = option(2, "number of checkpoints to keep, besides the best", low=1)
    watch: str = option("loss", "metric that decides which checkpoint is the best")
    higher: bool = option(False, "whether a higher value of that metric is better")
    patience: int = option(0, "stop after so many evaluations without improvement; 0: never", low=0)
    ema: float = option(0.0, "decay of a running mean of the weights, which is then evaluated", low=0, below=1)
    average: int = option(
        0, "the final model is the mean of this many last checkpoints; 0: the last one, or the best", low=0
    )
    disagreement: str | tuple[str, ...] | None = option(
        None, "keep attention heads different by a loss on their values, positions or outputs, one or several of these"
    )
    disagreement_weight: float = option(1.0, "weight of that loss, per token as the task's own", low=0)
    bad_steps: int = option(10, "stop after so many consecutive steps with gradients that are not finite", low=1)
    spike: float = option(0.0, "warn if the loss is so many times its running mean; 0: never", low=0)
    roll_back: bool = option(False, "after a spike, go back to the last checkpoint")
    schedule: Schedule = option(Schedule, "the learning rate")
    optimizer: Optimizer = option(Optimizer, "the optimizer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.epochs is None):
            raise InvalidOption("give either steps or epochs")
        if self.ema and self.average > 1:
            raise InvalidOption("ema and average both average the weights; give one of the two")
        if self.patience and not self.evaluate_every:
            raise InvalidOption("patience counts evaluations; give evaluate_every too")

    def total(self, batches: int) -> int:
        """The number of updates, if an epoch has so many batches."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * batches))


__all__ = ["TrainOptions"]
