"""`longspan predict`: labels, numbers, choices, tags or answers for texts, and forecasts for series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, Cut, Lines, check_writable, load_model, notices, print_json, read_lines
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
    out: Annotated[Path | None, Parameter(help="for series: write the forecast to this CSV file")] = None,
    chart: Annotated[Path | None, Parameter(help="for series: draw past and forecast into this SVG file")] = None,
    json: AsJson = False,
) -> None:
    """Apply a trained model to texts: print labels, numbers, choices, tags or answers, one line per text.

    A model of series reads a table (.csv, .tsv, .jsonl) and prints the rows that follow its last value.

    Tabs separate the two texts of a pair, a text and its choices, or a question and its passage, depending on what the
    model was trained for. Spaces separate words to tag.

    **Examples:**

        longspan predict runs/sst2 "A charming journey." "Dull from start to end."
        longspan predict runs/wnut17 --file sentences.txt --json
        cat questions.tsv | longspan predict runs/squad --file -
        longspan predict runs/series-lstm sales.csv --horizon 24 --out forecast.csv

    Parameters
    ----------
    path
        The folder of a run, or a model folder with a head for such a task.
    words
        Texts, one per argument; for a model of series, one table.
    """
    from longspan.models.series_base import SeriesModel
    from longspan.tasks.predict import predict as answers_to

    for each in (out, chart):
        check_writable(each)
    texts = [] if not words and file is None else read_lines(words, file, "--file", "a text")
    model = load_model(path)
    if isinstance(model.model, SeriesModel):
        if len(words) != 1:
            raise InvalidOption("give one table to forecast, such as series.csv")
        _forecast(model, Path(words[0]), horizon, out, chart, json=json)
        return
    if horizon is not None or out is not None or chart is not None:
        raise InvalidOption(f"--horizon, --out and --chart are for models of series, not for this {model.model.name}")
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
