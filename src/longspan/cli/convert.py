"""`longspan convert`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from longspan.cli.inputs import AsJson, print_json
from longspan.files import undone_on_error


def convert(
    source: Path,
    target: Path,
    /,
    *,
    to: Annotated[
        Literal["huggingface", "longspan", "gguf"], Parameter(help="what to write; huggingface")
    ] = "huggingface",
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"] | None, Parameter(help="of the weights; as they are, unless said")
    ] = None,
    shard_size: Annotated[str, Parameter(help="most bytes of a file, such as 500MB; 5GB")] = "5GB",
    overwrite: Annotated[bool, Parameter(negative="", help="write over a model that is there")] = False,
    json: AsJson = False,
) -> None:
    """Write a checkpoint as another kind, or in another precision; tokenizer and settings go along.

    **Examples:**

        longspan convert old/ new/ --dtype bfloat16
        longspan convert bert-base-uncased/ mine/ --to longspan
        longspan convert SmolLM2-135M/ smollm2.gguf --to gguf --dtype float16

    Parameters
    ----------
    source
        A folder of Hugging Face's or of longspan's, a GGUF file, or a .bin of llama2.c.
    target
        The folder to write, or the GGUF file.
    """
    from longspan import hub

    with Console(stderr=True).status(f"converting {source}"), undone_on_error(target):
        found = hub.convert(source, target, to=to, dtype=dtype, shard_size=shard_size, overwrite=overwrite)
    if json:
        kind = {
            "family": found.family,
            "model": found.model.name,
            "dtype": str(found.model.dtype).removeprefix("torch."),
        }
        return print_json(
            {"path": str(target), **kind, "tokenizer": found.tokenizer is not None, "unused": found.unused}
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"wrote {target}: {found.family or found.model.name}, {found.model.dtype}", markup=False)
    if found.unused:
        console.print(f"left out, as its architecture has no such heads: {', '.join(found.unused)}", markup=False)
    if found.tokenizer is None:
        console.print("there was no tokenizer to write", markup=False)
