"""What changes during a stage: the learning rate, and how often a layer's window is off or narrow."""

import math

import torch

WARMUP = 0.05  # of all steps


def rate(step: int, steps: int) -> float:
    """The factor on the learning rate: a short warm-up, then a cosine to a tenth."""
    warm = max(1, round(WARMUP * steps))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2


def window_off(step: int, steps: int) -> float:
    """How often a layer's window is off: from 0.9 down to 0.5 over the first half of the steps, then 0.25."""
    done = step / max(1, steps)
    return 0.9 - 0.8 * done if done < 0.5 else 0.25


def draw_width(window: int, off: float, *, step: int, layer: int, seed: int) -> int:
    """The window of a layer in a step: 0 with probability `off`, else one of 0, a quarter, half and all of it.

    The draw follows from seed, step and layer alone: layers may be trained together or one by one, and runs resumed.
    """
    drawn = torch.Generator().manual_seed((seed * 1_000_003 + step) * 10_007 + layer)
    chance, choice = torch.rand(2, generator=drawn, dtype=torch.float64).tolist()
    return 0 if chance < off else (0, window // 4, window // 2, window)[int(4 * choice)]


__all__ = ["draw_width", "rate", "window_off"]
