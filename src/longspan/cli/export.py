"""`longspan export`: a model as a program that runs without longspan."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption


def export(
    model: Path,
    /,
    *,
    out: Annotated[Path, Parameter(help="folder to write, or one file that ends in .onnx or .pt2")],
    format: Annotated[
        Literal["onnx", "torch"], Parameter(help="onnx (default), or torch: .pt2 files of torch.export")
    ] = "onnx",
    length: Annotated[str, Parameter(help="tokens of a text: dynamic (default), or a number")] = "dynamic",
    batch: Annotated[str, Parameter(help="texts of a batch: dynamic (default), or a number")] = "dynamic",
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], Parameter(help="precision of the weights (default: float32)")
    ] = "float32",
    state: Annotated[
        bool | None,
        Parameter(help="of a causal model, programs that keep a state (default: if its attention has one)"),
    ] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="replace what exists")] = False,
    json: AsJson = False,
) -> None:
    """Export a model as ONNX or as a program of torch.export, checked against the model before it is written.

    A folder gets the programs, the tokenizer, the configuration and export.json, which lists inputs and outputs. A
    causal model becomes two programs: prefill reads a prompt, step one more token, with the state as inputs and
    outputs. Batch and length are variables unless numbers are given.

    **Examples:**

        longspan export HuggingFaceTB/SmolLM2-135M --out smollm2-onnx
        longspan export runs/mine --format torch --out mine-pt2
        longspan export bert-base-uncased/ --out bert.onnx
        longspan export vit/ --batch 1 --out vit.onnx --json

    Parameters
    ----------
    model
        A model: its folder or file, owner/name in the local Hugging Face cache, package:NAME, or a run.
    """
    from longspan.hub.export import export as write

    sizes = {"length": _size(length, "--length"), "batch": _size(batch, "--batch")}
    with Console(stderr=True).status(f"exporting {model}") as status:
        lines = _reporter(status.update, quiet=status.console.is_terminal)
        exported = write(
            model, out, format=format, dtype=dtype, state=state, overwrite=overwrite, report=lines, **sizes
        )
    if json:
        return print_json(exported.record())
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"wrote {exported.path}: {', '.join(exported.files)}", markup=False, soft_wrap=True)
    for name, program in exported.programs.items():
        console.print(f"{name}: {_inputs(program)} → {_few(program['outputs'])}", markup=False)
    for check in exported.checks:
        shapes = ", ".join(f"{batch}×{size}" for batch, size in check.shapes)
        console.print(
            f"{check.graph} equals the model to {check.difference:.1e} (limit {check.limit:g}) at {shapes}",
            markup=False,
        )
    for note in exported.notes:
        console.print(note, markup=False)


def _size(text: str, flag: str) -> "int | Literal['dynamic']":
    if text == "dynamic":
        return "dynamic"
    if not text.isdecimal() or int(text) < 1:
        raise InvalidOption(f"{flag} must be dynamic or a number from 1 on, not {text!r}")
    return int(text)


def _reporter(update: Callable[[str], None], *, quiet: bool) -> Callable[[str], None]:
    """Shows the stage in the status line of a terminal, or as lines on standard error."""
    plain = Console(stderr=True, highlight=False, soft_wrap=True)

    def report(text: str) -> None:
        update(text) if quiet else plain.print(text, markup=False)

    return report


def _inputs(program: dict[str, dict[str, dict[str, object]]]) -> str:
    shown = [f"{name} {tuple(item['shape'])}".replace("'", "") for name, item in program["inputs"].items()]  # type: ignore[arg-type]
    return _few(shown)


def _few(names: "list[str] | object") -> str:
    assert isinstance(names, list)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
