"""The layers of the design: each row imports only from rows above it."""

import ast
from pathlib import Path

import pytest

import longspan

SOURCE = Path(longspan.__file__).parent

# The rows of the design, first to last. The first holds single files; `longspan` itself, its `__main__` and what a
# user imports from the top are the face of the package and stand last.
ROWS = [
    {
        "config",
        "derivatives",
        "errors",
        "files",
        "graphs",
        "manifest",
        "native",
        "parsing",
        "pools",
        "precision",
        "registry",
        "recompute",
        "shapes",
    },
    {"attention"},
    {"nn"},
    {"models"},
    {"decode"},
    {"data"},
    {"hub"},
    {"tasks"},
    {"train"},
    {"measure"},
    {"audit"},
    {"arena"},
    {"inspect"},
    {"adapt"},
    {"probe"},
    {"demo"},
    {"report"},
    {"cli"},
    {"__init__", "__main__", "api"},
]
RANK = {layer: rank for rank, row in enumerate(ROWS) for layer in row}


def imported_names(path: Path, root: Path) -> list[tuple[int, str]]:
    """(line, full name) of every import in a file, wherever in the file it is."""
    package = ["longspan", *path.relative_to(root).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        found.extend((node.lineno, name) for name in names)
    return found


def imported(path: Path, root: Path) -> list[tuple[int, str]]:
    """(line, layer) of every import of longspan in a file."""
    split = ((line, name.split(".")) for line, name in imported_names(path, root))
    return [
        (line, parts[1])
        for line, parts in split
        if parts[0] == "longspan" and len(parts) > 1 and not parts[1].startswith("__")
    ]


def layer_of(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").parts[0]


def offences(root: Path) -> list[str]:
    """Every import from a row below, and every file or import that is in no row."""
    wrong = []
    for path in sorted(root.rglob("*.py")):
        where, own = path.relative_to(root), layer_of(path, root)
        if own not in RANK:
            wrong.append(f"{where}: {own} is in no row of the design")
            continue
        for line, layer in imported(path, root):
            if layer not in RANK:
                wrong.append(f"{where}:{line}: {layer} is in no row of the design")
            elif RANK[layer] > RANK[own]:
                wrong.append(f"{where}:{line}: {own} imports {layer}, a row below it")
    return wrong


# Tasks, fine-tuning, and the functions that use a loaded model ask for an ability of `models.base` (or of
# `models.series_base`), so that a new model can join without an edit. Of models they may import base classes, names and
# files, but no model.
BY_ABILITY = ("tasks", "hub/use", "hub/finetune.py")
MODELS_BY_ABILITY = {
    "base",
    "image_base",
    "pixel_base",
    "table_base",
    "series_base",
    "word_base",
    "registry",
    "presets",
    "folder",
}
WORD_TABLES = tuple(f"longspan.models.classics.{name}." for name in ("vector_files", "vocabulary", "word_table"))


def python_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def named_models(root: Path) -> list[str]:
    """Every import of a model where an ability should be asked for."""
    wrong = []
    for path in (path for part in BY_ABILITY for path in python_files(root / part)):
        for line, name in imported_names(path, root):
            module = name.removeprefix("longspan.models").removeprefix(".").partition(".")[0]
            allowed = module in MODELS_BY_ABILITY or name.startswith(WORD_TABLES)
            if name.startswith("longspan.models") and not allowed:
                wrong.append(f"{path.relative_to(root)}:{line}: {name} is a model; ask for an ability of models.base")
    return wrong


def test_tasks_and_uses_of_models_ask_for_abilities_only():
    assert named_models(SOURCE) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from longspan.models.electra import Electra", "longspan.models.electra.Electra"),
        ("from longspan.models.vision.vit import VisionTransformer", "longspan.models.vision.vit.VisionTransformer"),
        ("from longspan.models import encoder", "longspan.models.encoder"),
        ("import longspan.models.transformer_xl", "longspan.models.transformer_xl"),
        ("from ..models.decoder import Decoder", "longspan.models.decoder.Decoder"),
    ],
)
@pytest.mark.parametrize("folder", ["tasks", "hub"])
def test_an_import_of_a_model_is_found(tmp_path: Path, folder: str, line: str, name: str):
    file = {"tasks": "tasks/made_up.py", "hub": "hub/finetune.py"}[folder]
    (tmp_path / folder).mkdir()
    (tmp_path / file).write_text(f"from longspan.models.base import Model\n{line}\n")
    assert named_models(tmp_path) == [f"{file}:2: {name} is a model; ask for an ability of models.base"]


def test_no_layer_imports_from_one_below_it():
    assert offences(SOURCE) == []


def test_the_layer_test_reads_files():
    """Otherwise the check above would pass for nothing."""
    read = {layer_of(path, SOURCE) for path in SOURCE.rglob("*.py")}
    assert {"errors", "shapes", "config", "attention", "nn", "audit", "cli"} <= read
    everything = [layer for path in SOURCE.rglob("*.py") for _, layer in imported(path, SOURCE)]
    assert everything.count("errors") > 5 and everything.count("attention") > 5


@pytest.mark.parametrize(
    ("path", "line", "layer"),
    [
        ("attention/made_up.py", "from longspan.nn import norm", "nn"),
        ("attention/made_up.py", "import longspan.cli", "cli"),
        ("attention/made_up.py", "from longspan import train", "train"),
        ("attention/made_up.py", "from ..nn import norm", "nn"),
        ("attention/made_up.py", "from .. import report", "report"),
        ("attention/layouts/made_up.py", "from ...nn.norm import build_norm", "nn"),
        ("attention/made_up.py", "def late():\n    from longspan.models.bert import Bert", "models"),
        ("attention/made_up.py", "if TYPE_CHECKING:\n    import longspan.audit.claims as claims", "audit"),
        ("errors.py", "from longspan.attention.base import Attention", "attention"),
        ("tasks/made_up.py", "from longspan.train import loop", "train"),
        ("report/made_up.py", "from longspan.cli.main import run", "cli"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, path: str, line: str, layer: str):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line + "\n")
    (found,) = offences(tmp_path)
    assert found.startswith(f"{path}:") and f"imports {layer}, a row below it" in found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("attention/made_up.py", "from longspan import config"),
        ("attention/made_up.py", "from longspan.errors import InvalidInput"),
        ("attention/made_up.py", "from . import base"),
        ("attention/layouts/made_up.py", "from ..flash import DEAD"),
        ("attention/made_up.py", "import torch.nn as nn"),
        ("cli/made_up.py", "from longspan import __version__, audit"),
        ("__main__.py", "from longspan.cli.main import run"),
        ("report/made_up.py", "from longspan.audit import certificate"),
    ],
)
def test_allowed_imports_are_not_reported(tmp_path: Path, path: str, line: str):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line + "\n")
    assert offences(tmp_path) == []


def test_a_layer_that_the_design_does_not_know(tmp_path: Path):
    (tmp_path / "utils.py").write_text("")
    (tmp_path / "errors.py").write_text("from longspan.helpers import help\n")
    assert offences(tmp_path) == [
        "errors.py:1: helpers is in no row of the design",
        "utils.py: utils is in no row of the design",
    ]
