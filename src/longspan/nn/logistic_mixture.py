"""Discretised mixture of logistics (Salimans et al. 2017): the likelihood of a pixel with ordered values.

For each pixel there are K components with a weight π, and for each channel a mean μ and a scale s. Values are scaled to
[-1, 1]; one step of 1/levels is `2 / (levels - 1)`. A value has the probability of its step,

    P(x) = σ((x - μ + step/2) / s) - σ((x - μ - step/2) / s),

where the lowest value takes all below it and the highest all above. The channels of a component are linked: the mean of
green depends on red, and that of blue on both. The likelihood is exact: it sums to 1 over all values.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

LEAST_LOG_SCALE = -7.0
LINKS = {1: 0, 3: 3}  # coefficients between channels, by the number of channels
TINY = 1e-5  # below this probability the density at the middle of the step is used


def parameters(channels: int, components: int) -> int:
    """The number of outputs for a pixel."""
    return components * (1 + 2 * channels + LINKS[channels])


def log_likelihood(
    out: Float[Tensor, "*pixels outputs"], values: Int[Tensor, "*pixels channels"], levels: int
) -> Float[Tensor, "*pixels"]:
    """The log-probability of each pixel, whose channels have values from 0 to levels - 1."""
    channels = values.shape[-1]
    logits, means, log_scales, links = _split(out, channels)
    x = values.to(out.dtype)[..., None, :] * (2 / (levels - 1)) - 1  # one row for each component
    centred = x - _linked(means, links, x)
    inverse, half = (-log_scales).exp(), 1 / (levels - 1)
    above, below = inverse * (centred + half), inverse * (centred - half)
    probability = torch.sigmoid(above) - torch.sigmoid(below)
    middle = inverse * centred
    density = middle - log_scales - 2 * softplus(middle) + math.log(2 * half)
    inside = torch.where(probability > TINY, probability.clamp_min(1e-12).log(), density)
    step = torch.where(values[..., None, :] == 0, logsigmoid(above), inside)
    step = torch.where(values[..., None, :] == levels - 1, logsigmoid(-below), step)
    return torch.logsumexp(step.sum(-1) + logits.log_softmax(-1), -1)


def sample(
    out: Float[Tensor, "*pixels outputs"],
    channels: int,
    levels: int,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*pixels channels"]:
    """A value for each channel: one component for all of them, then each channel given those before it."""
    logits, means, log_scales, links = _split(out, channels)
    noise = torch.rand(logits.shape, generator=generator, dtype=out.dtype).to(out.device).clamp(1e-5, 1 - 1e-5)
    gumbel = -torch.log(-torch.log(noise))
    chosen = (logits / max(temperature, 1e-6) + gumbel).argmax(-1) if temperature else logits.argmax(-1)
    index = chosen[..., None, None].expand(*chosen.shape, 1, channels)
    mean, log_scale = means.gather(-2, index)[..., 0, :], log_scales.gather(-2, index)[..., 0, :]
    link = links.gather(-2, chosen[..., None, None].expand(*chosen.shape, 1, links.shape[-1]))[..., 0, :]
    uniform = torch.rand(mean.shape, generator=generator, dtype=out.dtype).to(out.device).clamp(1e-5, 1 - 1e-5)
    noise = temperature * log_scale.exp() * (uniform.log() - (-uniform).log1p())
    x = torch.zeros_like(mean)
    for channel in range(channels):
        centre = _linked(mean[..., None, :], link[..., None, :], x[..., None, :])[..., 0, channel]
        value = (centre + noise[..., channel]).clamp(-1, 1)
        # Round to the grid before the next channel reads it, as in training.
        grid = ((value + 1) * (levels - 1) / 2).round()
        x = torch.cat([x[..., :channel], (grid * 2 / (levels - 1) - 1)[..., None], x[..., channel + 1 :]], -1)
    return ((x + 1) * (levels - 1) / 2).round().long()


def _split(out: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of the components, and for each component the means, log-scales and links of the channels."""
    rows = out.unflatten(-1, (-1, 1 + 2 * channels + LINKS[channels]))
    logits, means, log_scales, links = rows.split([1, channels, channels, LINKS[channels]], -1)
    return logits[..., 0], means, log_scales.clamp_min(LEAST_LOG_SCALE), links.tanh()


def _linked(means: Tensor, links: Tensor, x: Tensor) -> Tensor:
    """The means given the channels before: μ_G + c₀ x_R and μ_B + c₁ x_R + c₂ x_G."""
    if not links.shape[-1]:
        return means
    red, green = x[..., 0], x[..., 1]
    shift = [torch.zeros_like(red), links[..., 0] * red, links[..., 1] * red + links[..., 2] * green]
    return means + torch.stack(torch.broadcast_tensors(*shift), -1)


__all__ = ["LINKS", "log_likelihood", "parameters", "sample"]
