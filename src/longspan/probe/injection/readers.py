"""Read deepset's labelled prompts and BIPIA's attacks and e-mails. The texts are hostile and stay data."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.data.json_lines import parse
from longspan.data.sets.named import SETS
from longspan.data.text.text_files import lines
from longspan.errors import InvalidInput, Notice
from longspan.parsing import printable, read_json

DEEPSET = "prompt-injections"
FOLDER = "prompt_injection_bipia"
PARTS = ("train", "test")


@dataclass(frozen=True)
class Prompt:
    """A prompt of deepset's file: label 1 is an injection."""

    text: str
    label: int
    line: int
    part: str  # train or test


@dataclass(frozen=True)
class BipiaAttack:
    """An instruction that BIPIA hides in texts."""

    text: str
    kind: str
    part: str
    number: int
    code: bool


@dataclass(frozen=True)
class Email:
    """An e-mail of BIPIA, with a question and its answer."""

    context: str
    question: str
    ideal: str
    part: str
    line: int


def read_deepset(path: Path) -> list[Prompt]:
    """deepset/prompt-injections as JSON lines with `text` and `label`; the first 546 lines are its training rows."""
    first, last = SETS[DEEPSET].lines["test"]
    prompts: list[Prompt] = []
    seen: dict[str, tuple[int, int]] = {}
    for line, row in _objects(path, ("text", "label")):
        text, label = row["text"], row["label"]
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"{path}, line {line}: text must be a text that is not empty")
        if label not in (0, 1) or isinstance(label, bool):
            raise InvalidInput(f"{path}, line {line}: label must be 0 or 1, not {json.dumps(label)[:40]}")
        key = " ".join(text.split())
        if key in seen:
            before, other = seen[key]
            if label != other:
                raise InvalidInput(f"{path}, line {line}: the text of line {before} again, with another label")
            _again(path, line, before, "text")
            continue
        seen[key] = line, label
        prompts.append(Prompt(text, label, line, "test" if first <= line <= last else "train"))
    return prompts


def read_emails(path: Path, part: str) -> list[Email]:
    """BIPIA's e-mails: JSON lines with `context`, `question` and `ideal`."""
    emails: list[Email] = []
    seen: dict[tuple[str, str], int] = {}
    for line, row in _objects(path, ("context", "question", "ideal")):
        for name in ("context", "question", "ideal"):
            if not isinstance(row[name], str) or not row[name].strip():
                raise InvalidInput(f"{path}, line {line}: {name} must be a text that is not empty")
        key = row["context"], row["question"]
        if key in seen:
            _again(path, line, seen[key], "e-mail and question")
            continue
        seen[key] = line
        emails.append(Email(row["context"], row["question"].removeprefix("Q: "), row["ideal"], part, line))
    return emails


def read_attacks(path: Path, part: str, *, code: bool) -> list[BipiaAttack]:
    """BIPIA's attacks: an object of lists of texts by kind."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InvalidInput(f"{path}: expected an object of lists by kind of attack")
    attacks: list[BipiaAttack] = []
    seen: set[str] = set()
    for kind, texts in value.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InvalidInput(f"{path}: {json.dumps(kind)} must be a list of texts that are not empty")
        for entry, text in enumerate(texts, start=1):
            if text in seen:
                place = f"{path}, {json.dumps(kind)}, entry {entry}"
                warnings.warn(Notice(f"{place}: the text is there twice; it is counted once"), stacklevel=2)
                continue
            seen.add(text)
            attacks.append(BipiaAttack(text, printable(kind), part, len(attacks), code))
    return attacks


@dataclass(frozen=True)
class InjectionData:
    """What a data folder has; empty lists for files that are not there."""

    prompts: list[Prompt]
    attacks: list[BipiaAttack]
    emails: list[Email]


def read_folder(root: Path | None) -> InjectionData:
    """deepset's prompts and BIPIA's files by their published names in a folder of data sets."""
    if root is None:
        return InjectionData([], [], [])
    if not root.is_dir():
        raise InvalidInput(f"there is no folder {root}")
    deepset, bipia = root / SETS[DEEPSET].files["train"], root / FOLDER
    prompts = read_deepset(deepset) if deepset.is_file() else []
    attacks: list[BipiaAttack] = []
    emails: list[Email] = []
    if bipia.is_dir():
        for part in PARTS:
            attacks += read_attacks(bipia / f"text_attack_{part}.json", part, code=False)
            attacks += read_attacks(bipia / f"code_attack_{part}.json", part, code=True)
            emails += read_emails(bipia / f"email_{part}.jsonl", part)
    return InjectionData(prompts, attacks, emails)


def _objects(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with the fields that are needed."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    total = 0
    for line, text in enumerate(lines(path), start=1):
        if not text.strip():
            continue
        try:
            row = parse(text)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {line}: {error}") from None
        if not isinstance(row, dict):
            raise InvalidInput(f"{path}, line {line}: expected an object with {', '.join(needed)}")
        for name in needed:
            if name not in row:
                raise InvalidInput(f"{path}, line {line}: there is no {name!r}")
        total += 1
        yield line, row
    if not total:
        raise InvalidInput(f"{path} has no rows")


def _again(path: Path, line: int, before: int, what: str) -> None:
    warnings.warn(Notice(f"{path}, line {line}: the {what} of line {before} again; it is counted once"), stacklevel=3)


__all__ = [
    "BipiaAttack",
    "Email",
    "InjectionData",
    "Prompt",
    "read_attacks",
    "read_deepset",
    "read_emails",
    "read_folder",
]
