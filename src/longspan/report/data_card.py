"""Data cards: datasheets (Gebru et al. 2021) of a file or a named set, from what can be counted.

What nobody can count, such as where texts come from and who agreed, stays a question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.manifest import facts
from longspan.report.card import NOTE, inline, section

LABELS = 20  # labels that are listed


@dataclass(frozen=True)
class NamedSource:
    """What is known of a data set that longspan has by name."""

    name: str
    what: str
    terms: str
    addresses: Sequence[str] = ()


def data_card(
    found: Mapping[str, Any],
    files: Sequence[Path],
    *,
    texts: Mapping[str, Any] | None = None,
    named: NamedSource | None = None,
) -> str:
    """The card of data, in Markdown; `found` is a survey, as of `longspan data show --json`, `texts` its text facts."""
    title = Path(str(found["file"])).name if named is None else named.name
    sections = [
        f"# Data card: {inline(title)}",
        f"Written by `longspan card` from the files. {NOTE} share the data.",
        section(
            "Motivation",
            {} if named is None else {"what it is": named.what},
            ("For what purpose, by whom and with whose money was it made?",),
        ),
        section("Composition", _composition(found), ("What does a row stand for, and which rows are missing?",)),
        section("Texts", _texts(texts), ("In which languages and dialects are they, and who wrote them?",))
        if texts is not None
        else "",
        section(
            "Collection",
            {} if named is None else {"addresses": ", ".join(named.addresses) or None},
            (
                "How, when and from where was it collected, and how were rows chosen?",
                "Do the people in it know, and did they agree? Can they withdraw?",
            ),
        ),
        section(
            "Preparation and labels",
            _labels(found),
            ("How was it cleaned, and is the raw data kept?", "Who labelled it, with which instructions and pay?"),
        ),
        section(
            "Uses",
            {},
            ("For what was it used already?", "For what should it not be used?", "Which groups are missing or rare?"),
        ),
        section(
            "Distribution and maintenance",
            {"licence and citation": None if named is None else named.terms, **_checksums(files)},
            ("Who maintains it, and where are errors reported?",),
        ),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _composition(found: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        "rows": f"{found['rows']:,}" + (f" in {found['documents']:,} documents" if "documents" in found else ""),
        "format": found["format"] + (f", {found['encoding']}" if "encoding" in found else ""),
    }
    if "height" in found:
        known["size of an image"] = f"{found['height']} × {found['width']} × {found['channels']}"
    if found.get("columns"):
        known["columns"] = ", ".join(
            f"{column['name']} ({column['use']})" if column.get("use") else column["name"]
            for column in found["columns"]
        )
    for column, units in (found.get("lengths") or {}).items():
        for unit, numbers in ({"": units} if column == "tokens" else units).items():
            spread = ", ".join(f"{name} {value:,.6g}" for name, value in numbers.items())
            known[f"length of {column}" + (f" in {unit}" if unit else "")] = spread
    if "empty" in found:
        known["empty rows"] = _with_first(found["empty"]["rows"], found["empty"]["first"])
    duplicates = found["duplicates"]
    known["duplicates"] = _with_first(duplicates["rows"], duplicates["first"])
    if duplicates.get("other_label"):
        known["duplicates with another label"] = f"{duplicates['other_label']:,}"
    for shared in found.get("shared") or ():
        known[f"rows of {Path(shared['file']).name} that are here too"] = f"{shared['shared']:,} of {shared['rows']:,}"
    return known


def _with_first(count: int, lines: Sequence[str]) -> str:
    return f"{count:,}" + (f", such as {lines[0]}" if lines else "")


def _texts(texts: Mapping[str, Any] | None) -> dict[str, Any]:
    if texts is None:
        return {}
    shares = ", ".join(f"{name} {100 * share:.3g} %" for name, share in texts["scripts"].items())
    return {
        "scripts": f"{shares} of the letters (first {texts['rows']:,} rows)" if shares else "no letters",
        **{f"rows with {name}": f"{count:,}" for name, count in texts["rows_with"].items()},
    }


def _labels(found: Mapping[str, Any]) -> dict[str, Any]:
    labels = found.get("labels") or {}
    if not labels:
        return {}
    total = sum(labels.values())
    shown = [f"{name} {count:,} ({100 * count / total:.1f} %)" for name, count in list(labels.items())[:LABELS]]
    more = f" and {len(labels) - LABELS:,} more" if len(labels) > LABELS else ""
    return {"labels": ", ".join(shown) + more}


def _checksums(files: Sequence[Path]) -> dict[str, Any]:
    known = {}
    for path in files:
        if path.is_file():
            fact = facts(path)
            known[f"file {path.name}"] = f"{fact['bytes']:,} bytes, SHA-256 {fact['sha256']}"
    return known


__all__ = ["NamedSource", "data_card"]
