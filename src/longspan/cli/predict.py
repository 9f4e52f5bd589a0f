"""`longspan predict`: labels, numbers, choices, tags or answers for texts, images, rows of tables and series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from longspan.cli.inputs import (
    AsJson,
    Cut,
    Lines,
    check_writable,
    load_model,
    notices,
    print_json,
    progress,
    read_lines,
)
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.hub import Pretrained


def predict(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    truncate: Cut = False,
    threshold: Annotated[
        float | None,
        Parameter(
            help="for questions: answer nothing if that scores better by this much (default: always give an answer)"
        ),
    ] = None,
    top: Annotated[int, Parameter(help="answers to show with --json (default: 1)")] = 1,
    batch: Annotated[int, Parameter(help="texts per batch (default: 32)")] = 32,
    horizon: Annotated[
        int | None, Parameter(help="for series: rows to forecast (default: as many as the model was evaluated on)")
    ] = None,
    out: Annotated[Path | None, Parameter(help="for series and tables: write the result to this CSV file")] = None,
    chart: Annotated[Path | None, Parameter(help="for series: draw past and forecast into this SVG file")] = None,
    resize: Annotated[
        bool, Parameter(negative="", help="for images: scale and convert files to what the model reads")
    ] = False,
    json: AsJson = False,
) -> None:
    """Apply a trained model to texts: print labels, numbers, choices, tags or answers, one line per text.

    A model of images reads image files and folders of them, one of rows a table (CSV, JSON lines, Parquet); both print
    a line for each. A model of series reads a table and prints the rows that follow its last value.

    Tabs separate the two texts of a pair, a text and its choices, or a question and its passage, depending on what the
    model was trained for. Spaces separate words to tag.

    **Examples:**

        longspan predict runs/sst2 "A charming journey." "Dull from start to end."
        longspan predict runs/wnut17 --file sentences.txt --json
        cat questions.tsv | longspan predict runs/squad --file -
        longspan predict runs/series-lstm sales.csv --horizon 24 --out forecast.csv
        longspan predict runs/houses new.csv --out priced.csv
        longspan predict runs/mnist-vit scans/ photo.png --resize

    Parameters
    ----------
    path
        The folder of a run, or a model folder with a head for such a task.
    words
        Texts, one per argument; for a model of series or rows, one table; for a model of images, files or folders.
    """
    from longspan.models.image_base import ImageHeads
    from longspan.models.series_base import SeriesModel
    from longspan.models.table_base import TableModel
    from longspan.tasks.predict import predict as answers_to

    for each in (out, chart):
        check_writable(each)
    texts = [] if not words and file is None else read_lines(words, file, "--file", "a text")
    model = load_model(path)
    if resize and not isinstance(model.model, ImageHeads):
        raise InvalidOption(f"--resize is for models of images, not for this {model.model.name}")
    if isinstance(model.model, SeriesModel):
        if len(words) != 1:
            raise InvalidOption("give one table to forecast, such as series.csv")
        _forecast(model, Path(words[0]), horizon, out, chart, json=json)
        return
    if horizon is not None or chart is not None:
        raise InvalidOption(f"--horizon and --chart are for models of series, not for this {model.model.name}")
    if isinstance(model.model, TableModel):
        if len(words) != 1:
            raise InvalidOption("give one table to predict from, such as new.csv")
        return _rows(model, Path(words[0]), out, json=json)
    if out is not None:
        raise InvalidOption(f"--out is for models of series and tables, not for this {model.model.name}")
    if isinstance(model.model, ImageHeads):
        return _images(model, [Path(name) for name in texts], resize=resize, batch=batch, json=json)
    texts = texts or read_lines(words, file, "--file", "a text")
    answers = answers_to(model, texts, truncate=truncate, threshold=threshold, top=top, batch=batch)
    if json:
        print_json([{"text": text, **answer} for text, answer in zip(texts, answers)])
        return
    for answer in answers:
        print(_line(answer))


def _forecast(
    model: "Pretrained", table: Path, horizon: int | None, out: Path | None, chart: Path | None, *, json: bool
) -> None:
    from longspan import files
    from longspan.report import series as charts
    from longspan.tasks.forecast import forecast

    with notices():
        result = forecast(model.model, table, horizon)
    if chart is not None:
        charts.write_forecast(chart, result, f"{table.name}: {len(result.values)} rows ahead")
    if out is not None:
        files.write_text(out, result.to_csv())
    if json:
        print_json(result.rows())
    elif out is not None:
        print(f"{out}: {len(result.values)} rows after {table}")
    else:
        print(result.to_csv(), end="")


def _rows(model: "Pretrained", table: Path, out: Path | None, *, json: bool) -> None:
    from longspan import files
    from longspan.tasks.predict_rows import predict_rows

    with notices(), Console(stderr=True).status(f"reading {table}"):
        result = predict_rows(model, table)
    if out is not None:
        files.write_text(out, result.to_csv())
    if json:
        print_json([{"line": row.line, **answer} for row, answer in zip(result.rows, result.answers)])
    elif out is not None:
        print(f"{out}: {len(result.answers):,} rows of {table}, with predicted_{result.target}")
    else:
        for answer in result.answers:
            print(_line(answer))


def _images(model: "Pretrained", paths: list[Path], *, resize: bool, batch: int, json: bool) -> None:
    from longspan.tasks.predict_images import image_paths, predict_images

    found = image_paths(paths)
    with progress("predicting", len(found)) as tell:
        answers = predict_images(model, found, resize=resize, batch=batch, progress=tell)
    if json:
        return print_json([{"file": str(path), **answer} for path, answer in zip(found, answers)])
    for path, answer in zip(found, answers):
        print(f"{path}\t{_line(answer)}")


def _line(answer: dict[str, Any]) -> str:
    if "label" in answer:
        return f"{answer['label']}\t{answer['probability']:.4f}"
    if "value" in answer:
        return f"{answer['value']:.4f}"
    if "choice" in answer:
        return f"{answer['choice']}\t{answer['text']}"
    if "tags" in answer:
        return " ".join(answer["tags"])
    return " ".join(answer["answer"].split())  # the passage may contain line breaks
