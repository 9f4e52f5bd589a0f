"""Flags that had other names in earlier versions. The old names still work, and no help shows them."""

from collections.abc import Sequence

OLD: dict[tuple[str, ...], dict[str, str]] = {
    ("generate",): {"--prompts": "--file"},
    ("show",): {"--length": "--lengths"},
    ("audit",): {"--jobs": "--workers"},
    ("translate",): {"--batch": "--batch-tokens"},
    ("data", "prepare"): {"--shard": "--shard-size"},
}


def renamed(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with today's names of its flags."""
    for command, names in OLD.items():
        if tuple(arguments[: len(command)]) == command:
            return [_renamed(word, names) for word in arguments]
    return list(arguments)


def _renamed(word: str, names: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return f"{names[flag]}{equals}{value}" if flag in names else word


__all__ = ["OLD", "renamed"]
