"""`longspan probe limits`: formal languages, trained short and tested long."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import comma_separated
from longspan.cli.inspect_report import Numbers, telling, write_findings
from longspan.errors import InvalidInput, InvalidOption


def limits(
    *,
    out: Annotated[Path, Parameter(help="a folder for results, page and charts; the same folder resumes")],
    task: Annotated[
        str,
        Parameter(help="languages, separated by commas: parity, first, dyck1, dyck2, agreement (default: parity)"),
    ] = "parity",
    models: Annotated[
        str | None,
        Parameter(help="which ones, separated by commas: lstm, transformer, no-positions, hard (default: all)"),
    ] = None,
    seeds: Annotated[int, Parameter(help="models of each kind (default: 3)")] = 3,
    max_length: Annotated[
        int, Parameter(help="longest word in training; tests go to eight times that (default: 8)")
    ] = 8,
    depth: Annotated[int, Parameter(help="deepest nesting in training (default: 4)")] = 4,
    steps: Annotated[int, Parameter(help="updates of each model (default: 600)")] = 600,
    width: Annotated[int, Parameter(help="width of the models (default: 32)")] = 32,
    words: Annotated[int, Parameter(help="test words of each length (default: 500)")] = 500,
    json: Numbers = False,
) -> None:
    """Train small models on short words of formal languages and test them on longer ones (Hahn 2020, Tran 2018).

    An LSTM stands beside Transformers with and without positions, and with hard attention, which reads one key. The
    folder gets a file for each trained model, limits.json, limits.html and a chart for each language.

    **Examples:**

        longspan probe limits --task parity --out runs/parity
        longspan probe limits --task dyck2,agreement --models lstm,transformer --seeds 5 --out runs/nested
        longspan probe limits --task first --max-length 20 --steps 3000 --out runs/first --json
    """
    from longspan import files
    from longspan.inspect.measures.findings import LineChart
    from longspan.probe.limits.experiment import MODELS, LimitOptions, run_cells
    from longspan.probe.limits.findings import MEANING, limit_findings
    from longspan.report.figures import standalone
    from longspan.report.inspect_report import draw, findings_json

    if seeds < 1:
        raise InvalidOption(f"--seeds must be at least 1, not {seeds}")
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out} is a file; give a folder")
    options = LimitOptions(longest=max_length, depth=depth, steps=steps, width=width, words=words)
    languages = comma_separated(task, "--task")
    kinds = tuple(MODELS) if models is None else comma_separated(models, "--models")
    with telling(1) as tell:
        cells = run_cells(languages, kinds, seeds, options, out, tell)
    findings = limit_findings(cells, options)
    facts = {"models": ", ".join(kinds), "seeds": seeds, "steps": steps, "longest word in training": max_length}
    files.write_text(out / "limits.json", findings_json("Formal limits", facts, findings, MEANING))
    for finding in findings:
        for figure in finding.figures:
            if isinstance(figure, LineChart):
                name = finding.name if figure.across == "length" else f"{finding.name}-{figure.across}"
                files.write_text(out / f"{name}.svg", standalone(draw(figure), figure.title))
    write_findings("Formal limits", facts, findings, out / "limits.html", json, caution=MEANING)


__all__ = ["limits"]
