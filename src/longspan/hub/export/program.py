"""Export a model: trace its programs, check them against the model, and write all files or none."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

from longspan import __version__, config
from longspan.errors import InvalidInput, InvalidOption, UnknownName, Unsupported, suggest
from longspan.hub import sidecar_files
from longspan.hub.export import check, onnx_files
from longspan.hub.export.check import Comparison
from longspan.hub.export.decoding import ROOM, Prefill, Run, StateLayout, Step
from longspan.hub.export.graphs import Graph, Values, main_graph
from longspan.hub.export.trace import MOST_BATCH, MOST_LENGTH, trace
from longspan.hub.load_checkpoint import load
from longspan.hub.pretrained import Pretrained
from longspan.models.base import CausalModel
from longspan.models.folder import CONFIG
from longspan.models.image_base import ImageHeads

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
DESCRIPTION = "export.json"
TRACED = (3, 100)  # batch and length of the traced example: more than a block of 64, and no multiple of one
CHECKED = ((1, 5), (2, 37), (4, 131), (2, 64))  # shapes to check; lengths are cut to what the model holds
MOST_ONNX_BYTES = 2 * 10**9  # of one program with its weights, while it is made
Size = int | Literal["dynamic"]


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked."""

    path: Path
    format: str
    dtype: str
    files: list[str]
    programs: dict[str, dict[str, Any]]  # by name: inputs and outputs with type and shape
    checks: list[Comparison]
    notes: list[str] = field(default_factory=list)  # what is not there, and why

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "path": str(self.path)}


def export(
    model: Pretrained | Path | str,
    out: Path | str,
    *,
    format: str = "onnx",
    length: Size = "dynamic",
    batch: Size = "dynamic",
    dtype: str = "float32",
    state: bool | None = None,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write a model as a program that runs without longspan, checked against the model.

    `out` is a folder, which also gets tokenizer and configuration; or, for one program alone, a file that ends in .onnx
    or .pt2. A causal model in a folder becomes two programs, `prefill` and `step`, with its state as inputs and
    outputs; `state=False` gives one program of whole texts instead, which is also what attention without an exportable
    state gives unless `state=True`. `report` is called with a line for each stage.

    >>> export("HuggingFaceTB/SmolLM2-135M", "smollm2-onnx")
    """
    out = Path(out)
    _check_options(out, format, dtype, overwrite, {"length": length, "batch": batch})
    if format == "onnx":
        onnx_files.require()
    if isinstance(model, Pretrained):
        pretrained = model
        if pretrained.model.dtype != DTYPES[dtype]:
            raise InvalidInput(f"the model is {pretrained.model.dtype}; load it as {dtype}, or give dtype")
    else:
        report(f"loading {model}")
        pretrained = load(model, dtype=DTYPES[dtype])
    pretrained.model.eval()
    for parameter in pretrained.model.parameters():
        parameter.requires_grad_(False)
    _check_size(pretrained, format)
    job = _Job(pretrained, format, dtype, {"length": length, "batch": batch}, report)
    with _replacing(out) as temporary:
        alone = out.suffix in SUFFIXES.values()
        folder = temporary.parent if alone else temporary
        job.run(folder, state=False if alone and state is None else state)
        if alone:
            return job.finish_file(folder, temporary, out)
        return job.finish_folder(folder, out)


class _Job:
    """The programs of one model."""

    def __init__(
        self,
        pretrained: Pretrained,
        format: str,
        dtype: str,
        sizes: Mapping[str, Size],
        report: Callable[[str], None],
    ) -> None:
        self.pretrained, self.model, self.report = pretrained, pretrained.model, report
        self.format, self.dtype = format, dtype
        self.fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
        self.most = _longest(pretrained)
        if self.fixed.get("length", 1) > self.most:
            raise InvalidOption(f"length={self.fixed['length']}: this model holds at most {self.most} tokens")
        self.limit = check.limit_of(DTYPES[dtype])
        self.graphs: dict[str, Graph] = {}
        self.programs: dict[str, ExportedProgram] = {}
        self.checks: list[Comparison] = []
        self.notes: list[str] = []

    # Stages

    def run(self, folder: Path, *, state: bool | None) -> None:
        """Traces the programs, writes them to the folder and checks the files."""
        self._separate_weights()
        if not self._trace_decoding(state):
            self._trace(main_graph(self.model))
        runs = self._write(folder)
        self.report(f"checking against the model {'in onnxruntime' if self.format == 'onnx' else ''}".rstrip())
        shapes = self._shapes(*CHECKED)
        for name, graph in self.graphs.items():
            if isinstance(graph, Step):
                first = self.graphs["prefill"]
                assert isinstance(first, Prefill)
                self.checks.append(check.steps(first, graph, runs, shapes, self.limit))
            else:
                self.checks.append(check.compare(graph, runs[name], shapes, self.limit))

    def _separate_weights(self) -> None:
        """Gives each parameter memory of its own: files of programs cannot hold views of a larger one."""
        for parameter in self.model.parameters():
            if parameter.untyped_storage().nbytes() != parameter.nbytes:
                parameter.data = parameter.data.clone()

    def _trace_decoding(self, state: bool | None) -> bool:
        """The programs with a state, if the model has one that can be exported."""
        if state is False or not isinstance(self.model, CausalModel):
            if state:
                raise Unsupported(f"a model {self.model.name!r} has no state to export; leave out state")
            return False
        try:
            layout = StateLayout(self.model)
            prefill = Prefill(self.model, layout)
            program = self._trace(prefill)
            self._trace(Step(self.model, layout, prefill, _module(program)))
        except Unsupported as error:
            if state:
                raise
            self.notes.append(f"one program of whole texts, without a state: {error}")
            self.graphs, self.programs = {}, {}
            return False
        return True

    def _trace(self, graph: Graph) -> ExportedProgram:
        self.report(f"tracing {graph.name}")
        self.graphs[graph.name] = graph
        (shape,) = self._shapes(TRACED)
        example = graph.sample(*shape, seed=0)
        limits = {"batch": MOST_BATCH, "length": self.most, "past": max(1, self.most - 1)}
        limits["target"] = limits["source"] = limits["past"]
        if isinstance(self.model, CausalModel):
            limits["target"] = self.model.max_length or MOST_LENGTH
            limits["past"] = max(1, limits["target"] - 1)
        limits["source"] = self.most
        self.programs[graph.name] = trace(graph, example, self.fixed, limits)
        return self.programs[graph.name]

    def _shapes(self, *shapes: tuple[int, int]) -> list[tuple[int, int]]:
        """Batches and lengths that the model holds, or those that were given; prompts leave room for some steps."""
        room = ROOM if "prefill" in self.graphs else 0
        sizes = [
            (self.fixed.get("batch", batch), self.fixed.get("length", min(length, max(1, self.most - room))))
            for batch, length in shapes
        ]
        return list(dict.fromkeys(sizes))

    def _write(self, folder: Path) -> dict[str, Run]:
        if self.format == "torch":
            runs: dict[str, Run] = {}
            for name, program in self.programs.items():
                path = folder / f"{name}.pt2"
                torch.export.save(program, path)
                runs[name] = _module(torch.export.load(path))
            return runs
        models = {}
        for name, program in self.programs.items():
            self.report(f"converting {name} to ONNX")
            models[name] = onnx_files.to_onnx(program, self.graphs[name])
        described = {"longspan": __version__, "model": self.model.name, "inputs": json.dumps(self._described())}
        onnx_files.write(models, folder, described)
        return {name: onnx_files.runner(folder / f"{name}.onnx", self.graphs[name]) for name in models}

    # Results

    def finish_folder(self, folder: Path, out: Path) -> Exported:
        """Adds configuration, tokenizer and description."""
        record = self.pretrained.config or {"model": self.model.name, "options": config.plain(self.model.options)}
        (folder / CONFIG).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        sidecar_files.write(self.pretrained, folder)
        names = sorted([path.name for path in folder.iterdir()] + [DESCRIPTION])
        exported = self._exported(out, names)
        text = json.dumps({**exported.record(), "longspan": __version__, "torch": torch.__version__}, indent=2)
        (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        return exported

    def finish_file(self, folder: Path, temporary: Path, out: Path) -> Exported:
        """Moves the one program to its place."""
        (name,) = self.programs
        written = folder / f"{name}{SUFFIXES[self.format]}"
        if self.format == "onnx":
            onnx_files.join(written)
        written.replace(temporary)
        return self._exported(out, [out.name])

    def _exported(self, out: Path, names: list[str]) -> Exported:
        return Exported(out, self.format, self.dtype, names, self._described(), self.checks, self.notes)

    def _described(self) -> dict[str, dict[str, Any]]:
        """The inputs and outputs of each program, with their types and shapes; variable axes by name."""
        described = {}
        for name, graph in self.graphs.items():
            (shape,) = self._shapes(TRACED)
            values = graph.sample(*shape, seed=0)
            inputs = {
                of: {"type": str(x.dtype).removeprefix("torch."), "shape": self._axes(x.shape, axes.names)}
                for of, x, axes in zip(graph.inputs, values, graph.axes())
            }
            described[name] = {"inputs": inputs, "outputs": list(graph.outputs)}
        return described

    def _axes(self, shape: torch.Size, names: Mapping[int, str]) -> list[int | str]:
        return [size if names.get(axis) in (None, *self.fixed) else names[axis] for axis, size in enumerate(shape)]


def _module(program: ExportedProgram) -> Run:
    module = program.module()

    def run(inputs: Values) -> Values:
        with torch.no_grad():
            return tuple(module(*inputs))

    return run


def _longest(pretrained: Pretrained) -> int:
    """The longest text that the model reads; an encoder–decoder's source."""
    options = pretrained.model.options
    if isinstance(pretrained.model, ImageHeads):
        return 1
    most = getattr(options, "source_length", None) or getattr(options, "max_length", None)
    return int(most or MOST_LENGTH)


def _check_options(out: Path, format: str, dtype: str, overwrite: bool, sizes: Mapping[str, Size]) -> None:
    if format not in SUFFIXES:
        raise UnknownName(f"format cannot be {format!r}: {suggest(format, SUFFIXES)}")
    if dtype not in DTYPES:
        raise UnknownName(f"dtype cannot be {dtype!r}: {suggest(dtype, DTYPES)}")
    for name, size in sizes.items():
        if size != "dynamic" and size < 1:
            raise InvalidOption(f"option {name} must be 'dynamic' or a number from 1 on, not {size!r}")
    if out.suffix in SUFFIXES.values() and out.suffix != SUFFIXES[format]:
        raise InvalidInput(f"{out} must end in {SUFFIXES[format]} for the format {format}, or be a folder")
    if not out.resolve().parent.is_dir():
        raise InvalidInput(f"{out} cannot be written: there is no folder {out.resolve().parent}")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not overwrite:
        raise InvalidInput(f"{out} exists already; give another name, or overwrite it (--overwrite)")


def _check_size(pretrained: Pretrained, format: str) -> None:
    size = sum(parameter.nbytes for parameter in pretrained.model.parameters())
    if format == "onnx" and size > MOST_ONNX_BYTES:
        raise Unsupported(
            f"the weights are {size / 1e9:.1f} GB, and an ONNX program is made in memory of 2 GB; "
            "give format='torch', or dtype='float16'"
        )


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A temporary place beside `out`, which takes its name at the end: all is there, or nothing."""
    parent = out.resolve().parent
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=parent))
    work.chmod(0o777 & ~_umask())
    try:
        inside = work / out.name
        if out.suffix not in SUFFIXES.values():
            inside.mkdir()
        yield inside
        if out.is_dir():
            out.replace(work / "old")
        inside.replace(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


__all__ = ["Exported", "export"]
