"""Model cards (Mitchell et al. 2019), from what the folder of a run or of a model knows; `data_card` has those of data.

What is known is filled in. What nobody recorded stays an empty field with a question, never a guess.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.adapt.heal.heal import RECORD as HEAL
from longspan.adapt.swap.write import RECORD as SWAP
from longspan.errors import InvalidInput
from longspan.measure.carbon import Assumptions
from longspan.models.folder import CONFIG, WEIGHTS
from longspan.parsing import printable, read_json, read_json_table
from longspan.train.history import History, read_history, stored_parameters
from longspan.train.run import CONFIG as RECIPE

TODO = "*To be filled in:*"
NOTE = "Fields without an answer were not recorded; fill them in before you"
LIGHTER = "lighter.json"  # of `longspan adapt`
MADE_BY = "Written by `longspan card`"  # how a card of ours is recognised
PEOPLE = ("Who made it, when, and whom can one ask?", "Under which licence may it be used?")
USE = ("For whom and for what is it meant?", "For what must it not be used?")
DATA = (
    "Where do the texts come from, who wrote them, in which languages and when?",
    "Did their authors agree? Which personal data are in them?",
    "Which groups of people are missing or rare?",
)
RISKS = (
    "Which errors are likely, and whom do they harm?",
    "Which probes were run, such as `longspan probe bias`, and what did they find?",
)
GROUPS = ("On which groups or topics was it evaluated separately?",)


def has_model(folder: Path) -> bool:
    """Whether a folder is a run, a model, or what `swap`, `heal` or `adapt` wrote."""
    return folder.is_dir() and any((folder / name).is_file() for name in (RECIPE, CONFIG, SWAP, HEAL))


def model_card(folder: Path) -> str:
    """The card of a run, or of a folder with a model, in Markdown."""
    if folder.is_dir() and not (folder / RECIPE).is_file() and has_model(folder):
        return _of_folder(folder)
    return _of_run(folder)


def _of_run(folder: Path) -> str:
    history = read_history(folder)
    task, model = dict(history.task), dict(history.model)
    energy_questions = () if history.energy is not None else ("How much energy did training take?",)
    return _card(
        folder,
        "the folder of the run",
        section(
            "Model",
            {
                "kind": model.get("name") or model.get("from"),
                "attention": _attention(model),
                "parameters": None if history.parameters is None else f"{history.parameters:,}",
                "other options": _options(model, {"name", "from", "attention"}),
            },
            PEOPLE,
        ),
        section("Intended use", {"trained for the task": task.get("name")}, USE),
        section("Training data", {"options of the task": _options(task, {"name"})}, DATA),
        section("Training", _training(history), ()),
        section("Evaluation", {**_metrics(history), **_lighter(folder)}, GROUPS),
        section("Environment", _energy(history.energy), energy_questions),
    )


def _of_folder(folder: Path) -> str:
    config = read_json_table(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    swap = read_json_table(folder / SWAP) if (folder / SWAP).is_file() else None
    heal = read_json_table(folder / HEAL) if (folder / HEAL).is_file() else None
    options = _table(config.get("options")) or {key: config[key] for key in config if key not in HIDDEN}
    count = stored_parameters(folder / WEIGHTS)
    energy = _table((heal or {}).get("energy")) or None
    made = {**_swapped(swap), **_healed(heal)}
    return _card(
        folder,
        "the folder of the model",
        section(
            "Model",
            {
                "kind": config.get("model") or config.get("model_type"),
                "attention": _attention(options),
                "numbers in its weights": None if count is None else f"{count:,}",
                "other options": _options(options, {"attention"}),
                **{key: config[key] for key in ("adapter", "quantization", "plugins") if key in config},
            },
            PEOPLE,
        ),
        section("Intended use", {}, USE),
        section("How it was made", made, () if made else ("From which weights and by which steps was it made?",)),
        section("Training data", {"healed on": heal.get("data")} if heal else {}, DATA),
        section("Evaluation", {**_heal_metrics(heal), **_lighter(folder)}, GROUPS),
        section("Environment", _energy(energy), () if energy else ("How much energy did training take?",)),
    )


HIDDEN = {"model", "model_type", "longspan", "options", "adapter", "quantization", "plugins", "id2label", "label2id"}


def _card(folder: Path, source: str, *sections: str) -> str:
    rows = [
        f"# Model card: {inline(folder.resolve().name)}",
        f"{MADE_BY} from {source}. {NOTE} share the model.",
        *sections,
        section("Risks and limits", {}, RISKS),
    ]
    return "\n\n".join(rows) + "\n"


def check_overwrite(path: Path) -> None:
    """Refuse to replace a file that is no card of ours."""
    if path.is_file() and MADE_BY.encode() not in path.read_bytes()[:4096]:
        raise InvalidInput(f"{path} is there and was not written by longspan card; name another file by --out")


def _swapped(swap: Mapping[str, Any] | None) -> dict[str, Any]:
    if swap is None:
        return {}
    layers = [layer for layer in swap.get("layers") or () if isinstance(layer, Mapping)]
    names = list(dict.fromkeys(str(_attention(layer)) for layer in layers))
    positions = _table(swap.get("positions"))
    return {
        "weights of": swap.get("source") or None,
        "SHA-256 of these weights": swap.get("source_sha256"),
        "attention replaced in": f"{len(layers)} layers, now {', '.join(names)}",
        "parameters that were never trained": swap.get("untrained_parameters"),
        **({"length": f"{positions.get('before')} → {positions.get('length')}"} if positions.get("length") else {}),
        **({"notes on the swap": "; ".join(map(str, swap["notes"]))} if swap.get("notes") else {}),
    }


def _healed(heal: Mapping[str, Any] | None) -> dict[str, Any]:
    if heal is None:
        return {}
    seconds = heal.get("seconds")
    return {
        "healed from": heal.get("folder"),
        "teacher": heal.get("teacher"),
        "healed with": _options(_table(heal.get("options")), set()),
        "tokens": heal.get("tokens"),
        "time of healing": f"{seconds / 60:.3g} minutes" if isinstance(seconds, (int, float)) else None,
    }


def _heal_metrics(heal: Mapping[str, Any] | None) -> dict[str, Any]:
    models = _table(_table((heal or {}).get("table")).get("models"))
    return {
        f"held-out loss of the {name} model": f"{loss:.4g}"
        for name, row in models.items()
        if isinstance(loss := _table(row).get("loss"), (int, float))
    } or ({} if heal is None else {"metrics": None})


def _lighter(folder: Path) -> dict[str, Any]:
    """What `longspan adapt` compared: a row for each model."""
    path = folder / LIGHTER
    if not path.is_file():
        return {}
    rows = read_json(path)
    known = {}
    for row in rows if isinstance(rows, Sequence) and not isinstance(rows, str) else ():
        metrics = _options({**_table(row), **_table(_table(row).get("metrics"))}, {"name", "metrics"})
        known[f"comparison, {_table(row).get('name')}"] = metrics
    return known


def _table(value: Any) -> dict[str, Any]:
    """A table of a file, or nothing where it has something else."""
    return dict(value) if isinstance(value, Mapping) else {}


def _training(history: History) -> dict[str, Any]:
    return {
        "steps": f"{history.step:,}" + ("" if history.finished else " (not finished)"),
        "time of all updates": f"{history.seconds / 60:.3g} minutes",
        "seed": history.seed,
        "options": _options(dict(history.train), {"seed", "steps"}),
        "notes": "; ".join(history.notes) or None,
    }


def _metrics(history: History) -> dict[str, Any]:
    return {name: f"{value:.4g}" for name, value in history.final.items()} or {"metrics": None}


def _energy(energy: Mapping[str, Any] | None) -> dict[str, Any]:
    if energy is None or not isinstance(energy.get("joules"), (int, float)):
        return {"energy": None}
    joules, assumed = float(energy["joules"]), Assumptions()
    grams = 1000 * assumed.kilograms(joules)
    return {
        "energy at the machine": f"{joules / 3600:.3g} Wh ({energy.get('by')})",
        "CO2e": f"{grams:.3g} g, with PUE {assumed.pue:g} and {assumed.intensity:.3g} kg/kWh",
    }


def _attention(model: Mapping[str, Any]) -> Any:
    value = model.get("attention")
    if isinstance(value, Mapping):
        return value.get("name", value)
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _options(values: Mapping[str, Any], without: set[str]) -> str | None:
    shown = [f"{key} = {value}" for key, value in values.items() if key not in without and value not in (None, "", [])]
    return ", ".join(shown) or None


def section(title: str, known: Mapping[str, Any], questions: Sequence[str]) -> str:
    """A heading, what is known as a list, and the questions that nothing recorded answers."""
    rows = [f"- **{inline(name)}**: {inline(value)}" for name, value in known.items() if value is not None]
    rows += [f"- **{inline(name)}**: {TODO} not recorded" for name, value in known.items() if value is None]
    rows += [f"- {TODO} {question}" for question in questions]
    return f"## {title}\n\n" + "\n".join(rows)


def inline(value: Any) -> str:
    """One line of Markdown in which nothing of the value is markup."""
    text = printable(str(value))
    for sign in "\\`*_[]<>#|":
        text = text.replace(sign, f"\\{sign}")
    return text


__all__ = ["NOTE", "TODO", "check_overwrite", "has_model", "inline", "model_card", "section"]
