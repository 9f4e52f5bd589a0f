"""`longspan translate`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, Cut, Lines, load_model, print_json, progress, read_lines


def translate(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    beams: Annotated[int, Parameter(help="hypotheses that are kept; 1 takes the best token each time; 5")] = 5,
    alpha: Annotated[float, Parameter(help="power of the length penalty; higher makes longer texts; 0.6")] = 0.6,
    batch_tokens: Annotated[int, Parameter(help="source tokens at a time, padding included; 1024")] = 1024,
    truncate: Cut = False,
    json: AsJson = False,
) -> None:
    """Translate texts by a model that was trained on pairs: one line for each, in their order.

    Of an empty line comes an empty line.

    **Examples:**

        longspan translate runs/multi30k-en-de "A dog runs on the beach."
        longspan translate runs/multi30k-en-de --file captions.en > captions.de
        cat captions.en | longspan translate runs/multi30k-en-de --file - --beams 1

    Parameters
    ----------
    path
        The folder of a run, or of a model.
    words
        Texts; each argument is one.
    """
    from longspan import hub
    from longspan.decode import Beam

    texts = read_lines(words, file, "--file", "a text to translate")
    beam = Beam(beams=beams, alpha=alpha)
    found = load_model(path)
    with progress("translating", len(texts)) as tell:
        made = hub.translate(found, texts, beam=beam, truncate=truncate, tokens=batch_tokens, progress=tell)
    if json:
        rows = zip(texts, made)
        print_json(
            [{"source": text, "text": each.text, "logprob": each.logprob, "reason": each.reason} for text, each in rows]
        )
        return
    for each in made:
        print(" ".join(each.text.splitlines()))  # a line for a line, whatever the model wrote
