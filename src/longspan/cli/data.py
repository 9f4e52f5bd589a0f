"""`longspan data`: the named sets, and what it takes to have one ready."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, print_json, progress
from longspan.cli.tables import output, short_bytes, short_number
from longspan.errors import InvalidInput
from longspan.files import undone_on_error

app = App(name="data", help="The named data sets: list them, and prepare one.")
DataFolder = Annotated[
    Path | None, Parameter(name="--data", help="the folder of data sets; LONGSPAN_DATA, or else the user's cache")
]


def data_folder(given: Path | None) -> Path | None:
    """The folder of data sets that was said, here or by LONGSPAN_DATA."""
    if given is None and os.environ.get("LONGSPAN_DATA"):
        given = Path(os.environ["LONGSPAN_DATA"])
    if given is not None and not given.is_dir():
        raise InvalidInput(f"{given} is no folder; --data or LONGSPAN_DATA names that of the data sets")
    return given


@app.command(name="list")
def list_sets(*, data: DataFolder = None, json: AsJson = False) -> None:
    """List the sets that recipes can name: what each is, whether it is there, and its size.

    `longspan data prepare` downloads a set that is not there, where that is possible.

    **Examples:**

        longspan data list
        longspan data list --data DATA --json
    """
    from longspan.data.sets import named as named_sets

    root = data_folder(data)
    rows = [_row(name, named_sets.paths(name, root)) for name in sorted(named_sets.SETS)]
    if json:
        return print_json(rows)
    table = Table("name", "task", "what it is", "there", "size", box=None, pad_edge=False)
    for row in rows:
        size = short_bytes(row["bytes"]) if row["bytes"] else ""
        table.add_row(row["name"], row["kind"], escape(row["what"]), row["there"], size)
    output().print(table)


def _row(name: str, paths: dict[str, Path]) -> dict[str, Any]:
    from longspan.data.sets import named as named_sets

    found = named_sets.find(name)
    here = [path for path in paths.values() if path.is_file()]
    if named_sets.is_generated(found):
        there = "generated"
    elif len(here) == len(paths):
        there = "yes"
    else:
        there = "can be downloaded" if named_sets.can_download(found) else "no"
    return {
        "name": name,
        "kind": found.kind,
        "what": found.what,
        "there": there,
        "bytes": sum(path.stat().st_size for path in here),
        "terms": named_sets.terms(found),
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
        Literal["bytes", "characters", "words", "bpe", "wordpiece", "unigram"], Parameter(help="how text is cut; bpe")
    ] = "bpe",
    size: Annotated[int, Parameter(help="most tokens of the vocabulary; 8000")] = 8000,
    lowercase: Annotated[bool, Parameter(help="make upper case lower, and drop accents")] = False,
    tokenizer: Annotated[Path | None, Parameter(help="the folder of a tokenizer, instead of learning one")] = None,
    shard_size: Annotated[int | None, Parameter(help="most tokens of a file")] = None,
    json: AsJson = False,
) -> None:
    """Make a set ready: download what is missing, check every file, count what it has, and cut texts into tokens.

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

    root, found = data_folder(data), named_sets.find(name)
    if out is not None and found.kind != "language":
        raise InvalidInput(f"{name} is for the task {found.kind}, which tokenises it itself; leave out --out")
    with progress(f"reading {name}", 1) as show:
        counted = preparing.obtain(name, root, show=lambda came, total: show(came / total if total else 0))
    vocabulary = None
    if out is not None:
        own = None if tokenizer is None else read_tokenizer(tokenizer)
        if tokenizer is not None and own is None:
            raise InvalidInput(f"{tokenizer} has no tokenizer")
        learned = TokenizerOptions(kind=kind, size=size, lowercase=lowercase)
        with Console(stderr=True).status(f"cutting {name} into tokens"), undone_on_error(out):
            made = preparing.tokenise(counted, out, learned=learned, tokenizer=own, shard=shard_size or SHARD)
        vocabulary = made.size
    if json:
        files = [each.plain() for each in counted]
        return print_json({"name": name, "terms": named_sets.terms(found), "vocabulary": vocabulary, "files": files})
    table = Table("split", "file", "checked", "counts", box=None, pad_edge=False)
    for each in counted:
        counts = ", ".join(f"{short_number(value)} {key}" for key, value in each.counts.items())
        table.add_row(each.split, escape(str(each.path)), "yes" if each.checked else "no checksum", counts)
    console = output()
    console.print(table)
    console.print(escape(f"{name}: {found.what}. Terms: {named_sets.terms(found)}"))
    if out is not None:
        console.print(escape(f"{out}: token files and the tokenizer, {vocabulary} tokens"))
