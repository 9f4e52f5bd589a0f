"""`longspan convert`: write a checkpoint in another format or precision."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.terminal import Console
from longspan.files import undone_on_error


def convert(
    source: Path,
    target: Path,
    /,
    *,
    to: Annotated[
        Literal["huggingface", "longspan", "gguf", "etc"],
        Parameter(help="format to write (default: huggingface); etc: an encoder such as BERT becomes an ETC"),
    ] = "huggingface",
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"] | None,
        Parameter(help="precision of the weights (default: unchanged)"),
    ] = None,
    shard_size: Annotated[str, Parameter(help="largest file, such as 500MB (default: 5GB)")] = "5GB",
    overwrite: Annotated[bool, Parameter(negative="", help="replace a model that exists")] = False,
    json: AsJson = False,
) -> None:
    """Convert a checkpoint to another format or precision, with its tokenizer and settings.

    **Examples:**

        longspan convert old/ new/ --dtype bfloat16
        longspan convert bert-base-uncased/ mine/ --to longspan
        longspan convert SmolLM2-135M/ smollm2.gguf --to gguf --dtype float16
        longspan convert bert-base-uncased/ etc/ --to etc

    Parameters
    ----------
    source
        A Hugging Face or longspan model folder, a GGUF file, or a .bin file of llama2.c.
    target
        The folder or GGUF file to write.
    """
    from longspan import hub
    from longspan.hub.changed_options import first_names

    with Console(stderr=True).status(f"converting {source}"), undone_on_error(target):
        converted = hub.convert(source, target, to=to, dtype=dtype, shard_size=shard_size, overwrite=overwrite)
    model, unused = converted.model, converted.unused
    if json:
        dtype_name = str(model.dtype).removeprefix("torch.")
        kind = {"family": converted.family, "model": model.name, "dtype": dtype_name}
        lists = {"unused": unused, "untrained": converted.fresh}
        return print_json({"path": str(target), **kind, "tokenizer": converted.tokenizer is not None, **lists})
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"wrote {target}: {converted.family or model.name}, {model.dtype}", markup=False, soft_wrap=True)
    if unused:
        what = "absolute positions or head" if to == "etc" else "heads"
        console.print(f"not written, as the architecture has no such {what}: {', '.join(unused)}", markup=False)
    if converted.fresh:
        console.print(f"new, to be trained: {first_names(converted.fresh)}", markup=False)
    if converted.tokenizer is None:
        console.print("the source has no tokenizer to write", markup=False)
