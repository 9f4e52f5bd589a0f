"""The reference pages of the documentation, written from the code when the documentation is built.

`python -m longspan.cli.reference_page FOLDER` writes commands.md (every command, from its `--help`), mechanisms.md and
models.md (every option, with type, default, limits and help).
"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longspan.cli.recipe_page import option_table

COMMANDS = """# Commands

Every command with its options, as `--help` prints them. `--json` prints the result for programs;
progress and errors go to standard error. Exit codes: 0 success, 1 a claim or a cell failed, 2 a wrong
command or a missing resource, 3 a claim that could not be measured.

"""
MECHANISMS = """# Options of the mechanisms

`longspan show NAME` prints the same. In Python an option is a keyword:
`longspan.MultiHead(512, heads=8, attention="window", window=256)`; on the command line it follows the
name: `--attention window:window=256`.
"""
MODELS = """# Options of the models

`longspan show NAME` prints the same. In Python: `longspan.create_model("decoder", width=64)`; in a
recipe: keys of `[model]`.
"""


def commands() -> str:
    """Every command, with the text of its help."""
    from longspan.cli.commands import app

    text = app.generate_docs(heading_level=1, usage_name="longspan")
    body = text[text.index("\n## longspan ") + 1 :]
    # cyclopts adds the program that runs to usage lines: `longspan list -m sphinx [OPTIONS]`.
    body = re.sub(r"^(longspan [a-z ]*?) ?-m [\w.]+", r"\1", body, flags=re.MULTILINE)
    return COMMANDS + re.sub(r"\n{3,}", "\n\n", body)


def mechanisms() -> str:
    """Every mechanism: paper, abilities and options."""
    from longspan.attention.registry import ATTENTION, describe

    return MECHANISMS + "".join(_section(describe(name)) for name in ATTENTION.entries)


def models() -> str:
    """Every kind of model, with its options."""
    from longspan.models.catalog import describe_model
    from longspan.models.registry import MODELS as KINDS

    return MODELS + "".join(_section(describe_model(name)) for name in KINDS.entries)


PAGES = {"commands.md": commands, "mechanisms.md": mechanisms, "models.md": models}


def write(folder: Path) -> None:
    """Write all pages; one that has not changed keeps its time, so that Sphinx does not read it again."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _section(row: Mapping[str, Any]) -> str:
    facts = [f"{row['paper']}."]
    if "order" in row:
        facts.append(f"Time: {row['order']}.")
    abilities = _abilities(row.get("supports", {}))
    if abilities:
        facts.append(f"Abilities: {', '.join(abilities)}.")
    options: Iterable[Mapping[str, Any]] = row["options"]
    table = option_table(options) if options else "No options.\n"
    return f"\n## {row['name']}\n\n{' '.join(facts)}\n\n{table}"


def _abilities(supports: Mapping[str, Any]) -> list[str]:
    return [name.replace("_", " ") for name, able in supports.items() if able is True]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
