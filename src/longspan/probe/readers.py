"""Read probe files: CrowS-Pairs, StereoSet, WinoBias and Winogender, as their authors publish them.

Every error names the file and the line. The texts are data: nothing in them is ever run or shown unescaped.
"""

import csv
import gzip
import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput, Notice

CROWS = ("sent_more", "sent_less", "stereo_antistereo", "bias_type")
STEREOSET = ("stereotype", "anti-stereotype", "unrelated")
DIRECTIONS = ("stereo", "antistereo")
MOST_PRONOUNS = 2  # words of a pair of WinoBias that may differ
LARGEST = 2**28  # bytes of a file after unpacking


@dataclass(frozen=True)
class Pair:
    """A sentence that stereotypes more and one that stereotypes less."""

    more: str
    less: str
    category: str
    direction: str = "stereo"


@dataclass(frozen=True)
class Triple:
    """Three continuations of a context; the context is empty if the sentences are whole."""

    context: str
    stereotype: str
    anti: str
    unrelated: str
    category: str
    target: str


@dataclass(frozen=True)
class PronounTriple:
    """A sentence in three genders, as in Winogender."""

    occupation: str
    about_occupation: bool  # the pronoun means the occupation, not the other person
    he: str
    she: str
    they: str


def read_crows(path: Path) -> list[Pair]:
    """CrowS-Pairs (Nangia et al. 2020): a CSV file with sent_more, sent_less, stereo_antistereo and bias_type."""
    pairs: list[Pair] = []
    seen: dict[tuple[str, ...], int] = {}
    for line, row in _rows(path, CROWS, ","):
        more, less = row["sent_more"].strip(), row["sent_less"].strip()
        if not more or not less:
            raise InvalidInput(f"{path}, line {line}: a sentence is empty")
        if more == less:
            raise InvalidInput(f"{path}, line {line}: both sentences are the same")
        category, direction = row["bias_type"].strip(), row["stereo_antistereo"].strip()
        if not category:
            raise InvalidInput(f"{path}, line {line}: bias_type is empty")
        if direction not in DIRECTIONS:
            raise InvalidInput(
                f"{path}, line {line}: stereo_antistereo must be {' or '.join(DIRECTIONS)}, not {direction!r}"
            )
        if not _again(seen, (more, less), path, line):
            pairs.append(Pair(more, less, category, direction))
    return pairs


def _again(seen: dict[tuple[str, ...], int], texts: tuple[str, ...], path: Path, line: int, unit: str = "line") -> bool:
    """Whether these texts were seen before; a notice then names both places."""
    first = seen.setdefault(texts, line)
    if first == line:
        return False
    what = "pair" if len(texts) == 2 else "triple"
    text = f"{path}, {unit} {line}: the {what} of {unit} {first} again; it is counted once"
    warnings.warn(Notice(text), stacklevel=3)
    return True


def read_stereoset(path: Path) -> list[Triple]:
    """StereoSet (Nadeem et al. 2021) as three aligned lists; contexts with BLANK are whole sentences already."""
    value = _json(path)
    if not isinstance(value, dict) or any(not isinstance(value.get(name), list) for name in STEREOSET):
        raise InvalidInput(f"{path}: expected an object with the lists {', '.join(STEREOSET)}")
    lists = [value[name] for name in STEREOSET]
    if len({len(each) for each in lists}) != 1:
        raise InvalidInput(f"{path}: the three lists have {', '.join(str(len(each)) for each in lists)} entries")
    triples = []
    seen: dict[tuple[str, ...], int] = {}
    for number, entries in enumerate(zip(*lists)):
        for name, entry in zip(STEREOSET, entries):
            for key in ("context", "sentence", "bias_type", "target"):
                if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                    raise InvalidInput(f"{path}: entry {number} of {name} has no text {key!r}")
        first = entries[0]
        if any(entry["context"] != first["context"] for entry in entries):
            raise InvalidInput(f"{path}: the three entries {number} have different contexts")
        context = "" if "BLANK" in first["context"] else first["context"]
        stereotype, anti, unrelated = (entry["sentence"] for entry in entries)
        if not all(text.strip() for text in (stereotype, anti, unrelated)):
            raise InvalidInput(f"{path}: a sentence of entry {number} is empty")
        if _again(seen, (first["context"], stereotype, anti, unrelated), path, number, "entry"):
            continue
        triples.append(Triple(context, stereotype, anti, unrelated, first["bias_type"], first["target"]))
    if not triples:
        raise InvalidInput(f"{path} has no entries")
    return triples


def read_winobias(pro: Path, anti: Path, category: str) -> list[Pair]:
    """WinoBias (Zhao et al. 2018): two files whose lines differ only in the pronoun."""
    pairs, odd = [], []
    seen: dict[tuple[str, ...], int] = {}
    lines = [_text(path).splitlines() for path in (pro, anti)]
    if len(lines[0]) != len(lines[1]):
        raise InvalidInput(f"{pro} has {len(lines[0])} lines and {anti} has {len(lines[1])}; they must correspond")
    for number, (one, other) in enumerate(zip(*lines), start=1):
        more, less = (re.sub(r"^\d+ ", "", line).replace("[", "").replace("]", "").strip() for line in (one, other))
        if not more or not less:
            raise InvalidInput(f"{pro}, line {number}: a sentence is empty")
        words = [more.split(), less.split()]
        if len(words[0]) != len(words[1]) or sum(a != b for a, b in zip(*words)) > MOST_PRONOUNS:
            odd.append(number)
            continue
        # A few lines of the release have the same pronoun twice and say nothing.
        if more != less and not _again(seen, (more, less), pro, number):
            pairs.append(Pair(more, less, category))
    differ = f"of {pro} differ from those of {anti} in more than the pronoun"
    if 10 * len(odd) > len(lines[0]):
        raise InvalidInput(f"{len(odd)} lines {differ}, line {odd[0]} first; do the files correspond?")
    if odd:  # eleven of the release; one pair has two different stories
        warnings.warn(Notice(f"lines {', '.join(map(str, odd))} {differ}; they are left out"), stacklevel=2)
    if not pairs:
        raise InvalidInput(f"{pro} has no pairs")
    return pairs


def read_winogender(path: Path) -> list[PronounTriple]:
    """Winogender (Rudinger et al. 2018): all_sentences.tsv with sentid and sentence; `someone` forms are left out."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for line, row in _rows(path, ("sentid", "sentence"), "\t"):
        parts = row["sentid"].split(".")
        if len(parts) < 4 or parts[3] not in ("male", "female", "neutral"):
            raise InvalidInput(
                f"{path}, line {line}: expected occupation.person.answer.gender.txt, got {row['sentid']!r}"
            )
        forms = found.setdefault((parts[0], parts[1], parts[2]), {})
        if parts[3] in forms:
            raise InvalidInput(f"{path}, line {line}: {row['sentid']!r} stands there twice")
        forms[parts[3]] = row["sentence"]
    triples = []
    for (occupation, person, answer), forms in found.items():
        if set(forms) != {"male", "female", "neutral"}:
            raise InvalidInput(f"{path}: {occupation}.{person}.{answer} has only {', '.join(sorted(forms))}")
        if person != "someone":
            triples.append(PronounTriple(occupation, answer == "0", forms["male"], forms["female"], forms["neutral"]))
    return triples


def read_occupations(path: Path) -> dict[str, float]:
    """Winogender's occupations-stats.tsv: the share of women in US occupations, in percent."""
    shares: dict[str, float] = {}
    for line, row in _rows(path, ("occupation", "bls_pct_female"), "\t"):
        if row["occupation"] in shares:
            raise InvalidInput(f"{path}, line {line}: {row['occupation']!r} stands there twice")
        try:
            share = float(row["bls_pct_female"])
        except ValueError:
            share = float("nan")
        if not 0 <= share <= 100:
            raise InvalidInput(f"{path}, line {line}: {row['bls_pct_female']!r} is no percentage")
        shares[row["occupation"]] = share
    return shares


def _rows(path: Path, needed: Sequence[str], delimiter: str) -> Iterable[tuple[int, dict[str, str]]]:
    content = io.StringIO(_text(path), newline="")
    if delimiter == ",":
        reader = csv.reader(content, strict=True)
    else:  # their tab-separated files have quotation marks as they are
        reader = csv.reader(content, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    line, total = 1, 0
    try:
        head = next(reader, [])
        for name in needed:
            if name not in head:
                raise InvalidInput(f"{path}, line 1: there is no column {name!r}; it has {', '.join(head) or 'none'}")
        while True:
            line = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                break
            if not any(row):
                continue
            if len(row) != len(head):
                raise InvalidInput(f"{path}, line {line}: {len(row)} columns, and the first line has {len(head)}")
            total += 1
            yield line, dict(zip(head, row))
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {line}: {error}") from None
    if not total:
        raise InvalidInput(f"{path} has no rows")


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is no JSON file: {error}") from None


def _text(path: Path) -> str:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    if len(data) > LARGEST:
        raise InvalidInput(f"{path} has more than {LARGEST // 2**20} MiB; a probe file is smaller")
    try:
        return str(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None


__all__ = [
    "Pair",
    "PronounTriple",
    "Triple",
    "read_crows",
    "read_occupations",
    "read_stereoset",
    "read_winobias",
    "read_winogender",
]
