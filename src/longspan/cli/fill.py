"""`longspan fill`: predict masked tokens."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, Cut, Lines, load_model, print_json, read_lines
from longspan.cli.tables import output


def fill(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    top: Annotated[int, Parameter(help="tokens to show per mask (default: 5)")] = 5,
    truncate: Cut = False,
    json: AsJson = False,
) -> None:
    """Predict masked tokens: the most probable ones for each mask.

    Write a mask as the model's mask token, or as `[MASK]` or `<mask>`.

    **Examples:**

        longspan fill bert-base-uncased/ "The capital of France is [MASK]."
        longspan fill roberta-base/ "A <mask> is a kind of <mask>." --top 3 --json

    Parameters
    ----------
    path
        A model folder with a masked-language-model head.
    words
        Texts, one per argument.
    """
    from longspan import hub

    texts = read_lines(words, file, "--file", "a text with a mask")
    predictions = hub.fill(load_model(path), texts, top=top, truncate=truncate)
    if json:
        print_json(
            [
                {"text": text, "masks": [[asdict(guess) for guess in guesses] for guesses in masks]}
                for text, masks in zip(texts, predictions)
            ]
        )
        return
    console = output()
    for text, masks in zip(texts, predictions):
        console.print(text, markup=False, style="bold" if len(texts) > 1 else "")
        for number, guesses in enumerate(masks, start=1):
            table = Table(box=None, pad_edge=False, show_header=len(masks) > 1)
            table.add_column(f"mask {number}", justify="right")
            table.add_column("")
            for guess in guesses:
                table.add_row(f"{100 * guess.probability:.1f} %", escape(guess.word.strip() or guess.token))
            console.print(table)
