"""`longspan audit`."""

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table

from longspan import files
from longspan.cli.inputs import AsJson, check_writable, print_json
from longspan.cli.tables import output
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.audit import Certificate, Finding

CLAIMS = Group("Claims: what is said of a module that is not ours", sort_key=1)
READING = Group("How to call it, where that cannot be seen", sort_key=2)


def _claim(help: str) -> Parameter:
    return Parameter(group=CLAIMS, negative="", help=help)


def _reading(help: str) -> Parameter:
    return Parameter(group=READING, negative="", help=help)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The claims, as flags."""

    causal: Annotated[bool, _claim("no output depends on a later input")] = False
    padding: Annotated[bool, _claim("masked positions change no other output")] = False
    streaming: Annotated[bool, _claim("reading in chunks gives what reading at once gives")] = False
    order: Annotated[float | None, _claim("work and memory grow at most as this power of the length")] = None
    any_length: Annotated[bool, _claim("lengths 1, 2, 7, 33 … work")] = False
    half_precision: Annotated[bool, _claim("finite in float16 and bfloat16")] = False
    save_load: Annotated[bool, _claim("the saved weights are all there is to it")] = False
    compile: Annotated[bool, _claim("torch.compile captures it whole and changes nothing")] = False
    export: Annotated[bool, _claim("torch.export with a dynamic length works")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Called:
    """How to call the module."""

    inputs: Annotated[Literal["auto", "features", "tokens"], _reading("what it takes")] = "auto"
    mask: Annotated[str | None, _reading("the keyword of its padding mask")] = None
    mask_means: Annotated[Literal["keep", "drop"] | None, _reading("what True means in that mask")] = None
    width: Annotated[int | None, _reading("width of its features")] = None
    vocabulary: Annotated[int | None, _reading("number of its token ids")] = None
    length: Annotated[int | None, _reading("length of the samples")] = None


def audit(
    *targets: str,
    all: Annotated[bool, Parameter(negative="", help="every registered mechanism")] = False,
    claimed: Claimed | None = None,
    called: Called | None = None,
    json: AsJson = False,
    out: Annotated[Path | None, Parameter(help="write the certificates to this file, as --json prints them")] = None,
    html: Annotated[Path | None, Parameter(help="write them as a page to this file")] = None,
    workers: Annotated[
        int | None, Parameter(help="targets audited side by side; one for each core unless said")
    ] = None,
    verbose: Annotated[bool, Parameter(negative="", help="print every finding, not only a line for each form")] = False,
) -> int:
    """Measure what is claimed of a module: is it causal, does padding leak, is it really linear?

    A mechanism of longspan is measured against the whole contract, in every form it has. Of any other module, or whole
    model (token ids in, logits out), exactly what you claim is measured, and always determinism and independence of
    the batch. Exit code 0: all claims hold; 1: one failed; 2: the command was wrong.

    **Examples:**

        longspan audit window
        longspan audit --all --out audit.json --html audit.html
        longspan audit mypackage.layers:make --causal --padding --order 1
        longspan audit mymodels:gpt2 --causal --padding --streaming

    Parameters
    ----------
    targets
        Names from `longspan list`, or `package.module:factory`: a module, or a class or function that makes one
        without arguments. The current folder is searched too.
    """
    from longspan.attention import names
    from longspan.audit import Claims, Reading, audit_many

    if all and targets:
        raise InvalidOption("--all means every mechanism; leave out the targets, or --all")
    if not all and not targets:
        raise InvalidOption("name what to audit, or give --all; `longspan list` shows the mechanisms")
    if workers is not None and workers < 1:
        raise InvalidOption(f"--workers must be at least 1, not {workers}")
    for path in (out, html):
        check_writable(path)
    claims = None if claimed is None or claimed == Claimed() else Claims(**vars(claimed))
    reading = None
    if called is not None:
        rest = {key: value for key, value in vars(called).items() if key not in ("inputs", "mask_means")}
        keeps = None if called.mask_means is None else called.mask_means == "keep"
        reading = Reading(kind=called.inputs, mask_keeps=keeps, **rest)

    console = output()
    console.quiet = json  # then JSON alone is printed
    certificates = []
    chosen = names() if all else list(targets)
    with console.status(f"auditing {', '.join(chosen)}") as status:

        def tell(target: str, finding: "Finding") -> None:
            status.update(f"auditing {target}: {finding.form} {finding.check}")

        for certificate in audit_many(chosen, claims, reading=reading, jobs=workers, progress=tell):
            certificates.append(certificate)
            _print(console, certificate, every=verbose or (len(certificate.settings["forms"]) == 1 and not all))
            status.update(f"auditing {', '.join(chosen[len(certificates) :])}")
    failed = sum(not certificate.passed for certificate in certificates)
    findings = [finding for certificate in certificates for finding in certificate.findings]
    good = sum(finding.passed for finding in findings)
    console.print(
        f"{good} of {len(findings)} findings pass, {len(certificates) - failed} of {len(certificates)} targets"
    )
    record = [certificate.to_dict() for certificate in certificates]
    if json:
        print_json(record)
    if out is not None:
        files.write_text(out, json_format.dumps(record, indent=1, ensure_ascii=False) + "\n")
        console.print(f"wrote {out}", markup=False)
    if html is not None:
        from longspan.report.audit import audit_page

        files.write_text(html, audit_page(record))
        console.print(f"wrote {html}", markup=False)
    return 1 if failed else 0


def _print(console: Console, certificate: "Certificate", every: bool) -> None:
    console.print(f"[bold]{certificate.subject}[/bold]", _verdict(certificate.passed))
    for form in certificate.settings["forms"]:
        findings = [finding for finding in certificate.findings if finding.form == form["form"]]
        good = sum(finding.passed for finding in findings)
        if form["form"]:
            verdict = _verdict(good == len(findings))
            console.print(f"  {form['form']}: {good} of {len(findings)} claims hold,", verdict)
        if every:
            table = Table("verdict", "measured", "limit", "claim", box=None, padding=(0, 0, 0, 2))
            for finding in findings:
                numbers = (f"{number:.3g}" for number in (finding.measured, finding.limit))
                table.add_row(_verdict(finding.passed), *numbers, f"{finding.check}: {finding.claim}")
            console.print(table)
        for finding in findings:
            if not finding.passed:
                detail = f" ({finding.detail})" if finding.detail else ""
                seen = f"measured {finding.measured:.3g}, limit {finding.limit:.3g}"
                console.print(f"    {finding.check}: {finding.claim}: {seen}{detail}", style="red", markup=False)


def _verdict(passed: bool) -> str:
    return "pass" if passed else "[red]FAIL[/red]"
