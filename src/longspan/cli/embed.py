"""`longspan embed`: a vector for each text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from longspan import files
from longspan.cli.inputs import AsJson, Cut, Lines, check_writable, load_model, print_json, progress, read_lines
from longspan.cli.tables import output
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from torch import Tensor

COMPARED = 10  # most texts whose similarities are printed


def embed(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    layer: Annotated[
        tuple[int, ...],
        Parameter(negative="", help="0: embeddings, -1: the last layer (default: -1); may be repeated"),
    ] = (-1,),
    combine: Annotated[
        Literal["mean", "sum", "concat"], Parameter(help="how to combine several layers (default: mean)")
    ] = "mean",
    pool: Annotated[
        Literal["first", "last", "mean", "max"] | None,
        Parameter(help="how to pool the tokens of a text (default: as the folder's 1_Pooling says, or else mean)"),
    ] = None,
    normalise: Annotated[
        bool | None, Parameter(help="scale vectors to length 1 (default: as the folder says, or else no)")
    ] = None,
    max_length: Annotated[int | None, Parameter(help="most tokens per text (default: the model's limit)")] = None,
    truncate: Cut = False,
    batch: Annotated[int, Parameter(help="texts per batch (default: 32)")] = 32,
    out: Annotated[Path | None, Parameter(help="write the vectors to this .npy file, one row per text")] = None,
    json: AsJson = False,
) -> None:
    """Embed each text as a vector, with any encoder, decoder or encoder–decoder.

    For one text, prints its vector (shortened on a terminal, whole in a pipe); for up to ten, their cosine
    similarities. --out writes the vectors to a .npy file, and --json prints them.

    **Examples:**

        longspan embed all-MiniLM-L6-v2/ "A cat sits." "A kitten rests." "Stocks fell."
        longspan embed all-MiniLM-L6-v2/ --file lines.txt --out vectors.npy
        longspan embed bert-base/ --file - --layer -1 --layer -2 --layer -3 --layer -4 --combine concat --json

    Parameters
    ----------
    path
        A Hugging Face or longspan model folder, or a Llama file (.gguf, or llama2.c's .bin).
    words
        Texts, one per argument.
    """
    from longspan import hub

    texts = read_lines(words, file, "--file", "a text")
    if max_length is not None and max_length < 1:
        raise InvalidOption(f"--max-length must be at least 1, not {max_length}")
    if out is not None:
        _check_writable(out)
    pretrained = load_model(path)
    with progress("embedding", len(texts)) as tell:
        vectors = hub.embed(
            pretrained,
            texts,
            layers=layer,
            combine=combine,
            pool=pool,
            normalise=normalise,
            batch=batch,
            longest=max_length,
            truncate=truncate,
            progress=tell,
        )
    if out is not None:
        _write_vectors(out, vectors)
    if json:
        print_json([{"text": text, "vector": vector} for text, vector in zip(texts, vectors.tolist())])
        return
    console, shape = output(), f"{len(texts)} × {vectors.shape[1]}"
    if out is not None:
        console.print(f"{shape}, written to {out}", markup=False, soft_wrap=True)
    elif len(texts) == 1:
        print(_shortened(vectors[0].tolist()) if console.is_terminal else _whole(vectors[0].tolist()))
    elif len(texts) <= COMPARED:
        console.print(shape, markup=False)
        _print_cosines(console, texts, vectors)
    else:
        console.print(f"{shape}; --out FILE.npy writes the vectors, --json prints them", markup=False)


def _whole(vector: Sequence[float]) -> str:
    return " ".join(f"{number:.9g}" for number in vector)  # nine digits identify a float32


def _shortened(vector: Sequence[float]) -> str:
    if len(vector) <= 8:
        return _whole(vector)
    first, last = (" ".join(f"{number:.4f}" for number in numbers) for numbers in (vector[:4], vector[-2:]))
    return f"{first} … {last} ({len(vector)} numbers; --json prints all)"


def _print_cosines(console: Console, texts: Sequence[str], vectors: "Tensor") -> None:
    from torch.nn.functional import normalize

    unit = normalize(vectors.double(), dim=-1)
    table = Table("", *(str(number) for number in range(1, len(texts) + 1)), "text", box=None, pad_edge=False)
    for number, (text, row) in enumerate(zip(texts, (unit @ unit.T).tolist()), start=1):
        table.add_row(str(number), *(f"{cosine:.2f}" for cosine in row), escape(text))
    console.print(table)


def _write_vectors(path: Path, vectors: "Tensor") -> None:
    import numpy

    files.write(path, lambda file: numpy.save(file, vectors.numpy()))


def _check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work is done."""
    if path.suffix != ".npy":
        raise InvalidOption(f"--out must end in .npy, not {path.name!r}")
    check_writable(path)
