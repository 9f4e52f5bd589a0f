"""`longspan embed`: a vector for each text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from longspan import files
from longspan.cli.inputs import AsJson, Cut, Lines, check_writable, load_model, print_json, progress, read_lines
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from torch import Tensor

    from longspan.hub import TokenVectors

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
        Literal["mean", "sum", "concat", "mix"],
        Parameter(help="how to combine several layers; mix: all, by the weights that a head learned (default: mean)"),
    ] = "mean",
    tokens: Annotated[bool, Parameter(negative="", help="a vector for each token, instead of each text")] = False,
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
    out: Annotated[
        Path | None, Parameter(help="write the vectors to this .npy file, one row per text; with --tokens .npz")
    ] = None,
    json: AsJson = False,
) -> None:
    """Embed each text as a vector, with any encoder, decoder or encoder–decoder, with ELMo or with word2vec.

    For one text, prints its vector (shortened on a terminal, whole in a pipe); for up to ten, their cosine
    similarities. --out writes the vectors to a .npy file, and --json prints them.

    With --tokens, each token has a vector: of a word in its context (an encoder, ELMo) or of the word alone (word2vec,
    or --layer 0 of ELMo). The .npz file then has the arrays tokens, text (the number of each token's text) and vectors.

    **Examples:**

        longspan embed all-MiniLM-L6-v2/ "A cat sits." "A kitten rests." "Stocks fell."
        longspan embed all-MiniLM-L6-v2/ --file lines.txt --out vectors.npy
        longspan embed runs/elmo-tiny --tokens "He sat on the bank of the river ." --json
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
        _check_writable(out, ".npz" if tokens else ".npy")
    pretrained = load_model(path)
    if tokens:
        if pool is not None:
            raise InvalidOption("--pool makes one vector of a text; leave it out with --tokens")
        with progress("embedding", len(texts)) as tell:
            found = hub.embed_tokens(
                pretrained,
                texts,
                layers=layer,
                combine=combine,
                normalise=bool(normalise),
                batch=batch,
                longest=max_length,
                truncate=truncate,
                progress=tell,
            )
        return _print_tokens(texts, found, out, json)
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


def _print_tokens(texts: Sequence[str], found: "Sequence[TokenVectors]", out: Path | None, json: bool) -> None:
    if out is not None:
        _write_tokens(out, found)
    if json:
        rows = [
            [{"token": token, "vector": vector} for token, vector in zip(text.tokens, text.vectors.tolist())]
            for text in found
        ]
        print_json([{"text": text, "tokens": row} for text, row in zip(texts, rows)])
        return
    console, count = output(), sum(len(text.tokens) for text in found)
    if out is not None:
        console.print(f"{count} × {found[0].vectors.shape[1]}, written to {out}", markup=False, soft_wrap=True)
        return
    for text in found:
        for token, vector in zip(text.tokens, text.vectors.tolist()):
            numbers = _shortened(vector) if console.is_terminal else _whole(vector)
            print(f"{token}\t{numbers}")


def _write_tokens(path: Path, found: "Sequence[TokenVectors]") -> None:
    import numpy
    import torch

    tokens = numpy.array([token for text in found for token in text.tokens])
    text = numpy.repeat(numpy.arange(len(found)), [len(text.tokens) for text in found])
    vectors = torch.cat([text.vectors for text in found]).numpy()
    files.write(path, lambda file: numpy.savez(file, tokens=tokens, text=text, vectors=vectors))


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


def _check_writable(path: Path, ending: str) -> None:
    """Refuse a path that cannot be written, before the work is done."""
    if path.suffix != ending:
        raise InvalidOption(f"--out must end in {ending}, not {path.name!r}")
    check_writable(path)
