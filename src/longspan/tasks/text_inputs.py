"""What tasks on texts share: files, tokenizer, held-out examples, and how a model reads a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from longspan import config
from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example, Examples
from longspan.data.order import Shuffled
from longspan.data.sets import named as named_sets
from longspan.data.text.tables import TableRow, rows
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model, TextHeads
from longspan.tasks.base import DataPaths, Task, head_output
from longspan.tasks.splits import drop_empty

EMPTY = ("drop", "refuse")
WORDS = TokenizerOptions(kind="wordpiece", size=8192, lowercase=True)


@dataclass(frozen=True, kw_only=True)
class TextTaskOptions(Task.Options):
    """The options of every task on texts of a set or of files."""

    set: str | None = option(None, "a named data set; see `longspan data list`")
    train: str | None = option(
        None, "a table (CSV, TSV, JSON, Parquet, hf:NAME) or a folder of texts, if no set is named"
    )
    held_out: str | None = option(None, "a held-out file; a share of the first unless given")
    test: str | None = option(None, "a test file")
    encoding: str | None = option(None, "encoding of the files; by their first bytes, or UTF-8, unless given")
    share: float = option(0.1, "share of the examples to hold out, if held_out is not given", low=0, high=0.9)
    limit: int | None = option(None, "most examples to train on, drawn by the seed", low=1)
    empty: str = option(
        "drop", "rows with an empty field: leave them out and say how many, or refuse the file", choices=EMPTY
    )
    tokenizer: TokenizerOptions = option(WORDS, "the tokenizer to learn, if no pretrained model has one")
    length: int = option(128, "most tokens of an example", low=4)
    batch: int = option(32, "examples per batch", low=1)


TextOptions = TypeVar("TextOptions", bound=TextTaskOptions)
Item = TypeVar("Item")


def with_set(options: TextOptions, task: str) -> TextOptions:
    """The options with those of the named set, which a recipe must not contradict."""
    if options.set is None:
        return options
    named = named_sets.find(options.set)
    if named.kind != task:
        raise InvalidOption(f"the set {options.set!r} is for the task {named.kind!r}, not {task!r}")
    defaults = {field.name: field.default for field in fields(options)}
    for name, value in named.options.items():
        given = getattr(options, name)
        if given != defaults[name] and config.plain(given) != config.plain(value):
            raise InvalidOption(f"{name} of the set {options.set!r} is {value!r}; leave it out")
    return replace(options, **named.options)


def files(options: TextTaskOptions, folders: DataPaths) -> dict[str, Path]:
    """The file of each split."""
    if (options.set is None) == (options.train is None):
        raise InvalidOption("[task] names a set, or a file to train on: one of the two")
    if options.set is not None:
        return named_sets.files(options.set, folders.data)
    given = {"train": options.train, "held_out": options.held_out, "test": options.test}
    return {split: Path(name) for split, name in given.items() if name is not None}


def read_rows(
    path: Path, wanted: Sequence[str], options: TextTaskOptions, *, optional: Sequence[str] = ()
) -> list[TableRow]:
    """The rows of a table with the `wanted` columns, and `optional` ones, whose fields may be empty.

    Rows with an empty field in a wanted column are left out or refused.
    """
    kept: list[TableRow] = []
    empty: list[tuple[TableRow, str]] = []
    for row in rows(path, [*wanted, *optional], getattr(options, "columns", None), options.encoding):
        name = next((name for name in wanted if not row.fields[name].strip()), None)
        if name is None:
            kept.append(row)
        elif options.empty == "refuse":
            raise InvalidInput(f"{row.where}: {name} is empty")
        else:
            empty.append((row, name))
    if not kept:
        raise InvalidInput(f"{path}: every row has an empty field; the first is {empty[0][0].where}, {empty[0][1]}")
    drop_empty(empty, path)
    return kept


def tokenizer_for(options: TextTaskOptions, given: Tokenizer | None, texts: Sequence[str]) -> Tokenizer:
    """The tokenizer of a pretrained model, if given, or one that is learned from the training texts."""
    return learn(options.tokenizer, texts) if given is None else given


def limited(examples: list[Item], limit: int | None, seed: int) -> list[Item]:
    """At most `limit` examples, drawn by the seed."""
    if limit is None or limit >= len(examples):
        return examples
    return [examples[number] for number in sorted(Shuffled(len(examples), seed, 0)[:limit])]


def data_of(
    splits: Mapping[str, Sequence[Example]], options: TextTaskOptions, tokenizer: Tokenizer, seed: int
) -> dict[str, Examples]:
    """The examples of each split in batches; only the training split is shuffled."""
    padding = tokenizer.pad or 0
    return {
        split: Examples(examples, options.batch, padding=padding, seed=seed, shuffle=split == "train")
        for split, examples in splits.items()
    }


def read(model: Model, batch: Batch, task: str) -> Tensor:
    """The output of the head for `task` on a batch; texts in groups are read as rows of their own."""
    reader, rows = TextHeads.require(model, task), flat(batch)
    segments = rows["segments"] if reader.segment_kinds else None
    return head_output(reader, reader.outputs(rows["ids"], key_mask=rows["mask"], segments=segments), task)


def flat(batch: Batch) -> Batch:
    """The tokens of a batch as rows: (examples, texts, tokens) becomes (examples · texts, tokens)."""
    rows = {name: batch[name] for name in ("ids", "mask", "segments")}
    return {name: tensor.flatten(0, 1) for name, tensor in rows.items()} if rows["ids"].dim() == 3 else rows


def padding_facts(splits: Mapping[str, Examples]) -> dict[str, Any]:
    """The number of examples, and how much of the batches is padding."""
    counts = {f"{split} examples": len(data.examples) for split, data in splits.items()}
    return {**counts, "padding": f"{100 * splits['train'].waste():.1f} %"}


__all__ = [
    "TextTaskOptions",
    "data_of",
    "files",
    "flat",
    "limited",
    "padding_facts",
    "read",
    "read_rows",
    "tokenizer_for",
    "with_set",
]
