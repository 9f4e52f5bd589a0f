"""Draw labelled prompts for detectors, and check that the files of chosen attacks are there."""

import random
from collections.abc import Sequence

from longspan.errors import InvalidInput
from longspan.probe.injection.readers import InjectionData, Prompt


def draw_prompts(prompts: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """Test prompts, half of them injections, drawn by the seed: no detector has learned from test rows."""
    draw, chosen = random.Random(f"{seed} prompts"), []
    for label in (1, 0):
        rows = [prompt for prompt in prompts if prompt.part == "test" and prompt.label == label]
        draw.shuffle(rows)
        chosen += rows[: (count + label) // 2]
    return chosen


def needed_families(names: Sequence[str] | None, data: InjectionData) -> None:
    """Refuse families whose files are not there, if they were asked for by name."""
    for name in names or ():
        lacking = (name == "deepset" and not data.prompts) or (name.startswith("bipia") and not data.attacks)
        if lacking:
            raise InvalidInput(f"the family {name} needs its files; give --data or the folder that LONGSPAN_DATA names")


__all__ = ["draw_prompts", "needed_families"]
