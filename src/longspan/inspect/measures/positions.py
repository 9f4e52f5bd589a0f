"""What position codes say: how alike two positions are, what a shift does, and what a model does without them."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.inspect.measures.findings import Finding, Grid, HeatMap, Line, LineChart
from longspan.nn.biases import Alibi, DistanceBias
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.positions import AbsolutePositions, SinusoidalLayout, SinusoidalPositions
from longspan.nn.rotary import Rotary
from longspan.nn.rotary_scaling import frequencies

OFFSETS = (1, 2, 10, 100, 1000)
SHIFTS = (1, 7, 50)
CELLS = 64  # rows and columns of a drawn table
BARE = ("sinusoidal", "rotary", "alibi")


def codes(module: AbsolutePositions, length: int) -> Tensor:
    """The code of each position, (length, width), in float64."""
    with torch.no_grad():
        return module.code(torch.zeros(1, length, module.width, dtype=torch.float64), 0, None).double().cpu()


def similarity(table: Tensor, centred: bool = True) -> Tensor:
    """The cosine of each pair of rows; `centred` subtracts the mean row first."""
    unit = normalize(table - table.mean(0) if centred else table, dim=-1)
    return unit @ unit.T


def by_offset(matrix: Tensor) -> list[float]:
    """The mean of each diagonal, from offset 0."""
    return [float(matrix.diagonal(offset).mean()) for offset in range(len(matrix))]


def share_by_offset(matrix: Tensor) -> float:
    """1 - (variance within diagonals) / variance, without the main diagonal: 1 if only the offset matters.

    The main diagonal is all ones: with it, even a random table would seem to know offsets.
    """
    diagonals = [matrix.diagonal(offset) for offset in range(1, len(matrix))]
    values = torch.cat(diagonals)
    means = torch.cat([row.mean().expand(len(row)) for row in diagonals])
    return float(1 - (values - means).square().sum() / (values - values.mean()).square().sum().clamp_min(1e-300))


def shift_error(width: int, shift: int, layout: SinusoidalLayout, length: int = 500) -> float:
    """The largest error of the best linear map from each position's code to that of `shift` positions later."""
    table = codes(SinusoidalPositions(width, layout), length + shift)
    now, later = table[:length], table[shift:]
    best = torch.linalg.lstsq(now, later, driver="gelsd").solution
    return float((later - now @ best).abs().max())


# Findings


def measure_table(module: AbsolutePositions, length: int, embedding: TokenEmbedding | None = None) -> Finding:
    """The table as a picture, similarity by distance, the share that the offset explains, norms."""
    table = codes(module, length)
    fixed = isinstance(module, SinusoidalPositions)
    matrix = similarity(table, centred=not fixed)
    generator = torch.Generator().manual_seed(0)
    noise = similarity(torch.randn(table.shape, generator=generator, dtype=torch.float64))
    waves = similarity(codes(SinusoidalPositions(table.shape[1]), length), centred=False)
    lines = {"this table": matrix, "random table": noise} | ({} if fixed else {"sinusoidal": waves})
    share = {name: share_by_offset(each) for name, each in lines.items()}
    means = {name: by_offset(each) for name, each in lines.items()}
    norms = table.norm(dim=-1)
    shown = [offset for offset in OFFSETS if offset < length]
    figures: list[Any] = [
        _picture(f"The table: {length} positions × {table.shape[1]} columns", table),
        LineChart(
            "Cosine of two positions by distance" + ("" if fixed else " (mean code subtracted)"),
            "positions apart",
            "mean cosine",
            [
                Line(name, list(enumerate(values))[: length - 1], control=name != "this table")
                for name, values in means.items()
            ],
        ),
        LineChart("Norm of each position's code", "position", "norm", [Line("norm", list(enumerate(norms.tolist())))]),
        Grid(
            "Cosine by distance, and the share of its variance that the distance explains (main diagonal left out)",
            ("table", *map(str, shown), "share"),
            [[name, *(means[name][offset] for offset in shown), share[name]] for name in lines],
        ),
    ]
    values: dict[str, Any] = {
        "positions": length,
        "width": table.shape[1],
        "cosine_by_offset": means["this table"],
        "share_by_offset": share,
        "norms": norms.tolist(),
    }
    tail = ""
    if embedding is not None:
        rows = embedding.weight.detach().double().norm(dim=-1).cpu() * embedding.scale
        mean = float(rows[rows > 0].mean())
        values["token_norm"] = mean
        tail = f" Codes have a mean norm of {float(norms.mean()):.3g} beside {mean:.3g} of the token embeddings."
    return Finding(
        "table",
        "The position table",
        f"The distance of two positions explains {share['this table']:.0%} of how alike their codes are.{tail}",
        f"A random table of the same shape ({share['random table']:.1%})"
        + ("." if fixed else f", and sinusoidal codes ({share['sinusoidal']:.0%})."),
        figures,
        values,
    )


def measure_shift(width: int) -> Finding:
    """The linear shift of sinusoidal codes, by the paper's exponent and by that of much teaching material."""
    rows, values = [], dict[str, Any]()
    for shift in SHIFTS:
        right = shift_error(width, shift, "interleaved")
        wrong = shift_error(width, shift, "shifted_exponent")
        rows.append([shift, right, wrong])
        values[str(shift)] = {"paper": right, "shifted_exponent": wrong}
    return Finding(
        "shift",
        "The linear shift",
        f"With the paper's exponent 2i/d for sine and cosine, one linear map moves every code {SHIFTS[0]} position on "
        f"(largest error {rows[0][1]:.0e}); with (2i+1)/d for the cosine none does (error {rows[0][2]:.2f}).",
        "The best linear map by least squares over 500 positions, for both exponents. A pair of sine and cosine must "
        "share its frequency to be rotated.",
        [Grid("Largest error of the best linear map", ("shift", "exponent 2i/d", "exponent (2i+1)/d"), rows)],
        {"width": width, "shifts": values},
    )


def measure_rotary(module: Rotary, trained: int, head_dim: int | None = None) -> Finding:
    """Mean cosine by distance, and the turns of each frequency, scaled and not."""
    scaled = frequencies(module.rotated, module.base, module.scaling)
    plain = frequencies(module.rotated, module.base)
    other = 1e5 if module.base == 1e4 else 1e4
    distances = sorted({*range(1, 33), *(round(2 ** (power / 4)) for power in range(20, 49))})
    curves = {
        f"base {module.base:g}" + (" scaled" if module.scaling else ""): scaled,
        f"base {other:g}": frequencies(module.rotated, other),
    } | ({f"base {module.base:g} unscaled": plain} if module.scaling else {})

    def alike(rates: Tensor, distance: int) -> float:
        return float((rates * distance).cos().mean())

    shown = [offset for offset in OFFSETS if offset != 2]
    turns = [
        [
            index,
            float(rate),
            *(float(each * length / (2 * math.pi)) for each in (rate, fast) for length in (trained, 4 * trained)),
        ]
        for index, (rate, fast) in enumerate(zip(scaled, plain))
    ]
    slow = int((scaled * trained < 2 * math.pi).sum())
    head = (
        "pair",
        "frequency",
        f"turns in {trained:,}",
        f"turns in {4 * trained:,}",
        f"unscaled, {trained:,}",
        f"unscaled, {4 * trained:,}",
    )
    chosen = sorted({0, *torch.linspace(0, len(turns) - 1, min(16, len(turns))).round().int().tolist()})
    return Finding(
        "rotary",
        "Rotary frequencies",
        f"{slow} of {len(turns)} frequencies make less than one turn in {trained:,} tokens: they tell far from near "
        f"without repeating; at a distance of 100 the mean cosine is {alike(scaled, 100):.3f}.",
        f"Another base ({other:g})" + (", and the unscaled frequencies." if module.scaling else "; no scaling is set."),
        [
            LineChart(
                "Mean cosine of the rotation by distance",
                "positions apart",
                "mean cosine",
                [
                    Line(name, [(d, alike(rates, d)) for d in distances], control=index > 0)
                    for index, (name, rates) in enumerate(curves.items())
                ],
                log_across=True,
            ),
            Grid(
                "Mean cosine",
                ("", *map(str, shown)),
                [[name, *(alike(rates, offset) for offset in shown)] for name, rates in curves.items()],
            ),
            Grid("Turns of the frequencies", head, [turns[index] for index in chosen]),
        ],
        {
            "base": module.base,
            "rotated": module.rotated,
            "trained_length": trained,
            "frequencies": scaled.tolist(),
            "mean_cosine": {name: {str(o): alike(rates, o) for o in OFFSETS} for name, rates in curves.items()},
            "turns": [row[2] for row in turns],
        },
    )


def measure_bias(module: DistanceBias, reach: int) -> Finding:
    """The number that is added to scores at each offset, by head."""
    with torch.no_grad():
        table = module.table(reach).double().cpu()
    offsets = range(1 - reach, reach)
    drawn = sorted({0, *torch.linspace(0, len(table) - 1, min(6, len(table))).round().int().tolist()})
    kind = "ALiBi" if isinstance(module, Alibi) else type(module).__name__
    far = table[:, 0] - table[:, reach - 1]
    return Finding(
        "bias",
        f"Bias by offset ({kind})",
        f"A key {reach - 1} tokens back is lowered by {float(-far.min()):.3g} in the most local head and by "
        f"{float(-far.max()):.3g} in the least local one.",
        "0 everywhere would be a head that does not know distances.",
        [
            LineChart(
                "Added to the score, by key − query",
                "key − query",
                "bias",
                [
                    *(Line(f"head {head}", list(zip(offsets, table[head].tolist()))) for head in drawn),
                    Line("none", [(1 - reach, 0.0), (reach - 1, 0.0)], control=True),
                ],
            )
        ],
        {"reach": reach, "table": table.tolist()},
    )


def _picture(title: str, table: Tensor) -> HeatMap:
    """A table at no more than `CELLS` rows and columns, by picking: means would hide fast waves."""
    rows = _picked(len(table))
    columns = _picked(table.shape[1])
    return HeatMap(
        title,
        [str(row) for row in rows],
        [str(column) for column in columns],
        table[rows][:, columns].tolist(),
        across="column",
        up="position",
        diverging=True,
    )


def _picked(count: int) -> list[int]:
    return sorted({*torch.linspace(0, count - 1, min(count, CELLS)).round().int().tolist()})


# What is measured


def bare_positions(text: str, length: int) -> list[Finding]:
    """The findings for `sinusoidal:WIDTH`, `rotary:HEAD_DIM` and `alibi:HEADS`."""
    name, _, size = text.partition(":")
    if not (size.isascii() and size.isdecimal()) or int(size) < 1:
        raise InvalidOption(f"expected {name}:NUMBER, such as {name}:64, got {text!r}")
    number = int(size)
    if name == "sinusoidal":
        return [measure_table(SinusoidalPositions(number), length), measure_shift(number)]
    if name == "rotary":
        return [measure_rotary(Rotary(number), length)]
    return [measure_bias(Alibi(number), length)]


def model_positions(model: nn.Module, longest: int | None) -> list[Finding]:
    """The findings for the position codes that a model has; an error if it has none."""
    findings: list[Finding] = []
    seen: list[Any] = []
    most = 512 if longest is None else min(longest, 512)
    for module in model.modules():
        key: Any = (type(module), module.base, module.rotated) if isinstance(module, Rotary) else module
        if any(key is each or (isinstance(key, tuple) and key == each) for each in seen):
            continue
        if isinstance(module, (AbsolutePositions, Rotary, DistanceBias)):
            seen.append(key)
        if isinstance(module, TokenEmbedding) and isinstance(module.position, AbsolutePositions):
            seen.append(module.position)
            findings.append(measure_table(module.position, _length(module.position, most), module))
            if isinstance(module.position, SinusoidalPositions):
                findings.append(measure_shift(module.position.width))
        elif isinstance(module, AbsolutePositions):
            findings.append(measure_table(module, _length(module, most)))
        elif isinstance(module, Rotary):
            findings.append(measure_rotary(module, longest or 2048))
        elif isinstance(module, DistanceBias):
            findings.append(measure_bias(module, min(most, 128)))
    if not findings:
        name = getattr(model, "name", type(model).__name__)
        raise Unsupported(f"this {name!r} has no position codes: no table, no rotation and no bias by distance")
    return findings


def _length(module: AbsolutePositions, most: int) -> int:
    size = getattr(module, "length", None)
    if size is not None and size < 4:
        raise InvalidInput(f"the position table has {size} rows, and at least 4 are needed")
    return most if size is None else min(most, int(size))


__all__ = [
    "BARE",
    "bare_positions",
    "by_offset",
    "codes",
    "measure_bias",
    "measure_rotary",
    "measure_shift",
    "measure_table",
    "model_positions",
    "share_by_offset",
    "shift_error",
    "similarity",
]
