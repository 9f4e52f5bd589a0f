"""What is in a table of numbers and categories, before a model is trained on it."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.series_files import parse_number
from longspan.data.table_files import check_names, find_columns, is_missing, read_table
from longspan.data.text.columns import guess_columns
from longspan.data.text.tables import TableRow, format_of

SHOWN = 3  # examples, and the most frequent categories of a column


def survey_table(
    path: Path, label: str | None = None, *, encoding: str | None = None, others: Sequence[Path] = ()
) -> dict[str, Any]:
    """The columns, labels, duplicates and missing values of a table, ready for JSON.

    Rows that are also in `others` are counted.
    """
    names, rows = read_table(path, encoding)
    if label is None:
        guess = guess_columns(rows, {"label": "label"}).get("label")
        label = None if guess is None else guess.column
    else:
        check_names(path, [label], names)
    columns, left_out = find_columns(rows, [name for name in names if name != label])
    kinds = {column.name: column.kind for column in columns}
    labels = Counter(row.fields[label] for row in rows if not is_missing(row.fields[label])) if label else Counter()
    digests = Counter(map(_digest, rows))
    missing = [row for row in rows if label is not None and is_missing(row.fields[label])]
    return {
        "file": str(path),
        "format": f"table ({format_of(path)})",
        "rows": len(rows),
        "columns": [
            {
                "name": name,
                "use": "label" if name == label else kinds.get(name, f"left out: {left_out.get(name)}"),
                **_summary(rows, name, kinds.get(name) == "number"),
            }
            for name in names
        ],
        "label": label,
        "labels": dict(labels.most_common()),
        "labels_once": [],
        "empty": {"rows": len(missing), "first": [f"{row.where}, {label}" for row in missing[:SHOWN]]},
        "duplicates": {"rows": len(rows) - len(digests), "other_label": 0, "first": []},
        "shared": [_shared(other, digests, encoding) for other in others],
        "examples": [dict(row.fields) for row in rows[:SHOWN]],
    }


def _summary(rows: Sequence[TableRow], name: str, numeric: bool) -> dict[str, Any]:
    """Missing and different values of a column, and its range or its most frequent values."""
    texts = [row.fields[name].strip() for row in rows]
    present = [text for text in texts if not is_missing(text)]
    counts = Counter(present)
    summary: dict[str, Any] = {"missing": len(texts) - len(present), "different": len(counts)}
    if numeric:
        values = np.array([parse_number(text, ".") for text in present], dtype=np.float64)
        return summary | {
            "min": float(values.min()),
            "mean": float(values.mean()),
            "max": float(values.max()),
            "deviation": float(values.std()),
        }
    return summary | {"frequent": dict(counts.most_common(SHOWN))}


def _digest(row: TableRow) -> bytes:
    return blake2b("\t".join(row.fields.values()).encode(), digest_size=8).digest()


def _shared(path: Path, digests: Counter[bytes], encoding: str | None) -> dict[str, Any]:
    _, rows = read_table(path, encoding)
    same = [row for row in rows if _digest(row) in digests]
    return {"file": str(path), "rows": len(rows), "shared": len(same), "first": [row.where for row in same[:SHOWN]]}


__all__ = ["survey_table"]
