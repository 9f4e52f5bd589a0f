"""The options of healing, and the time that `--budget` gives."""

import re
from dataclasses import dataclass

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption

STAGES = ("1", "2", "both")
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, kw_only=True)
class HealOptions(config.Options):
    """How a swapped model is healed; see docs/heal.md."""

    stage: str = option("both", "1: attention transfer, 2: distillation, both", choices=STAGES)
    tokens: int | None = option(None, "tokens to train on; without it, as many as the budget allows", low=1)
    budget: float = option(3600.0, "seconds of training at most", above=0)
    length: int = option(512, "tokens of a training text", low=2)
    batch: int = option(8, "texts of a step", low=1)
    loss: str = option(
        "weights", "of stage 1: weights (cross-entropy) or outputs (1000·MSE)", choices=("weights", "outputs")
    )
    share: float = option(0.5, "stage 1's share of the tokens or of the time, if both stages run", low=0, high=1)
    rate1: float = option(1e-2, "learning rate of stage 1", above=0)
    rate2: float | None = option(None, "learning rate of stage 2; 1e-4 with adapters, 1e-5 with all weights", above=0)
    feature_rate: float = option(0.1, "stage 2: rate of features, gates and mixes as a fraction of rate1", low=0)
    rank: int = option(8, "rank of the adapters (LoRA)", low=1)
    alpha: float = option(16.0, "the adapters' product is scaled by alpha / rank", above=0)
    full: bool = option(False, "stage 2 trains all weights instead of adapters")
    next_token: float = option(0.1, "stage 2: weight of the next token's (encoders: masked tokens') loss", low=0)
    window_dropout: bool = option(True, "stage 1: switch windows off or narrow them at random, so that the rest learns")
    window_dropout2: float = option(0.0, "stage 2: how often a layer's window is off", low=0, high=1)
    patience: int = option(20, "stage 2 stops after so many measurements without a lower held-out loss", low=1)
    measurements: int = option(20, "held-out measurements in each stage", low=1)
    held_out: int = option(16, "texts that are held out of training", low=1)
    documents: bool = option(False, "empty lines separate documents; each starts with the tokenizer's first token")
    seed: int = option(0, "of the order of texts, of the adapters and of window dropout", low=0)

    @property
    def rate_stage2(self) -> float:
        """The rate of stage 2, given or by default."""
        return self.rate2 if self.rate2 is not None else 1e-5 if self.full else 1e-4


def seconds(text: str) -> float:
    """The seconds of a budget such as 90s, 60m or 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if match is None or not float(match[1]):
        raise InvalidOption(f"a budget is a time above 0 such as 90s, 60m or 1.5h, not {text!r}")
    return float(match[1]) * UNITS[match[2]]


__all__ = ["HealOptions", "seconds"]
