"""Export whole models as programs that run without longspan: ONNX files, or .pt2 files of torch.export.

program    `export`: trace, check against the model, and write the files, all of them or none
graphs     what is exported of each kind of model: its inputs, its outputs, and inputs to trace and check it with
decoding   the two programs of a causal model, `prefill` and `step`, with the state as named tensors
trace      torch.export with dynamic batch and length, with errors in plain words
check      a program against the model, on shapes that were not traced
onnx_files ONNX files that share their weights
"""

from longspan.hub.export.program import Exported, export

__all__ = ["Exported", "export"]
