"""`longspan data`: list the named data sets, download and prepare one, and show what a file holds."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.data_show import DataFolder, show
from longspan.cli.inputs import AsJson, print_json, progress
from longspan.cli.tables import output, short_bytes, short_number
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput
from longspan.files import undone_on_error

app = App(name="data", help="List the named data sets, prepare one, or show what is in a file.")
app.command(show)


def data_folder(flag: Path | None) -> Path | None:
    """The folder of data sets: the one of --data, or else of LONGSPAN_DATA."""
    folder = flag
    if folder is None and os.environ.get("LONGSPAN_DATA"):
        folder = Path(os.environ["LONGSPAN_DATA"])
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; --data or LONGSPAN_DATA must name the folder of data sets")
    return folder


@app.command(name="list")
def list_sets(*, data: DataFolder = None, json: AsJson = False) -> None:
    """List the data sets that recipes can name: what each contains, whether it is present, and its size.

    `longspan data prepare` downloads a missing set, if possible.

    **Examples:**

        longspan data list
        longspan data list --data DATA --json
    """
    from longspan.data.sets import named as named_sets

    root = data_folder(data)
    rows = [_row(name, named_sets.paths(name, root)) for name in sorted(named_sets.SETS)]
    if json:
        return print_json(rows)
    table = Table("name", "task", "contents", "present", "size", box=None, pad_edge=False)
    for row in rows:
        size = short_bytes(row["bytes"]) if row["bytes"] else ""
        table.add_row(row["name"], row["kind"], escape(row["what"]), row["there"], size)
    output().print(table)


def _row(name: str, paths: dict[str, Path]) -> dict[str, Any]:
    from longspan.data.sets import named as named_sets

    data_set = named_sets.find(name)
    present = [path for path in paths.values() if path.is_file()]
    if named_sets.is_generated(data_set):
        there = "generated"
    elif len(present) == len(paths):
        there = "yes"
    else:
        there = "can be downloaded" if named_sets.can_download(data_set) else "no"
    return {
        "name": name,
        "kind": data_set.kind,
        "what": data_set.what,
        "there": there,
        "bytes": sum(path.stat().st_size for path in set(present)),
        "terms": named_sets.terms(data_set),
        "files": {split: str(path) for split, path in paths.items()},
    }


@app.command
def prepare(
    name: str,
    /,
    *,
    data: DataFolder = None,
    out: Annotated[Path | None, Parameter(help="write token files here; texts only")] = None,
    kind: Annotated[
        Literal["bytes", "characters", "words", "bpe", "wordpiece", "unigram"],
        Parameter(help="kind of tokenizer to learn (default: bpe)"),
    ] = "bpe",
    size: Annotated[int, Parameter(help="largest size of the vocabulary (default: 8000)")] = 8000,
    lowercase: Annotated[bool, Parameter(help="lowercase the text and drop accents")] = False,
    tokenizer: Annotated[
        Path | None, Parameter(help="use the tokenizer in this folder instead of learning one")
    ] = None,
    shard_size: Annotated[int | None, Parameter(help="most tokens per file")] = None,
    json: AsJson = False,
) -> None:
    """Prepare a data set: download missing files, verify and count them, and optionally tokenize texts.

    **Examples:**

        longspan data prepare wikitext2 --data DATA
        longspan data prepare wikitext2 --kind words --size 40000 --out wikitext2-words/
        longspan data prepare generated --out tokens/
    """
    from longspan.data import read_tokenizer
    from longspan.data.sets import named as named_sets
    from longspan.data.sets import prepare as preparing
    from longspan.data.text.token_files import SHARD
    from longspan.data.tokenizers.learn import TokenizerOptions

    root, data_set = data_folder(data), named_sets.find(name)
    if out is not None and data_set.kind != "language":
        raise InvalidInput(f"{name} is for the task {data_set.kind}, which tokenizes it itself; leave out --out")
    with progress(f"reading {name}", 1) as show:
        counted = preparing.obtain(name, root, show=lambda came, total: show(came / total if total else 0))
    vocabulary = None
    if out is not None:
        given = None if tokenizer is None else read_tokenizer(tokenizer)
        if tokenizer is not None and given is None:
            raise InvalidInput(f"{tokenizer} has no tokenizer")
        learned = TokenizerOptions(kind=kind, size=size, lowercase=lowercase)
        with Console(stderr=True).status(f"tokenizing {name}"), undone_on_error(out):
            used = preparing.tokenise(counted, out, learned=learned, tokenizer=given, shard=shard_size or SHARD)
        vocabulary = used.size
    terms = named_sets.terms(data_set)
    if json:
        files = [file.plain() for file in counted]
        return print_json({"name": name, "terms": terms, "vocabulary": vocabulary, "files": files})
    table = Table("split", "file", "checked", "counts", box=None, pad_edge=False)
    for file in counted:
        counts = ", ".join(f"{short_number(value)} {key}" for key, value in file.counts.items())
        table.add_row(file.split, escape(str(file.path)), "yes" if file.checked else "no checksum", counts)
    console = output()
    console.print(table)
    console.print(escape(f"{name}: {data_set.what}. Terms: {terms}"))
    if out is not None:
        console.print(escape(f"{out}: token files and the tokenizer, {vocabulary} tokens"), soft_wrap=True)
