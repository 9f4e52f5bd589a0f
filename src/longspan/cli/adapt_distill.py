"""`longspan adapt distill` and `share`: a smaller student of a trained model, and what it costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from longspan.cli.inputs import AsJson, Words, notices, print_json
from longspan.cli.tables import output, short_bytes, short_number
from longspan.cli.training import Data, data_folder, run_training
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.models.base import Model
    from longspan.train.recipe import Recipe

Out = Annotated[Path, Parameter(help="the folder of the run")]
REPORT = "lighter.json"


def distill(
    teacher: str,
    *recipe: Words,
    out: Out,
    layers: Annotated[int | None, Parameter(help="layers of the student (default: the teacher's)")] = None,
    attention: Annotated[str | None, Parameter(help="another attention for the student")] = None,
    kind: Annotated[str, Parameter(help="soft, hard, or triple (DistilBERT)")] = "soft",
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Train a smaller student of a trained model, and compare the two.

    The student has the teacher's shape with fewer layers or another attention; `--model.NAME` changes any other option.
    It starts from the teacher's embeddings, heads and evenly spaced layers (`--distill.initialise false`: from nothing)
    and learns the recipe's task with the teacher's outputs. `longspan resume` continues the run; at the end
    `lighter.json` in its folder has size, time of a batch and metrics of both. A recipe with a table
    [distill] does the same under `longspan train`.

    **Examples:**

        longspan adapt distill runs/minilm-sst2 minilm-sst2 --layers 3 --out runs/small
        longspan adapt distill runs/bert bert-tiny --kind triple --layers 1 --out runs/tiny
        longspan adapt distill runs/minilm-sst2 minilm-sst2 --layers 3 --distill.temperature 4 --out runs/small

    Parameters
    ----------
    teacher
        The trained model: a folder, a run, or package:NAME.
    recipe
        A recipe, a file or its name, for task and training; then values, such as --train.steps 300.
    """
    changes: dict[str, Any] = {} if layers is None else {"layers": layers}
    if attention is not None:
        changes["attention"] = attention
    return _student(teacher, recipe, changes, {"kind": kind}, out=out, data=data, json=json)


def share(
    model: str,
    *recipe: Words,
    out: Out,
    groups: Annotated[int, Parameter(help="groups of layers that share weights; 1: all layers")] = 1,
    weights: Annotated[str, Parameter(help="which weights a group shares: all, attention or feedforward")] = "all",
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Let the layers of a trained model share weights (ALBERT), train it with the model as teacher, and compare.

    Sharing cuts parameters and storage, not the time of a pass: the report shows both.

    **Examples:**

        longspan adapt share runs/minilm-sst2 minilm-sst2 --groups 2 --out runs/shared

    Parameters
    ----------
    model
        The trained model: a folder, a run, or package:NAME.
    recipe
        A recipe, a file or its name, for task and training; then values, such as --train.steps 300.
    """
    changes = {"groups": groups, "share": weights}
    return _student(model, recipe, changes, {}, out=out, data=data, json=json)


def _student(
    teacher: str,
    words: Sequence[str],
    changes: Mapping[str, Any],
    distill: Mapping[str, Any],
    *,
    out: Path,
    data: Path | None,
    json: bool,
) -> int:
    from longspan import hub
    from longspan.adapt.distill.student import student_recipe
    from longspan.models import folder
    from longspan.train.run import RESULT

    plan = read_plan(words)
    own = {name: value for name, value in plan.model.items() if name in given_model(words)}
    with notices():
        plan = student_recipe(plan, teacher, {**changes, **own}, {**distill, **plan.extras.get("distill", {})})
    root = data_folder(data, plan.data)
    code = train_plan(plan, out, root)
    if code:
        return code
    models = {"teacher": hub.load(teacher).model, "student": folder.load(out / RESULT)}
    return report(models, out, root, json=json)


def read_plan(words: Sequence[str]) -> "Recipe":
    """The recipe that the words name, with their values."""
    from longspan.cli.own_data import read_words
    from longspan.train import recipe as recipes

    file, flags = read_words(words)
    if file is None:
        raise InvalidOption("name a recipe for task and training, such as minilm-sst2 or my.toml")
    return recipes.read(file, flags.overrides(file))


def given_model(words: Sequence[str]) -> set[str]:
    """The options of the model that were given as values, as `--model.heads 4`."""
    from longspan.cli.own_data import read_words

    return {name.split(".")[1] for name in read_words(words)[1].dotted if name.startswith("model.")}


def train_plan(plan: "Recipe", out: Path, data: Path | None) -> int:
    """Train a recipe in a folder, as `longspan train` does; the exit code."""
    from longspan.train import recipe as recipes

    def make(run: Any, processes: Any) -> Any:
        return recipes.begin(plan, run, data=data, processes=processes)

    return run_training(out, make, quiet=True)


def report(models: "Mapping[str, Model]", run: Path, data: Path | None, *, json: bool) -> int:
    """Compare models on the held-out data of a run, and keep the rows in its folder."""
    from json import dumps

    from longspan import files
    from longspan.adapt.comparison import compare

    rows = compare(models, run, data=data)
    files.write_text(run / REPORT, dumps(rows, indent=1) + "\n")
    if json:
        print_json({"run": str(run), "models": rows})
        return 0
    names = list(dict.fromkeys(name for row in rows for name in row.get("metrics", {})))[:4]
    table = Table("model", "parameters", "adapter", "size", "ms/batch", *names, box=None, pad_edge=False)
    for row in rows:
        metrics = [f"{row['metrics'][name]:.4g}" if name in row.get("metrics", {}) else "–" for name in names]
        added = short_number(row["adapter"]) if row["adapter"] else "–"
        taken = f"{row['milliseconds']:.1f}" if "milliseconds" in row else "–"
        size = short_bytes(row["bytes"])
        table.add_row(row["name"], short_number(row["parameters"]), added, size, taken, *metrics)
    output().print(table)
    return 0
