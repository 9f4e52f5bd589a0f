"""The table of systems in README.md: papers and abilities from the classes, exports and speeds from measurements.

    python -m benchmarks.systems

Exports are those of docs/export.json (`python -m benchmarks.export_table`), speeds those of the last complete record of
benchmarks/history.jsonl (`make bench`). A test compares the table in README.md with this one.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.history import FILE
from benchmarks.rows import ROWS
from longspan.attention.registry import ATTENTION, describe
from longspan.models.catalog import describe_model

EXPORTS = Path(__file__).parents[1] / "docs" / "export.json"
HEAD = "| system | year | paper | causal | padding | streaming | export | speed |\n|---|---|---|---|---|---|---|---|\n"
# Two of the survey's seventeen are models, with softmax attention and a memory.
MODELS = {"transformer_xl": "`transformer_xl` (model)", "compressive": "`compressive` (model)"}
YES, NO = "yes", "–"


def table() -> str:
    """The whole table, oldest paper first."""
    exports = json.loads(EXPORTS.read_text(encoding="utf-8"))
    speeds = latest_speeds()
    rows = [_mechanism(describe(name), exports.get(name, {}), speeds) for name in ATTENTION.entries]
    rows += [_model(describe_model(name), title) for name, title in MODELS.items()]
    rows.sort(key=lambda row: (row[1], row[0]))
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def latest_speeds() -> dict[str, tuple[float, float]]:
    """Times as fast as fused attention, forward and with backward: the last measurement of each row."""
    speeds: dict[str, tuple[float, float]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["length"] == 4096:
            speeds |= {row: tuple(pair) for row, pair in record["times_faster"].items()}
    return speeds


def _mechanism(row: dict[str, Any], exports: dict[str, Any], speeds: dict[str, tuple[float, float]]) -> list[str]:
    supports = row["supports"]
    formats = [
        name
        for name, key in (("torch", "torch"), ("ONNX", "onnx"))
        if any(isinstance(form.get(key), float) for form in exports.values())
    ]
    measured = [speeds[title] for title, item in ROWS.items() if item.mechanism == row["name"] and title in speeds]
    speed = f"{measured[0][0]:.1f}× / {measured[0][1]:.1f}×" if measured else NO
    paper, year = _paper(row["paper"])
    causal = YES if supports["causal"] else NO
    if not supports["bidirectional"]:
        causal = "only"
    padding = YES if supports["key_mask"] else NO
    streaming = YES if supports["streaming"] else NO
    return [f"`{row['name']}`", year, paper, causal, padding, streaming, ", ".join(formats) or NO, speed]


def _model(row: dict[str, Any], title: str) -> list[str]:
    paper, year = _paper(row["paper"])
    return [title, year, paper, "only", YES, YES if row["decodes"] else NO, NO, NO]


def _paper(text: str) -> tuple[str, str]:
    """The authors, with the name of the system where there is one, and the year."""
    found = re.search(r"\b(?:19|20)\d\d", text)
    assert found, text
    return re.sub(r"\b(?:19|20)\d\d[a-z]?\b ?", "", text).strip(), found.group()


if __name__ == "__main__":
    print(table(), end="")
