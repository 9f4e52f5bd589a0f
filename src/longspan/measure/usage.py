"""Code that uses a mechanism: in Python, and in a recipe."""

from typing import Any

from longspan.attention import build
from longspan.errors import LongspanError
from longspan.measure.case import Case
from longspan.measure.requirements import ALTERNATING
from longspan.models.cost import blank


def python(case: Case) -> str:
    """A complete program."""
    width, longest = case.heads * case.head_dim, max(case.length, case.keys or 0)
    longest *= 2 if case.kind == "decode" else 1  # decoding continues after the tokens that were read
    sizes: dict[str, Any] = {"heads": case.heads, "head_dim": case.head_dim}
    if case.causal:
        sizes["causal"] = True
    if not _any_length(case, sizes):
        sizes["max_length"] = longest
    arguments = ", ".join(f"{name}={value!r}" for name, value in {**sizes, **_options(case)}.items())
    lines = [
        "import torch",
        "from longspan.attention import build",
        "from longspan.nn.multihead import MultiHead",
        "",
        f'attention = build("{case.mechanism}", {arguments})',
        f"layer = MultiHead({width}, attention)",
        *_call(case, width),
    ]
    return "\n".join(lines)


def recipe(case: Case) -> str | None:
    """The line for a recipe's [model]; None for cross-attention."""
    if case.keys is not None:
        return None
    base = {"name": case.mechanism, **_options(case)}
    layers = [{**base, **change} for change in ALTERNATING.get(case.mechanism, ({},))]
    tables = ("{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in layer.items()) + " }" for layer in layers)
    return f"attention = [{', '.join(tables)}]"


def _call(case: Case, width: int) -> list[str]:
    shape = f"{case.batch}, {case.length}, {width}"
    if case.kind == "decode":
        return [
            "with torch.inference_mode():",
            f"    state = layer.start({case.batch})",
            f"    y, state = layer.extend(torch.randn({shape}), state)  # what was read before",
            f"    y, state = layer.extend(torch.randn({case.batch}, 1, {width}), state)  # each further token",
        ]
    keys = case.length if case.keys is None else case.keys
    arguments = [f"torch.randn({shape})"]
    if case.keys is not None:
        arguments.append(f"torch.randn({case.batch}, {keys}, {width})")
    if case.padding:
        arguments.append("key_mask=mask")
    mask = [f"mask = torch.ones({case.batch}, {keys}, dtype=torch.bool)  # False where there is padding"]
    return [*(mask if case.padding else []), f"y = layer({', '.join(arguments)})"]


def _any_length(case: Case, sizes: dict[str, Any]) -> bool:
    """Whether the mechanism can be built without max_length."""
    try:
        with blank():
            build(case.mechanism, **sizes, **case.options)
    except LongspanError:
        return False
    return True


def _options(case: Case) -> dict[str, Any]:
    """The options as Python values, with tuples for the lists of a file."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in case.options.items()}


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, tuple) else str(value).lower()


__all__ = ["python", "recipe"]
