"""The user's questions: a table with the columns question and answer and, if there are any, options and set."""

import json
import warnings
from pathlib import Path
from typing import Any

from longspan.data.text import tables
from longspan.errors import InvalidInput, Notice
from longspan.probe.prompts.questions import Question

OWN = "own"
SEPARATOR = "|"  # between options in a CSV file


def read_questions(path: Path) -> list[Question]:
    """The questions of a .csv, .tsv, .json, .jsonl or .parquet file; faults are named by their line."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for row in tables.rows(path):
        for column in ("question", "answer"):
            if column not in row.fields:
                raise InvalidInput(f"{row.where}: there is no column {column!r}; it has {', '.join(row.fields)}")
            if not row.fields[column].strip():
                raise InvalidInput(f"{row.where}: the {column} is empty")
        text, answer = row.fields["question"].strip(), row.fields["answer"].strip()
        if text in seen:
            notice = f"{row.where}: the question of line {seen[text]} again; it is counted once"
            warnings.warn(Notice(notice), stacklevel=2)
            continue
        seen[text] = row.line
        options = _options(row)
        if options and answer not in options:
            raise InvalidInput(f"{row.where}: the answer {answer!r} is none of the options {', '.join(options)}")
        name = row.fields.get("set", "").strip() or OWN
        chance = 1 / len(options) if options else 0.0
        questions.append(Question(name, text, answer, options, row.fields.get("steps", "").strip(), text, chance))
    return questions


def _options(row: tables.TableRow) -> tuple[str, ...]:
    """From a list in JSON, or from text with | between the options."""
    text = row.fields.get("options", "").strip()
    if not text:
        return ()
    parts: list[Any] = list(text.split(SEPARATOR))
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"{row.where}: options begin like a JSON list and are none: {error}") from None
    if not all(isinstance(part, str) and part.strip() for part in parts):
        raise InvalidInput(f"{row.where}: expected options as texts, separated by {SEPARATOR}, got {text!r}")
    options = tuple(part.strip() for part in parts)
    if len(set(options)) < max(2, len(options)):
        raise InvalidInput(f"{row.where}: expected two or more different options, got {', '.join(options)}")
    return options


__all__ = ["OWN", "read_questions"]
