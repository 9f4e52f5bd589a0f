"""The models of the papers, by name: rows of a table, each a model of the registry with its options.

`longspan.models.build("gpt2", dropout=0.0)` makes one, `longspan show gpt2` says what it weighs and costs. A family
that differs from the Transformer by its mechanism only is a row here, not a file.

`parameters` is what the paper prints; `exact` is the count that its own description adds up to, which the tests hold
this package to; `remarks` say where the two differ, what was chosen where the paper is silent, and what is left out.
"""

from longspan.errors import UnknownName, suggest
from longspan.models.presets import albert, bart, classics, encoders, learned, llama, patterns, recurrence, vision
from longspan.models.presets.row import Preset
from longspan.models.presets.small import shrink

PRESETS: dict[str, Preset] = {
    **classics.ROWS,
    **encoders.ROWS,
    **albert.ROWS,
    **llama.ROWS,
    **bart.ROWS,
    **recurrence.ROWS,
    **patterns.ROWS,
    **learned.ROWS,
    **albert.ROWS,
    **vision.ROWS,
}


def names() -> list[str]:
    """The names of all presets."""
    return list(PRESETS)


def find(name: str) -> Preset:
    """A preset by its name."""
    if name not in PRESETS:
        raise UnknownName(f"no preset is called {name!r}: {suggest(name, PRESETS)}")
    return PRESETS[name]


__all__ = ["PRESETS", "Preset", "find", "names", "shrink"]
