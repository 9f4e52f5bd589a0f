"""`longspan audit`: check what is claimed of a mechanism, layer or model."""

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from rich.markup import escape
from rich.table import Table

from longspan import files
from longspan.cli.inputs import AsJson, check_writable, print_json
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longspan.audit import Certificate, Finding
    from longspan.audit.finding import Verdict

CLAIMS = Group("Claims about a module that is not from longspan", sort_key=1)
READING = Group("How to call that module, if its signature does not say", sort_key=2)
EXIT = {"pass": 0, "fail": 1, "not measured": 3}
STYLES = {"pass": "", "fail": "red", "not measured": "yellow"}


def _claim(help: str) -> Parameter:
    return Parameter(group=CLAIMS, negative="", help=help)


def _reading(help: str) -> Parameter:
    return Parameter(group=READING, negative="", help=help)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The claims, as flags."""

    causal: Annotated[bool, _claim("no output depends on a later input")] = False
    padding: Annotated[bool, _claim("masked positions do not affect other outputs")] = False
    packing: Annotated[bool, _claim("texts packed into one row do not affect each other")] = False
    streaming: Annotated[bool, _claim("reading in chunks gives the same outputs as reading at once")] = False
    order: Annotated[float | None, _claim("FLOPs and memory grow at most by this power of the length")] = None
    any_length: Annotated[bool, _claim("lengths 1, 2, 7, 33 … work")] = False
    half_precision: Annotated[bool, _claim("outputs are finite in float16 and bfloat16")] = False
    save_load: Annotated[bool, _claim("saved weights reproduce the outputs")] = False
    compile: Annotated[bool, _claim("torch.compile captures one graph and does not change the outputs")] = False
    export: Annotated[bool, _claim("torch.export with a dynamic length works")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Called:
    """How to call the module, as flags."""

    inputs: Annotated[Literal["auto", "features", "tokens"], _reading("kind of its inputs (default: auto)")] = "auto"
    mask: Annotated[str | None, _reading("keyword argument of its padding mask")] = None
    mask_means: Annotated[Literal["keep", "drop"] | None, _reading("what True means in the padding mask")] = None
    causal_mask: Annotated[bool, _reading("pass its causal mask: src_mask or attn_mask, and is_causal=True")] = False
    sequence_first: Annotated[bool, _reading("features are (length, batch, width)")] = False
    width: Annotated[int | None, _reading("width of its features")] = None
    vocabulary: Annotated[int | None, _reading("number of its token ids")] = None
    length: Annotated[int | None, _reading("length of the test inputs (default: 64)")] = None
    long_length: Annotated[int | None, _reading("length of the longer test inputs (default: 320)")] = None


def audit(
    *targets: str,
    all: Annotated[bool, Parameter(negative="", help="audit every registered mechanism")] = False,
    claimed: Claimed | None = None,
    called: Called | None = None,
    json: AsJson = False,
    out: Annotated[Path | None, Parameter(help="write the certificates to this file, as --json prints them")] = None,
    html: Annotated[Path | None, Parameter(help="write them to this file as a page")] = None,
    workers: Annotated[int | None, Parameter(help="targets audited in parallel (default: one per core)")] = None,
    verbose: Annotated[bool, Parameter(negative="", help="print every finding, not only one line per form")] = False,
) -> int:
    """Check what is claimed of a module: is it causal, does padding leak, is it really linear?

    A longspan mechanism is checked against the whole contract, in every form. For any other layer or model (token ids
    in, logits out), the audit checks your claims, and always determinism and independence of the batch.

    Exit code 0: all claims hold; 1: a claim fails; 2: invalid command; 3: no claim fails, but one could not be
    measured.

    **Examples:**

        longspan audit window
        longspan audit --all --out audit.json --html audit.html
        longspan audit mypackage.layers:make --causal --padding --order 1
        longspan audit mypackage.layers:encoder --causal --causal-mask
        longspan audit mymodels:gpt2 --causal --padding --streaming

    Parameters
    ----------
    targets
        Names from `longspan list`, or `package.module:factory`: a module, or a class or function that makes one
        when called without arguments. The current folder is searched too.
    """
    from longspan.attention import names
    from longspan.audit import Claims, Reading, audit_many
    from longspan.audit.certificate import overall

    if all and targets:
        raise InvalidOption("give --all or targets, not both")
    if not all and not targets:
        raise InvalidOption("name a target, or give --all; `longspan list` shows the mechanisms")
    if workers is not None and workers < 1:
        raise InvalidOption(f"--workers must be at least 1, not {workers}")
    for path in (out, html):
        check_writable(path)
    claims = None if claimed is None or claimed == Claimed() else Claims(**vars(claimed))
    reading = None
    if called is not None:
        renamed = ("inputs", "mask_means", "sequence_first")
        rest = {key: value for key, value in vars(called).items() if key not in renamed}
        keeps = None if called.mask_means is None else called.mask_means == "keep"
        batch_first = False if called.sequence_first else None
        reading = Reading(kind=called.inputs, mask_keeps=keeps, batch_first=batch_first, **rest)

    console = output()
    console.quiet = json  # print nothing but JSON
    certificates = []
    chosen = names() if all else list(targets)
    with console.status(f"auditing {', '.join(chosen)}") as status:

        def tell(target: str, finding: "Finding") -> None:
            status.update(f"auditing {target}: {finding.form} {finding.check}")

        for certificate in audit_many(chosen, claims, reading=reading, jobs=workers, progress=tell):
            certificates.append(certificate)
            _print(console, certificate, every=verbose or (len(certificate.settings["forms"]) == 1 and not all))
            status.update(f"auditing {', '.join(chosen[len(certificates) :])}")
    findings = [finding.verdict for certificate in certificates for finding in certificate.findings]
    passing = sum(certificate.passed for certificate in certificates)
    console.print(f"{_counts(findings)}; {passing} of {len(certificates)} targets pass")
    record = [certificate.to_dict() for certificate in certificates]
    if json:
        print_json(record)
    if out is not None:
        files.write_text(out, json_format.dumps(record, indent=1, ensure_ascii=False) + "\n")
        console.print(f"wrote {out}", markup=False, soft_wrap=True)
    if html is not None:
        from longspan.report.audit import audit_page

        files.write_text(html, audit_page(record))
        console.print(f"wrote {html}", markup=False, soft_wrap=True)
    return EXIT[overall(certificate.verdict for certificate in certificates)]


def _print(console: Console, certificate: "Certificate", every: bool) -> None:
    from longspan.audit.certificate import overall

    console.print(f"[bold]{escape(certificate.subject)}[/bold]", _verdict(certificate.verdict))
    for form in certificate.settings["forms"]:
        findings = [finding for finding in certificate.findings if finding.form == form["form"]]
        verdicts = [finding.verdict for finding in findings]
        if form["form"]:
            console.print(f"  {escape(form['form'])}: {_counts(verdicts)},", _verdict(overall(verdicts)))
        if every:
            console.print(_table(findings))
            continue
        for finding in findings:
            if not finding.passed:
                shown, style = finding.verdict.replace("fail", "FAIL"), STYLES[finding.verdict]
                console.print(f"    {shown}: {finding.line()}", style=style, markup=False)


def _table(findings: "Sequence[Finding]") -> Table:
    from longspan.audit.finding import number

    table = Table("verdict", "measured", "limit", "claim", box=None, padding=(0, 0, 0, 2))
    for finding in findings:
        numbers = (number(finding.measured), number(finding.limit))
        claim = f"{finding.check}: {finding.claim}"
        if finding.detail and not finding.passed:
            claim += f"\n{finding.detail}"
        table.add_row(_verdict(finding.verdict), *numbers, escape(claim))
    return table


def _counts(verdicts: "Sequence[Verdict]") -> str:
    """3 of 5 claims hold, 1 fails, 1 not measured"""
    failed, unmeasured = verdicts.count("fail"), verdicts.count("not measured")
    parts = [f"{verdicts.count('pass')} of {len(verdicts)} claims hold"]
    parts += [f"{failed} fail{'s' if failed == 1 else ''}"] if failed else []
    parts += [f"{unmeasured} not measured"] if unmeasured else []
    return ", ".join(parts)


def _verdict(verdict: "Verdict") -> str:
    style = STYLES[verdict]
    shown = "FAIL" if verdict == "fail" else verdict
    return f"[{style}]{shown}[/{style}]" if style else shown
