"""What sort of mechanism a model of the arena has: its colour, on pages and in figures."""

from longspan.arena.models.registry import ENTRANTS

# Name: title, colour on white, colour on black. Told apart by people who see few colours, too: no red beside a green
# of one lightness; and a name stands at every mark.
KINDS = {
    "dense": ("dense", "#3d434d", "#d5d9e0"),
    "fixed-pattern": ("fixed pattern", "#0a66b7", "#64b0f4"),
    "learned-pattern": ("learned pattern", "#c4500a", "#ff9a5a"),
    "low-rank": ("low rank", "#00785a", "#45cfa5"),
    "kernel": ("kernel", "#8a2fb0", "#d490f0"),
    "memory": ("memory", "#b0245f", "#ff86b4"),
    "recurrent": ("recurrent", "#8a6500", "#e3bd4a"),
    "other": ("other", "#6b7280", "#9aa1ad"),
}


def kind(model: str) -> str:
    """Of a model by its name."""
    found = ENTRANTS[model].kind.replace(" ", "-") if model in ENTRANTS else "other"
    return found if found in KINDS else "other"


def title(model: str) -> str:
    """As it is printed; what another version had and this one has not is printed as it is."""
    return ENTRANTS[model].title if model in ENTRANTS else model


def style() -> str:
    """A colour `--k` for each kind, on white and on black."""

    def of(place: int) -> str:
        return " ".join(f".k-{name} {{ --k: {each[place]}; }}" for name, each in KINDS.items())

    return f"{of(1)}\n@media (prefers-color-scheme: dark) {{ {of(2)} }}\n"
