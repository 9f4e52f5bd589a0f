"""`longspan translate`: translate texts with a trained encoder–decoder."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, Cut, Lines, load_model, print_json, progress, read_lines
from longspan.cli.mark import Mark, MarkFlag, by, marked


def translate(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    source: Annotated[
        str | None, Parameter(name="--from", help="mBART: the language of the texts, such as en_XX")
    ] = None,
    target: Annotated[str | None, Parameter(name="--to", help="mBART: the language to write, such as de_DE")] = None,
    beams: Annotated[int, Parameter(help="number of beams; 1 is greedy (default: 5)")] = 5,
    alpha: Annotated[
        float, Parameter(help="power of the length penalty; more gives longer texts (default: 0.6)")
    ] = 0.6,
    coverage: Annotated[
        float,
        Parameter(help="weight of the coverage penalty for source words that were not read (default: 0; GNMT: 0.2)"),
    ] = 0.0,
    ensemble: Annotated[
        tuple[Path, ...],
        Parameter(negative="", help="further runs or models whose log-probabilities are averaged with the first's"),
    ] = (),
    batch_tokens: Annotated[int, Parameter(help="source tokens per batch, with padding (default: 1024)")] = 1024,
    truncate: Cut = False,
    mark: MarkFlag = False,
    json: AsJson = False,
) -> None:
    """Translate texts with a model trained on sentence pairs: one line per text, in order.

    An empty line gives an empty line. For mBART and mBART-50, choose the languages by their codes; an unknown
    code lists them all.

    **Examples:**

        longspan translate runs/multi30k-en-de "A dog runs on the beach."
        longspan translate runs/multi30k-en-de --file captions.en > captions.de
        longspan translate mbart-large-50-many-to-many-mmt/ "A dog runs." --from en_XX --to de_DE
        cat captions.en | longspan translate runs/multi30k-en-de --file - --beams 1
        longspan translate runs/seed-0 --file captions.en --ensemble runs/seed-1 --ensemble runs/seed-2 --coverage 0.2

    Parameters
    ----------
    path
        The folder of a run or of a model.
    words
        Texts, one per argument.
    """
    from longspan import hub
    from longspan.decode import Beam

    texts = read_lines(words, file, "--file", "a text to translate")
    beam = Beam(beams=beams, alpha=alpha, beta=coverage)
    model, others = load_model(path), [load_model(other) for other in ensemble]
    with progress("translating", len(texts)) as tell:
        translations = hub.translate(
            model,
            texts,
            source=source,
            target=target,
            beam=beam,
            others=others,
            truncate=truncate,
            tokens=batch_tokens,
            progress=tell,
        )
    label = Mark.of(path) if mark else None
    if json:
        rows = [
            {"source": source, "text": result.text, "logprob": result.logprob, "reason": result.reason, **by(label)}
            for source, result in zip(texts, translations)
        ]
        print_json(rows)
        return
    for result in translations:
        print(marked(" ".join(result.text.splitlines()), label))  # always one line, whatever the model wrote
