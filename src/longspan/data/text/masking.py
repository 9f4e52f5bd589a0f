"""Masking for masked language models: which tokens are hidden, and how (Devlin et al. 2019, Liu et al. 2019)."""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class Masking(config.Options):
    """How tokens are chosen and hidden: the table `[task.masking]` of a recipe."""

    sampler: str = option(
        "exact",
        "exact: a fixed number per text, at least one (BERT); bernoulli: each token independently (RoBERTa)",
        choices=("exact", "bernoulli"),
    )
    share: float = option(0.15, "share of tokens that is chosen", low=0, high=1)
    most: int | None = option(None, "most tokens chosen per text, for the sampler exact", low=1)
    whole_words: bool = option(False, "choose all pieces of a word or none")
    mask: float = option(0.8, "share of the chosen tokens that becomes the mask", low=0, high=1)
    random: float = option(0.1, "share of them that becomes a random token; the rest stay", low=0, high=1)
    replace_per: str = option(
        "piece",
        "what decides between the three: each piece, each word, or (mask_only) none: all become the mask",
        choices=("piece", "word", "mask_only"),
    )
    plain_random: bool = option(False, "never draw special tokens as random tokens")
    dynamic: bool = option(True, "draw new masks at each visit; otherwise masks and texts repeat")
    copies: int = option(10, "epochs after which static masks repeat", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask + self.random > 1 + 1e-9:
            raise InvalidOption(f"mask and random are shares of the chosen tokens, and {self.mask} + {self.random} > 1")

    def visit(self, epoch: int) -> int:
        """The epoch that texts and masks are drawn for."""
        return epoch if self.dynamic else epoch % self.copies


def choose(candidates: np.ndarray, words: np.ndarray, options: Masking, generator: np.random.Generator) -> np.ndarray:
    """The mask of chosen positions, out of `candidates` (no special tokens); `words` numbers the words."""
    positions = np.flatnonzero(candidates)
    chosen = np.zeros(len(candidates), dtype=bool)
    if not len(positions):
        return chosen
    groups = words[positions] if options.whole_words else np.arange(len(positions))
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if options.sampler == "bernoulli":
        selected = generator.random(len(sizes)) < options.share
    else:
        # The number counts the special tokens of the text as well, as the released code does.
        wanted = max(1, round(len(candidates) * options.share))
        selected = _exactly(min(wanted, options.most or wanted, len(positions)), sizes, generator)
    chosen[positions] = selected[group]
    return chosen


def _exactly(wanted: int, sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Groups in random order until there are `wanted` positions; a group that is too large is skipped."""
    selected = np.zeros(len(sizes), dtype=bool)
    order = generator.permutation(len(sizes))
    if (sizes == 1).all():
        selected[order[:wanted]] = True
        return selected
    left = wanted
    for index in order:
        if left == 0:
            break
        if sizes[index] <= left:
            selected[index] = True
            left -= sizes[index]
    return selected


def hide(
    ids: np.ndarray,
    chosen: np.ndarray,
    words: np.ndarray,
    options: Masking,
    generator: np.random.Generator,
    *,
    mask: int,
    drawn_from: np.ndarray,
) -> np.ndarray:
    """The text with its chosen tokens hidden; random tokens come from `drawn_from`."""
    hidden = ids.copy()
    if options.replace_per == "mask_only":
        hidden[chosen] = mask
        return hidden
    draw = generator.random(len(ids))
    if options.replace_per == "word":
        _, group = np.unique(words, return_inverse=True)
        draw = draw[group]  # one of the draws for all pieces of a word
    masked = chosen & (draw < options.mask)
    random = chosen & (draw >= options.mask) & (draw < options.mask + options.random)
    hidden[masked] = mask
    hidden[random] = drawn_from[generator.integers(len(drawn_from), size=int(random.sum()))]
    return hidden


__all__ = ["Masking", "choose", "hide"]
