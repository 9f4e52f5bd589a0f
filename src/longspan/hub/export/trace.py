"""torch.export of a graph, with batch and length as variables or as given numbers."""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from longspan.errors import Unsupported
from longspan.hub.export.graphs import Graph, Values

MOST_BATCH = 1 << 20
MOST_LENGTH = 1 << 20  # of a model that does not say how long its texts may be


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and the log lines of exporters, which speak of their own insides."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def trace(graph: Graph, example: Values, fixed: Mapping[str, int], limits: Mapping[str, int]) -> ExportedProgram:
    """The program; `fixed` axes have their size in the example, `limits` are the largest of others."""
    names = sorted({name for axes in graph.axes() for name in axes.names.values()} - set(fixed))
    variables = {name: Dim(name, min=1, max=limits.get(name, MOST_LENGTH)) for name in names}
    shapes = tuple(
        {axis: variables[name] for axis, name in axes.names.items() if name in variables} for axes in graph.axes()
    )
    try:
        with torch.no_grad(), quiet():
            # torch cannot prove that, say, a padded length divides by its block, and would refuse. It asserts it at run
            # time instead, and the check decides. An axis that became a constant is refused anyway.
            return torch.export.export(
                graph,
                example,
                dynamic_shapes=_by_argument(graph, shapes),
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        raise Unsupported(f"{graph.name}: {_plain_words(error, variables)}") from error


def _by_argument(graph: Graph, shapes: tuple[dict[int, Dim], ...]) -> tuple[Any, ...]:
    """As torch.export wants them: variable arguments of `forward` are one tuple."""
    code = type(graph).forward.__code__
    named = code.co_argcount - 1  # without self
    varies = bool(code.co_flags & 0x04)
    return (*shapes[:named], shapes[named:]) if varies else shapes


def _plain_words(error: Exception, variables: Mapping[str, object]) -> str:
    text = " ".join(str(error).split())
    name = type(error).__name__
    if name == "GuardOnDataDependentSymNode" or "data-dependent" in text:
        return f"shapes depend on the data, which a program cannot have ({_short(text)})"
    if "onstraints violated" in text or "pecializ" in text or "inconsistent min" in text:
        blamed = [variable for variable in variables if re.search(rf"\b{variable}\b", text)] or list(variables)
        flags = ", ".join(f"--{'length' if v != 'batch' else 'batch'} N" for v in blamed[:1])
        return f"{' and '.join(blamed)} cannot be variables ({_short(text)}); give {flags}"
    return f"torch.export failed: {name}: {_short(text)}"


def _short(text: str) -> str:
    text = re.sub(r"For more information, run with TORCH_LOGS=\S+", "", text)
    return " ".join(text.split())[:240]


__all__ = ["MOST_BATCH", "MOST_LENGTH", "quiet", "trace"]
