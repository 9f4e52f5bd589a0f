"""`longspan adapt search`: which mechanism, window, width and depth for a task, under a budget."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.adapt_distill import read_plan
from longspan.cli.inputs import AsJson, Words, comma_separated, notices, whole_numbers
from longspan.cli.inspect_report import write_findings
from longspan.cli.training import Data, data_folder
from longspan.errors import InvalidInput, InvalidOption


def search(
    *recipe: Words,
    out: Annotated[Path, Parameter(help="the folder of the search; the same folder resumes it")],
    trials: Annotated[int, Parameter(help="trials in all, those that are done included (default: 20)")] = 20,
    mechanisms: Annotated[str, Parameter(help="names separated by commas (default: softmax,window,linear)")] = (
        "softmax,window,linear"
    ),
    windows: Annotated[str, Parameter(help="widths of windows (default: 16,64)")] = "16,64",
    widths: Annotated[str, Parameter(help="widths of the model (default: 64,128)")] = "64,128",
    depths: Annotated[str, Parameter(help="numbers of layers (default: 2,4)")] = "2,4",
    kv_heads: Annotated[str | None, Parameter(help="numbers of key heads (default: as many as heads)")] = None,
    head_dim: Annotated[int, Parameter(help="width of a head (default: 32)")] = 32,
    groups: Annotated[int, Parameter(help="groups of layers with a mechanism of their own (default: 1)")] = 1,
    latency: Annotated[float | None, Parameter(help="most milliseconds of a held-out batch")] = None,
    memory: Annotated[float | None, Parameter(help="most megabytes of weights")] = None,
    metric: Annotated[str, Parameter(help="the metric of the task to improve (default: loss)")] = "loss",
    retrain: Annotated[int, Parameter(help="train the front again with so many seeds (default: 0)")] = 0,
    seed: Annotated[int, Parameter(help="of the draws (default: 0)")] = 0,
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Search the mechanism, window, width and depth of a recipe's model with Optuna.

    Each trial trains the recipe and is measured on its held-out data: the metric, and the time of a batch. The result
    is the Pareto front: models that no other beats in both. A trial over `--latency` or `--memory` is kept out of it.
    An interrupted search resumes with the same command. The folder gets `search.json`, `search.html`
    and `search.svg`, the chart alone.

    **Examples:**

        longspan adapt search shakespeare-char --train.steps 200 --trials 12 --out runs/search
        longspan adapt search my.toml --mechanisms window,linear --depths 2,4,6 --latency 20 --out runs/search
        longspan adapt search my.toml --groups 2 --retrain 3 --out runs/search

    Parameters
    ----------
    recipe
        A recipe, a file or its name; then values, such as --train.steps 200.
    """
    from longspan import files
    from longspan.adapt.search.finding import CAUTION, search_finding
    from longspan.adapt.search.space import Space
    from longspan.adapt.search.study import Budget, Search
    from longspan.report.figures import standalone
    from longspan.report.inspect_report import draw

    if trials < 1 or retrain < 0:
        raise InvalidOption(f"--trials must be 1 or more and --retrain 0 or more, not {trials} and {retrain}")
    plan = read_plan(recipe)
    space = Space(
        comma_separated(mechanisms, "--mechanisms"),
        whole_numbers(windows, "--windows"),
        whole_numbers(widths, "--widths"),
        whole_numbers(depths, "--depths"),
        () if kv_heads is None else whole_numbers(kv_heads, "--kv-heads"),
        head_dim,
        groups,
    )
    budget = Budget(latency, memory)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with notices():
        work = Search(plan, space, out, metric=metric, budget=budget, data=data_folder(data, plan.data), seed=seed)
        say(f"{space.size} combinations of choices; up to {trials} trials")
        try:
            result = work.run(trials, say)
            if retrain:
                result = work.retrain(retrain, say)
        except KeyboardInterrupt:
            say(f"stopped; the same command resumes the search in {out}")
            return 130
    if not result.tried:
        raise InvalidInput(
            f"no trial of {out} could be trained: {work.last_reason or 'all failed'}. Correct the recipe or the "
            "choices, and give another folder"
        )
    facts = {"recipe": plan.source, "trials": len(result.tried), "metric": metric}
    finding = search_finding(result)
    for figure in finding.figures[:1]:  # the chart alone; without a finished trial there is none
        files.write_text(out / "search.svg", standalone(draw(figure), figure.title))
    write_findings("Architecture search", facts, [finding], out / "search.html", json, caution=CAUTION)
    return 0


__all__ = ["search"]
