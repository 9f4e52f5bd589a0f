"""The rows of `longspan list`, without importing torch, which takes seconds.

`BUILT_IN` is a copy of facts that the classes of mechanisms declare. A test compares the two; after a change run
`python -m longspan.cli.mechanism_table` and paste its output here. With plugins, or if torch is imported anyway, the
rows come from the registry.
"""

import os
import sys
from importlib.metadata import entry_points
from typing import NamedTuple

from longspan.registry import PLUGINS


class Row(NamedTuple):
    """A line of `longspan list`."""

    name: str
    survey_class: str
    can: str
    order: str
    paper: str


BUILT_IN: tuple[Row, ...] = (
    Row("softmax", "dense", "causal, cross, decodes, grouped", "n²", "Vaswani et al. 2017"),
    Row("window", "fixed pattern", "causal, decodes, grouped", "n·window", "Beltagy et al. 2020 (sliding window)"),
    Row("longformer", "fixed pattern", "causal, decodes, grouped", "n·(window + globals)", "Beltagy et al. 2020"),
    Row("etc", "fixed pattern", "grouped", "n·(radius + global_tokens)", "Ainslie et al. 2020"),
    Row("bigbird", "fixed pattern", "grouped", "n·block·(window + random + 2)", "Zaheer et al. 2020"),
    Row("sparse", "fixed pattern", "causal, decodes, grouped", "n·(stride + n/stride)", "Child et al. 2019"),
    Row(
        "image_local",
        "fixed pattern",
        "causal, decodes, grouped",
        "n·(query_block + memory)",
        "Parmar et al. 2018 (Image Transformer)",
    ),
    Row(
        "axial",
        "fixed pattern",
        "causal, decodes, grouped",
        "n·(length of the axis): n·√n for a square",
        "Ho et al. 2019 (Axial Transformer)",
    ),
    Row("memory_compressed", "fixed pattern", "causal, decodes, grouped", "n²/stride", "Liu et al. 2018"),
    Row("inducing", "memory", "cross, grouped", "n·points", "Lee et al. 2019"),
    Row("reformer", "learned pattern", "causal, decodes", "n·log n + n·rounds·chunk", "Kitaev et al. 2020"),
    Row("routing", "learned pattern", "causal, decodes", "n·(clusters + window)", "Roy et al. 2020"),
    Row("sinkhorn", "learned pattern", "causal, decodes, grouped", "n·block + n²/block", "Tay et al. 2020b"),
    Row("synthesizer", "low rank", "causal, decodes", "n²", "Tay et al. 2020a"),
    Row("linformer", "low rank", "cross, grouped", "n·rank", "Wang et al. 2020"),
    Row("nystrom", "low rank", "grouped", "n·landmarks", "Xiong et al. 2021"),
    Row("linear", "kernel", "causal, cross, decodes, grouped", "n·head_dim", "Katharopoulos et al. 2020"),
    Row("performer", "kernel", "causal, cross, decodes, grouped", "n·features", "Choromanski et al. 2020"),
    Row("cosformer", "kernel", "causal, cross, decodes, grouped", "n·head_dim", "Qin et al. 2022"),
    Row("retention", "kernel", "causal, decodes, grouped", "n·head_dim", "Sun et al. 2023"),
    Row("gated_linear", "kernel", "causal, decodes, grouped", "n·head_dim", "Yang et al. 2023"),
    Row("hedgehog", "kernel", "causal, cross, decodes, grouped", "n·features", "Zhang et al. 2024"),
    Row("window_linear", "kernel", "causal, decodes, grouped", "n·(window + features)", "Zhang et al. 2024 (LoLCATs)"),
)


def rows() -> tuple[Row, ...]:
    """Every mechanism, built in or plugin."""
    if "torch" in sys.modules or os.environ.get(PLUGINS) or entry_points(group="longspan.attention"):
        return rows_of_registry()
    return BUILT_IN


def rows_of_registry() -> tuple[Row, ...]:
    """The rows as the classes declare them, grouped by the survey's class."""
    from longspan.attention.registry import by_survey_class, find

    table = []
    for survey_class, names in by_survey_class().items():
        for name in names:
            mechanism = find(name)
            supports = mechanism.supports
            abilities = {
                "causal": supports.causal,
                "cross": supports.cross,
                "decodes": supports.streaming,
                "grouped": supports.grouped,
            }
            can = ", ".join(word for word, able in abilities.items() if able)
            table.append(Row(name, survey_class, can, mechanism.order, mechanism.paper))
    return tuple(table)


def source() -> str:
    """The Python source of `BUILT_IN`."""
    lines = [f"    Row({', '.join(map(_quoted, row))})," for row in rows_of_registry()]
    return "\n".join(["BUILT_IN: tuple[Row, ...] = (", *lines, ")"])


def _quoted(text: str) -> str:
    return f'"{text}"' if '"' not in text and "\\" not in text else repr(text)


if __name__ == "__main__":
    print(source())


__all__ = ["BUILT_IN", "Row", "rows", "rows_of_registry", "source"]
