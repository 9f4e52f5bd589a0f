"""Which tokens are hidden for a masked language model, and by what (Devlin et al. 2019, Liu et al. 2019)."""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class Masking(config.Options):
    """How tokens are chosen and hidden; of a recipe's table `[task.masking]`."""

    sampler: str = option(
        "exact",
        "exact: so many of each text, one at least (BERT); bernoulli: each by itself (RoBERTa)",
        choices=("exact", "bernoulli"),
    )
    share: float = option(0.15, "of the tokens that is chosen", low=0, high=1)
    most: int | None = option(None, "the most that are chosen of a text, by the sampler exact", low=1)
    whole_words: bool = option(False, "whether all pieces of a word are chosen or none")
    mask: float = option(0.8, "of the chosen tokens, those that become the mask", low=0, high=1)
    random: float = option(0.1, "those that become a token from all of the vocabulary; the rest stay", low=0, high=1)
    replace_per: str = option(
        "piece",
        "what draws one of the three: each piece, each word, or none, all becoming the mask",
        choices=("piece", "word", "mask_only"),
    )
    plain_random: bool = option(False, "whether random tokens are never special ones")
    dynamic: bool = option(True, "whether masks are new at each visit; else they, and the texts, repeat")
    copies: int = option(10, "epochs after which masks repeat that are not dynamic", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask + self.random > 1 + 1e-9:
            raise InvalidOption(f"mask and random are shares of the chosen tokens, and {self.mask} + {self.random} > 1")

    def visit(self, epoch: int) -> int:
        """The epoch that texts and masks are drawn for."""
        return epoch if self.dynamic else epoch % self.copies


def choose(candidates: np.ndarray, words: np.ndarray, options: Masking, generator: np.random.Generator) -> np.ndarray:
    """Which places are chosen: `candidates` may be (those of special tokens may not), `words` are numbers of words."""
    places = np.flatnonzero(candidates)
    chosen = np.zeros(len(candidates), dtype=bool)
    if not len(places):
        return chosen
    groups = words[places] if options.whole_words else np.arange(len(places))
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if options.sampler == "bernoulli":
        taken = generator.random(len(sizes)) < options.share
    else:
        # The number counts the special tokens of the text as well, as the released code does.
        wanted = max(1, round(len(candidates) * options.share))
        taken = _exactly(min(wanted, options.most or wanted, len(places)), sizes, generator)
    chosen[places] = taken[group]
    return chosen


def _exactly(wanted: int, sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Groups in a drawn order until there are `wanted` places; one that would be too much is passed over."""
    taken = np.zeros(len(sizes), dtype=bool)
    order = generator.permutation(len(sizes))
    if (sizes == 1).all():
        taken[order[:wanted]] = True
        return taken
    left = wanted
    for place in order:
        if left == 0:
            break
        if sizes[place] <= left:
            taken[place] = True
            left -= sizes[place]
    return taken


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
    """The text with what stands at the chosen places; random tokens are out of `drawn_from`."""
    found = ids.copy()
    if options.replace_per == "mask_only":
        found[chosen] = mask
        return found
    draw = generator.random(len(ids))
    if options.replace_per == "word":
        _, group = np.unique(words, return_inverse=True)
        draw = draw[group]  # one of the draws for all pieces of a word
    masked = chosen & (draw < options.mask)
    random = chosen & (draw >= options.mask) & (draw < options.mask + options.random)
    found[masked] = mask
    found[random] = drawn_from[generator.integers(len(drawn_from), size=int(random.sum()))]
    return found


__all__ = ["Masking", "choose", "hide"]
