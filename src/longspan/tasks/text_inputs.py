"""What tasks on texts share: the files of a recipe, its tokenizer, and how a batch is read by a model with heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from longspan import config
from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example, Examples
from longspan.data.sets import named as named_sets
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model, TextHeads
from longspan.tasks.base import DataPaths, Task, head_output

WORDS = TokenizerOptions(kind="wordpiece", size=8192, lowercase=True)


@dataclass(frozen=True, kw_only=True)
class TextTaskOptions(Task.Options):
    """The options of every task on texts of a set or of files."""

    set: str | None = option(None, "a named set; `longspan data list` has them")
    train: str | None = option(None, "a file, where no set is named")
    held_out: str | None = option(None, "another file; a share of the first unless given")
    test: str | None = option(None, "a third file")
    encoding: str | None = option(None, "of the files; what their first bytes say, or UTF-8, unless given")
    share: float = option(0.1, "of the examples that is held out, where it has no file of its own", low=0, high=0.9)
    limit: int | None = option(None, "at most so many examples to train on, drawn by the seed", low=1)
    tokenizer: TokenizerOptions = option(WORDS, "how text is cut into tokens, where no pretrained model says it")
    length: int = option(128, "most tokens of an example", low=4)
    batch: int = option(32, "examples of a batch", low=1)


def with_set(options: Any, kind: str) -> Any:
    """Options with those that a named set has; what the recipe says itself must not be otherwise."""
    if options.set is None:
        return options
    found = named_sets.find(options.set)
    if found.kind != kind:
        raise InvalidOption(f"the set {options.set!r} is for the task {found.kind!r}, not {kind!r}")
    usual = {item.name: item.default for item in fields(options)}
    for name, value in found.options.items():
        given = getattr(options, name)
        if given != usual[name] and config.plain(given) != config.plain(value):
            raise InvalidOption(f"{name} of the set {options.set!r} is {value!r}; leave it out")
    return replace(options, **found.options)


def files(options: Any, folders: DataPaths) -> dict[str, Path]:
    """The files by split."""
    if (options.set is None) == (options.train is None):
        raise InvalidOption("[task] names a set, or a file to train on: one of the two")
    if options.set is not None:
        return named_sets.files(options.set, folders.data)
    given = {"train": options.train, "held_out": options.held_out, "test": options.test}
    return {split: Path(name) for split, name in given.items() if name is not None}


def tokenizer_for(options: Any, given: Tokenizer | None, texts: Sequence[str]) -> Tokenizer:
    """The tokenizer of the model that is trained further, or one that is learned from the training texts."""
    return learn(options.tokenizer, texts) if given is None else given


def split_off(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Which examples are trained on and which are held out, drawn once for a run."""
    from longspan.data.order import Shuffled

    cut = max(1, round(count * share))
    if count - cut < 1:
        raise InvalidInput(f"there are {count} examples, too few to hold some out; give held_out a file")
    order = Shuffled(count, seed, 0)[:]
    return sorted(order[cut:]), sorted(order[:cut])


def limited(examples: list[Any], limit: int | None, seed: int) -> list[Any]:
    """At most so many, drawn."""
    from longspan.data.order import Shuffled

    if limit is None or limit >= len(examples):
        return examples
    return [examples[number] for number in sorted(Shuffled(len(examples), seed, 0)[:limit])]


def data_of(
    splits: Mapping[str, Sequence[Example]], options: Any, tokenizer: Tokenizer, seed: int
) -> dict[str, Examples]:
    """The examples of each split in batches; only those that are trained on are shuffled."""
    padding = tokenizer.pad or 0
    return {
        split: Examples(examples, options.batch, padding=padding, seed=seed, shuffle=split == "train")
        for split, examples in splits.items()
    }


def read(model: Model, batch: Batch, task: str) -> Tensor:
    """The output of the head for `task` on a batch."""
    reader = TextHeads.require(model, task)
    segments = batch["segments"] if reader.segment_kinds else None
    return head_output(reader, reader.outputs(batch["ids"], key_mask=batch["mask"], segments=segments), task)


def padding_facts(made: Mapping[str, Examples]) -> dict[str, Any]:
    """How many examples there are, and how much of the batches is padding."""
    counts = {f"{split} examples": len(data.examples) for split, data in made.items()}
    return {**counts, "padding": f"{100 * made['train'].waste():.1f} %"}


__all__ = [
    "TextTaskOptions",
    "data_of",
    "files",
    "limited",
    "padding_facts",
    "read",
    "split_off",
    "tokenizer_for",
    "with_set",
]
