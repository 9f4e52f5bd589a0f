"""The page docs/recipe-keys.md, every key of a recipe: `python -m longspan.cli.recipe_page` prints it from the code."""

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import Any

from longspan.cli.tables import limits

START = """# Keys of a recipe

Every key of a recipe's tables, with type, default, limits and help. The code writes this page
(`python -m longspan.cli.recipe_page > docs/recipe-keys.md`), and a test compares the two. `longspan
show task classify` and `longspan show train` print the same; `longspan recipe --task classify`
prints a recipe that has all of them.

Keys of [task] are flags without a prefix too: `held_out` is `--held-out`. `held_out_share` is
another name of `share`, `text_b` of `second`. Keys with a dot are in a table of their own:
`tokenizer.kind` is `kind` in `[task.tokenizer]`, or `--task.tokenizer.kind`.
"""
MODEL = """
## [model]

`longspan show NAME` lists the options of a kind of model, such as `longspan show decoder`.
"""


def page() -> str:
    """The whole page."""
    from longspan.tasks.registry import TASKS
    from longspan.train import recipe_keys

    parts = [START]
    for name in TASKS.entries:  # the tasks of longspan, not those of plugins
        task = recipe_keys.describe_task(name)
        parts.append(f"\n## [task] {name}\n\n{fill(task['summary'] + '.', 100)}\n\n{option_table(task['keys'])}")
    parts.append(f"{MODEL}\n{option_table(recipe_keys.MODEL_KEYS)}")
    parts.append(f"\n## [train]\n\n{option_table(recipe_keys.describe_train()['keys'])}")
    return "".join(parts)


def option_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A table of options or keys: name, type, default, limits, help."""
    from longspan.train.recipe_keys import spell_default, spell_type

    lines = ["| key | type | default | limits | help |", "|---|---|---|---|---|"]
    for row in rows:
        default = spell_default(row)
        bounds = limits({"choices": None, **row})
        cells = [f"`{row['name']}`", spell_type(row), f"`{default}`" if default else "", bounds, row["help"]]
        lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
