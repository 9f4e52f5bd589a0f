"""`longspan predict`: labels, numbers, choices, tags or answers for texts."""

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
        Parameter(
            help="for questions: answer nothing if that scores better by this much (default: always give an answer)"
        ),
    ] = None,
    top: Annotated[int, Parameter(help="answers to show with --json (default: 1)")] = 1,
    batch: Annotated[int, Parameter(help="texts per batch (default: 32)")] = 32,
    json: AsJson = False,
) -> None:
    """Apply a trained model to texts: print labels, numbers, choices, tags or answers, one line per text.

    Tabs separate the two texts of a pair, a text and its choices, or a question and its passage, depending on what the
    model was trained for. Spaces separate words to tag.

    **Examples:**

        longspan predict runs/sst2 "A charming journey." "Dull from start to end."
        longspan predict runs/wnut17 --file sentences.txt --json
        cat questions.tsv | longspan predict runs/squad --file -

    Parameters
    ----------
    path
        The folder of a run, or a model folder with a head for such a task.
    words
        Texts, one per argument.
    """
    from longspan.tasks.predict import predict as answers_to

    texts = read_lines(words, file, "--file", "a text")
    model = load_model(path)
    answers = answers_to(model, texts, truncate=truncate, threshold=threshold, top=top, batch=batch)
    if json:
        print_json([{"text": text, **answer} for text, answer in zip(texts, answers)])
        return
    for answer in answers:
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
    return " ".join(answer["answer"].split())  # the passage may contain line breaks
