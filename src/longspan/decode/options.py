"""Options of sampling and of beam search."""

import math
from dataclasses import dataclass

from longspan.config import Options, option
from longspan.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class Sampling(Options):
    """How to choose the next token. The order of the steps (other programs differ):

    1. repetition penalty, on the model's logits;
    2. frequency and presence penalties, and logit bias;
    3. bans: end tokens before `min_new` tokens, and repeated n-grams;
       at the length limit, all tokens but `last_token`;
    4. temperature; 0 takes the best token and skips the rest;
    5. top-k, then top-p among those, then min-p among those;
    6. the rest is normalised again, and one token sampled.

    At least one token is always left: bans that would leave none are ignored. Ties prefer the lower id. Each row has
    its own generator, seeded by `seed`, its prompt and the index of the sample, so a text does not depend on the rest
    of the batch.
    """

    temperature: float = option(1.0, "divides the logits; 0 takes the best token", low=0)
    top_k: int | None = option(None, "draw from this many best tokens", low=1)
    top_p: float = option(1.0, "draw from the fewest best tokens whose probabilities sum to this", low=0, high=1)
    min_p: float = option(0.0, "leave out tokens below this share of the best token's probability", low=0, high=1)
    repetition_penalty: float = option(
        1.0, "divides positive and multiplies negative logits of earlier tokens (CTRL: 1.2)", low=1e-3
    )
    penalise_prompt: bool = option(True, "whether the repetition penalty includes the prompt's tokens")
    frequency_penalty: float = option(0.0, "subtracted from a token's logit for each time it was generated")
    presence_penalty: float = option(0.0, "subtracted from the logit of a generated token")
    logit_bias: tuple[tuple[float, ...], ...] | None = option(None, "pairs (token id, number added to its logit)")
    no_repeat_ngram: int = option(0, "no n-gram of this size occurs twice, the prompt included; 0: no limit", low=0)
    min_new: int = option(0, "least number of new tokens", low=0)
    last_token: int | None = option(None, "last token of a text that reaches the length limit (BART)", low=0)
    samples: int = option(1, "texts for each prompt", low=1)
    seed: int = option(0, "of the random draws")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidOption(f"option {name} must be a finite number, not {getattr(self, name)!r}")
        for pair in self.logit_bias or ():
            if len(pair) != 2 or not math.isfinite(pair[1]) or pair[0] != int(pair[0]):
                raise InvalidOption(f"option logit_bias must be pairs (token id, finite number), not {pair!r}")


GREEDY = Sampling(temperature=0.0)
UNFINISHED = ("last", "ranked")


@dataclass(frozen=True, kw_only=True)
class Beam(Options):
    """Beam search; the defaults are those of Vaswani et al. 2017 (section 6.1) with the penalties of Wu et al. 2016.

    A finished hypothesis Y of a source X has the score log P(Y|X) / lp(|Y|) + cp(X, Y), where |Y| is the number of new
    tokens, including the end.

    Hugging Face's search is `length_penalty="power"` with its own power as alpha, `unfinished="ranked"`,
    `score_prefix=False`, and for early_stopping False, True and "never" `stop` likely, full and sure;
    `hub.generation.read` reads all of it from a folder.
    """

    beams: int = option(4, "hypotheses kept at each step; 1 is greedy search", low=1)
    length_penalty: str = option(
        "gnmt", "lp: gnmt is ((5+|Y|)/6)^alpha, power is |Y|^alpha, none is 1", choices=("gnmt", "power", "none")
    )
    alpha: float = option(0.6, "power of the length penalty; higher prefers longer texts", low=0)
    beta: float = option(0.0, "weight of the coverage penalty cp, which needs a source", low=0)
    n_best: int = option(1, "hypotheses returned, at most as many as beams", low=1)
    min_new: int = option(0, "least number of new tokens", low=0)
    max_new: int | None = option(None, "most new tokens; default: the source's length plus `extra`", low=1)
    extra: int = option(50, "new tokens beyond the source's length, if max_new is not given", low=0)
    no_repeat_ngram: int = option(0, "no n-gram of this size occurs twice, the prompt included; 0: no limit", low=0)
    prefix: tuple[int, ...] | None = option(None, "tokens that every hypothesis begins with", low=0)
    score_prefix: bool = option(True, "whether the prefix's own probability is part of the score")
    last_token: int | None = option(
        None, "last token of a text that reaches the length limit, at no cost (BART)", low=0
    )
    stop: str = option(
        "sure",
        "when `beams` have ended and (sure) none alive can still become better, (likely) none alive is better for its "
        "length now, (full) at once",
        choices=("sure", "likely", "full"),
    )
    unfinished: str = option(
        "last",
        "hypotheses cut at the limit come last, or are ranked with the finished ones",
        choices=UNFINISHED,
    )
    exhaustive: bool = option(False, "allow more beams than tokens in the vocabulary")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "beta"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidOption(f"option {name} must be a finite number, not {getattr(self, name)!r}")
        if self.n_best > self.beams:
            raise InvalidOption(f"n_best {self.n_best} is more than the {self.beams} beams; give as many beams")
        if self.max_new is not None and self.min_new > self.max_new:
            raise InvalidOption(f"min_new {self.min_new} is more than max_new {self.max_new}")
        if self.max_new is not None and self.prefix is not None and len(self.prefix) > self.max_new:
            raise InvalidOption(f"the prefix has {len(self.prefix)} tokens, more than max_new {self.max_new}")


__all__ = ["GREEDY", "Beam", "Sampling"]
