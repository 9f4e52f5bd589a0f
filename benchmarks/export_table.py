"""What exports: every mechanism as an encoder, over whole causal texts and step by step, by torch.export and as ONNX.

    python -m benchmarks.export_table [NAME …]      # all mechanisms: half an hour on one core

Tiny models with a dynamic batch and length are traced, converted, run on other shapes with padding, and compared with
the model (limit 1e-4). The results go to docs/export.json and, as a table, into docs/export.md.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from longspan.attention import names, registry
from longspan.audit.settings import small
from longspan.errors import LongspanError
from longspan.hub.export import check, onnx_files
from longspan.hub.export.decoding import Prefill, Run, StateLayout, Step
from longspan.hub.export.graphs import Graph, Values, main_graph
from longspan.hub.export.trace import trace
from longspan.models import build

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "export.json", DOCS / "export.md"
BEGIN, END = "<!-- table: python -m benchmarks.export_table -->", "<!-- end of table -->"
FORMS = ("encoder", "causal", "step")
MOST = 160
SHAPES = ((1, 5), (2, 37), (4, 131))
LIMITS = {"batch": 64, "length": MOST, "past": MOST - 1}


def tiny(name: str, causal: bool) -> Any:
    """A model of one layer with this attention."""
    torch.manual_seed(0)
    sizes = {"vocabulary": 40, "width": 16, "layers": 1, "heads": 2, "hidden": 16, "max_length": MOST, "dropout": 0.0}
    model = build("decoder" if causal else "encoder", **sizes, attention={"name": name, **small(name)[0]}).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def programs(name: str, form: str) -> list[Graph]:
    """The graphs of a form, without the step, which needs a traced prefill."""
    model = tiny(name, form != "encoder")
    return [Prefill(model, StateLayout(model))] if form == "step" else [main_graph(model)]


def measure(name: str, form: str) -> dict[str, Any]:
    """For each format, the largest difference to the model, or why it cannot be exported."""
    supports = registry.find(name).supports
    if not (supports.bidirectional if form == "encoder" else supports.causal):
        return {"form": "no such form"}
    if form == "step" and not supports.streaming:
        return {"form": "decodes whole texts only"}
    result: dict[str, Any] = {}
    try:
        graphs = programs(name, form)
        traced = [trace(graph, graph.sample(3, 100, seed=0), {}, LIMITS) for graph in graphs]
        if form == "step":
            first = graphs[0]
            assert isinstance(first, Prefill)
            graphs.append(Step(first.model, first.layout, first, run_module(traced[0])))
            traced.append(trace(graphs[1], graphs[1].sample(3, 100, seed=0), {}, LIMITS))
        result["shortest"] = getattr(graphs[0], "shortest", 1)
        result["torch"] = compare(graphs, [run_module(program) for program in traced])
    except LongspanError as error:
        return {"torch": str(error), "onnx": str(error)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            models = {graph.name: onnx_files.to_onnx(program, graph) for graph, program in zip(graphs, traced)}
            onnx_files.write(models, Path(folder), {})
            runs = [onnx_files.runner(Path(folder) / f"{graph.name}.onnx", graph) for graph in graphs]
            result["onnx"] = compare(graphs, runs)
        except LongspanError as error:
            result["onnx"] = str(error)
    return result


def run_module(program: Any) -> Run:
    module = program.module()

    def run(inputs: Values) -> Values:
        with torch.no_grad():
            return tuple(module(*inputs))

    return run


def compare(graphs: Sequence[Graph], runs: Sequence[Callable[[Values], Values]]) -> float:
    if len(graphs) == 1:
        return check.compare(graphs[0], runs[0], SHAPES, 1e-4).difference
    first, second = graphs
    assert isinstance(first, Prefill) and isinstance(second, Step)
    return check.steps(first, second, {"prefill": runs[0], "step": runs[1]}, SHAPES, 1e-4).difference


# The table


def cell(result: dict[str, Any], kind: str) -> str:
    if "form" in result:
        return "–"
    value = result[kind]
    return f"yes, {value:.0e}" if isinstance(value, float) else "no"


def table(record: dict[str, dict[str, dict[str, Any]]]) -> str:
    """One row for each mechanism; reasons below."""
    lines = [
        "| attention | encoder: torch | ONNX | causal: torch | ONNX | step: torch | ONNX |",
        "|---|---|---|---|---|---|---|",
    ]
    reasons: dict[str, list[str]] = {}
    for name, forms in record.items():
        cells = [cell(forms[form], kind) for form in FORMS for kind in ("torch", "onnx")]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        for form in FORMS:
            texts = {value for value in forms[form].values() if isinstance(value, str)} - {"no such form"}
            for text in texts:
                reasons.setdefault(plain(text), []).append(f"`{name}` ({form})")
    lines += ["", "Why not:", ""]
    for text, where in sorted(reasons.items()):
        lines += wrapped(f"- {', '.join(dict.fromkeys(where))}: {text}.")
    return "\n".join(lines)


def plain(text: str) -> str:
    """A reason without what differs from one mechanism to the next."""
    text = re.sub(r"^(model|prefill|step): ", "", text)
    text = re.sub(r" \(.*", "", text)
    return re.sub(r"\bstate\.0\.", "state.", text)


def wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 98, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def write_page(record: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main(chosen: Sequence[str]) -> None:
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in chosen or names():
        known[name] = {form: measure(name, form) for form in FORMS}
        print(name, json.dumps(known[name]), flush=True)
        ordered = {name: known[name] for name in names() if name in known}
        RECORD.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    write_page({name: known[name] for name in names() if name in known})


if __name__ == "__main__":
    main(sys.argv[1:])
