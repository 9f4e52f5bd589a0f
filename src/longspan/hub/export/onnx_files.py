"""ONNX files of traced programs. The programs of one model share one file of weights."""

import hashlib
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.export import ExportedProgram

from longspan.errors import Unsupported
from longspan.hub.export.graphs import Graph, Values
from longspan.hub.export.trace import quiet

WEIGHTS = "weights.bin"  # beside the programs
ALIGNED = 64  # bytes
SMALL = 1024  # tensors below this stay in the program
# The operator set; onnxruntime reads it since 1.15
OPSET = 20


def require() -> None:
    """Raises unless the packages for ONNX are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"ONNX needs the package {error.name}: pip install longspan[export]") from None


def to_onnx(program: ExportedProgram, graph: Graph) -> Any:
    """The program as an ONNX model."""
    try:
        with quiet():
            converted = torch.onnx.export(
                program,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        cause = error.__cause__ or error
        text = " ".join(str(cause).split())
        raise Unsupported(f"{graph.name}: ONNX has no way to say this: {text[:240]}") from error
    assert converted is not None
    return converted.model_proto


def write(models: dict[str, Any], folder: Path, metadata: dict[str, str]) -> list[Path]:
    """Writes each model to `NAME.onnx`, with the weights of all in one file where there are several."""
    written = []
    store = _Weights(folder / WEIGHTS)
    for name, model in models.items():
        for key, value in metadata.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        for tensor in model.graph.initializer:
            store.put(tensor)
        path = folder / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        written.append(path)
    store.close()
    return [*written, folder / WEIGHTS]


class _Weights:
    """A file of tensors, each of them once."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.open("wb")
        self.known: dict[bytes, tuple[int, int]] = {}

    def put(self, tensor: Any) -> None:
        """Moves the bytes of a tensor into the file."""
        from onnx.external_data_helper import set_external_data

        data = tensor.raw_data if tensor.HasField("raw_data") else None
        if data is None or len(data) < SMALL:
            return
        key = hashlib.sha256(data).digest()
        if key not in self.known:
            self.file.write(b"\0" * (-self.file.tell() % ALIGNED))
            self.known[key] = (self.file.tell(), len(data))
            self.file.write(data)
        offset, length = self.known[key]
        set_external_data(tensor, self.path.name, offset, length)
        tensor.ClearField("raw_data")

    def close(self) -> None:
        self.file.close()


def join(path: Path) -> None:
    """Puts the weights of one program into its own file."""
    import onnx

    onnx.save_model(onnx.load(str(path)), str(path))


def runner(path: Path, graph: Graph) -> Any:
    """A function that runs a file in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        text = " ".join(str(error).split())
        raise Unsupported(f"{graph.name}: onnxruntime does not read the file: {text[:240]}") from error
    named = {value.name for value in session.get_inputs()}  # inputs that nothing reads are left out

    def run(inputs: Values) -> Values:
        feeds = {name: x.numpy() for name, x in zip(graph.inputs, inputs) if name in named}
        return tuple(torch.from_numpy(numpy.asarray(x)) for x in session.run(list(graph.outputs), feeds))

    return run


__all__ = ["WEIGHTS", "join", "require", "runner", "to_onnx", "write"]
