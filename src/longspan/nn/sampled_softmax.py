"""Sampled softmax: training loss over a sample of a large vocabulary (Jean et al. 2015, section 3)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.loss import IGNORED


class LogUniform:
    """P(id) = log((id + 2) / (id + 1)) / log(vocabulary + 1): nearly Zipf's law, if ids are sorted by frequency."""

    def __init__(self, vocabulary: int, samples: int) -> None:
        if not 1 <= samples <= vocabulary:
            raise InvalidOption(f"samples must be 1 to {vocabulary}, the vocabulary, not {samples}")
        self.vocabulary, self.samples = vocabulary, samples

    def probability(self, ids: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """The probability of each id in one draw."""
        return (1 / (ids.double() + 1)).log1p() / math.log(self.vocabulary + 1)

    def draw(
        self, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
    ) -> tuple[Int[Tensor, " samples"], int]:
        """`samples` distinct ids, and the number of draws that it took."""
        if self.samples == self.vocabulary:
            return torch.arange(self.vocabulary, device=device), 0
        drawn = torch.empty(0, dtype=torch.long, device=device)
        while True:
            uniform = torch.rand(2 * self.samples, dtype=torch.float64, generator=generator, device=device)
            more = (uniform * math.log(self.vocabulary + 1)).exp().long() - 1  # the inverse of the distribution
            drawn = torch.cat([drawn, more.clamp_(0, self.vocabulary - 1)])
            distinct, inverse = drawn.unique(return_inverse=True)
            if len(distinct) >= self.samples:
                index = torch.arange(len(drawn), device=device)
                first = index.new_full((len(distinct),), len(drawn)).scatter_reduce_(0, inverse, index, "amin")
                chosen = first.sort().values[: self.samples]
                return drawn[chosen], int(chosen[-1]) + 1

    def expected(self, ids: Int[Tensor, "*any"], draws: int) -> Float[Tensor, "*any"]:
        """The probability that an id is among the samples after `draws` draws: 1 - (1 - P)^draws."""
        if self.samples == self.vocabulary:
            return torch.ones_like(ids, dtype=torch.float64)
        return -torch.expm1(draws * torch.log1p(-self.probability(ids)))


def sampled_cross_entropy(
    x: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocabulary width"],
    targets: Int[Tensor, " rows"],
    bias: Float[Tensor, " vocabulary"] | None = None,
    *,
    sampler: LogUniform,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """The cross-entropy over the target and the samples, summed over the rows that count; all rows share the samples.

    Each logit is lowered by the log of its id's sampling probability, so that the sum over the samples estimates the
    sum over the vocabulary. A sample that equals the row's target is left out of that row.
    """
    if len(weight) != sampler.vocabulary:
        raise InvalidInput(f"the sampler has {sampler.vocabulary} ids, but the output layer has {len(weight)} rows")
    real = targets != IGNORED
    x, targets = x[real], targets[real]
    if not len(targets):
        return x.sum() * 0.0
    samples, draws = sampler.draw(generator, x.device)
    ids = torch.cat([targets, samples])
    correction = sampler.expected(ids, draws).log().to(x.dtype)
    if bias is not None:
        correction = correction - bias[ids]
    count = len(targets)
    of_target = (x * weight[targets]).sum(-1) - correction[:count]
    others = x @ weight[samples].T - correction[count:]
    others = others.masked_fill(samples == targets[:, None], -math.inf)
    logits = torch.cat([of_target[:, None], others], dim=1)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, torch.zeros_like(targets), reduction="sum")


__all__ = ["LogUniform", "sampled_cross_entropy"]
