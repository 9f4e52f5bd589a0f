"""`longspan inspect --report`: the measures of a model on a text, as a page, as JSON and as sentences."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.markup import escape

from longspan.cli.inputs import check_writable, comma_separated, load_model
from longspan.cli.terminal import Console, clean, escaped
from longspan.errors import InvalidInput, InvalidOption
from longspan.parsing import toml_value

if TYPE_CHECKING:
    from longspan.attention.config import AttentionConfig
    from longspan.hub import Pretrained
    from longspan.inspect.measures.findings import Finding

Page = Annotated[Path | None, Parameter(name="--html", help="write a page to this file")]
Numbers = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead: every number")]
TextFile = Annotated[Path | None, Parameter(allow_leading_hyphen=True, help="the text to read; - reads standard input")]
GivenText = Annotated[str | None, Parameter(allow_leading_hyphen=True, help="the text itself")]


REPORT = Group("Report", sort_key=5)
LENGTH, TEXTS = 128, 8


@Parameter(name="*")
@dataclass(frozen=True)
class ReportFlags:
    """The flags of --report."""

    measures: Annotated[
        str | None,
        Parameter(
            group=REPORT,
            help="which ones, separated by commas: heads, clusters, importance, rollout, collapse, spectrum, paths, "
            "lag, drift (default: all)",
        ),
    ] = None
    length: Annotated[
        int | None,
        Parameter(
            group=REPORT,
            help="tokens of a passage (default: 128); collapse, spectrum and drift read four times as many",
        ),
    ] = None
    texts: Annotated[int | None, Parameter(group=REPORT, help="most passages, spread over the text (default: 8)")] = (
        None
    )
    swap: Annotated[
        tuple[str, ...],
        Parameter(
            group=REPORT,
            negative="",
            help="attention for the measure drift; may be repeated (default: window:window=16 and linear)",
        ),
    ] = ()
    beside: Annotated[
        Path | None, Parameter(group=REPORT, help="a recurrent model for the measure lag, beside this one")
    ] = None


def report(
    model: Path,
    flags: ReportFlags,
    *,
    text: str | None = None,
    file: Path | None = None,
    pair: str | None = None,
    html: Path | None = None,
    json: bool = False,
) -> None:
    """Measures a model on a text and writes what was found."""
    from longspan.inspect.measures.run import MEASURES, Request, check_names, measure
    from longspan.inspect.measures.subject import Subject

    names = None if flags.measures is None else comma_separated(flags.measures, "--measures")
    check_names(names or ())
    attentions = tuple(_attention(each) for each in flags.swap)
    check_writable(html)
    content, source = read_passages(text, file)
    length = LENGTH if flags.length is None else flags.length
    texts = TEXTS if flags.texts is None else flags.texts
    if length < 16:
        raise InvalidOption(f"--length must be at least 16 tokens, not {length}")
    if texts < 2:
        raise InvalidOption(f"--texts must be at least 2, so that one half can control the other, not {texts}")
    pretrained = load_float(model)
    subject = Subject(pretrained, content, pair=pair, length=length, texts=texts)
    beside = None
    if flags.beside is not None:
        beside = Subject(load_float(flags.beside), content, length=length, texts=texts)
    with telling(len(names or MEASURES)) as tell:
        request = Request(subject, tell, beside=beside, **({"attentions": attentions} if attentions else {}))
        findings = measure(request, names)
    passages = subject.passages
    facts = {
        **model_facts(pretrained, model),
        "text": source,
        "passages": f"{len(passages)} of {passages.length} tokens, and one of {subject.long.length}",
    }
    write_findings("Inside the model", facts, findings, html, json)


def load_float(path: Path) -> "Pretrained":
    """A model in float32 at least, so that small numbers are its own."""
    import torch

    pretrained = load_model(path)
    if pretrained.model.dtype not in (torch.float32, torch.float64):
        pretrained.model.float()
    return pretrained


def read_passages(text: str | None, file: Path | None) -> tuple[str, str]:
    """The text to measure on, and how the page calls it; the package's sample if none is given."""
    from longspan.inspect.measures.senses import sample_text

    if text is not None and file is not None:
        raise InvalidOption("give the text by --text or by --file, not both")
    if text is not None:
        return text, "given by --text"
    if file is None:
        return sample_text(), "the sample of the package"
    if str(file) != "-" and not file.is_file():
        raise InvalidInput(f"there is no file {file}")
    try:
        content = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
    if not content.strip():
        raise InvalidInput(f"{file} is empty; give a text of some sentences")
    return content, "standard input" if str(file) == "-" else file.name


def _attention(text: str) -> "AttentionConfig":
    """`window:window=16,dilation=2` as a mechanism with options."""
    from longspan.attention.config import AttentionConfig

    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidOption(f"--swap must be NAME or NAME:OPTION=VALUE,…, not {text!r}")
        options[key.strip()] = toml_value(value.strip())
    return AttentionConfig(name, **options)


@contextmanager
def telling(total: int) -> Iterator[Any]:
    """What is being measured now, on standard error: a changing line on a terminal, lines otherwise."""
    console = Console(stderr=True)
    with console.status("measuring") as status:

        def tell(what: str) -> None:
            if console.is_terminal:
                status.update(escape(what))
            elif not what.startswith(("without each", "path lengths of")):
                print(clean(what), file=sys.stderr)

        yield tell


def model_facts(pretrained: "Pretrained", path: Path) -> dict[str, object]:
    """What the top of the page says of the model."""
    model = pretrained.model
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"model": str(path), "kind": model.name, "parameters": f"{count:,}"}


def write_findings(
    title: str,
    facts: Mapping[str, object],
    findings: "Sequence[Finding]",
    html: Path | None,
    json: bool,
    *,
    caution: str | None = None,
) -> None:
    """Write the page and the numbers, and print what was found, or every number."""
    from longspan import files
    from longspan.report.inspect_report import INSIDE, findings_json, findings_page

    caution = INSIDE if caution is None else caution
    if html is not None:
        files.write_text(html, findings_page(title, facts, findings, caution))
    if json:
        sys.stdout.write(escaped(findings_json(title, facts, findings, caution)))
        return
    for finding in findings:
        print(f"{finding.title}: {finding.sentence or 'does not apply: ' + finding.skipped}")
    if html is not None:
        print(f"written to {html}")


__all__ = [
    "REPORT",
    "GivenText",
    "Numbers",
    "Page",
    "ReportFlags",
    "TextFile",
    "load_float",
    "model_facts",
    "read_passages",
    "report",
    "telling",
    "write_findings",
]
