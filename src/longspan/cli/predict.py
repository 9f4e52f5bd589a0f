"""`longspan predict`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, Cut, Lines, load_model, print_json, read_lines


def predict(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    truncate: Cut = False,
    threshold: Annotated[
        float | None,
        Parameter(help="answers: how much better nothing must score to be the answer; there is always one unless said"),
    ] = None,
    top: Annotated[int, Parameter(help="answers to show with --json; 1")] = 1,
    batch: Annotated[int, Parameter(help="texts at a time; 32")] = 32,
    json: AsJson = False,
) -> None:
    """Say what a trained model makes of texts: labels, numbers, choices, tags or answers, one line for each.

    A line is a text. By tabs it is a pair of texts, a text and its choices, or a question and its passage, as the
    model was trained. Words to be tagged have spaces between them.

    **Examples:**

        longspan predict runs/sst2 "A charming journey." "Dull from start to end."
        longspan predict runs/wnut17 --file sentences.txt --json
        cat questions.tsv | longspan predict runs/squad --file -

    Parameters
    ----------
    path
        The folder of a run, or of a model that has a head for such a task.
    words
        Texts; each argument is one.
    """
    from longspan.tasks.predict import predict as answers_to

    texts = read_lines(words, file, "--file", "a text")
    found = load_model(path)
    made = answers_to(found, texts, truncate=truncate, threshold=threshold, top=top, batch=batch)
    if json:
        print_json([{"text": text, **answer} for text, answer in zip(texts, made)])
        return
    for answer in made:
        print(_line(answer))


def _line(answer: dict[str, Any]) -> str:
    if "label" in answer:
        return f"{answer['label']}\t{answer['probability']:.4f}"
    if "value" in answer:
        return f"{answer['value']:.4f}"
    if "choice" in answer:
        return f"{answer['choice']}\t{answer['text']}"
    if "tags" in answer:
        return " ".join(answer["tags"])
    return " ".join(answer["answer"].split())  # a passage may have line ends of its own
