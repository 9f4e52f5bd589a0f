"""Old names of renamed flags. They still work, but no help page shows them."""

from collections.abc import Sequence

OLD: dict[tuple[str, ...], dict[str, str]] = {
    ("generate",): {"--prompts": "--file"},
    ("show",): {"--length": "--lengths"},
    ("audit",): {"--jobs": "--workers"},
    ("translate",): {"--batch": "--batch-tokens"},
    ("data", "prepare"): {"--shard": "--shard-size"},
}


def modern_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with old flag names replaced by the current ones."""
    for command, names in OLD.items():
        if tuple(arguments[: len(command)]) == command:
            return [_modern(word, names) for word in arguments]
    return list(arguments)


def _modern(word: str, names: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return f"{names[flag]}{equals}{value}" if flag in names else word


__all__ = ["OLD", "modern_flags"]
