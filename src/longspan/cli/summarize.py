"""`longspan summarize`: summarise texts with a trained encoder–decoder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, Lines, load_model, notices, print_json, progress, read_lines
from longspan.cli.mark import Mark, MarkFlag, by, marked


def summarize(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    beams: Annotated[
        int | None, Parameter(help="number of beams; 1 is greedy (default: as the model's folder says, or 4)")
    ] = None,
    alpha: Annotated[float | None, Parameter(help="power of the length penalty; more gives longer texts")] = None,
    min_new: Annotated[int | None, Parameter(help="least tokens of a summary")] = None,
    max_new: Annotated[
        int | None, Parameter(help="most tokens of a summary (default: as the folder says, or 128)")
    ] = None,
    no_repeat: Annotated[int | None, Parameter(help="no run of this many tokens occurs twice")] = None,
    prefix: Annotated[
        str | None, Parameter(help="put before every text (default: as the folder says; T5: 'summarize: ')")
    ] = None,
    max_length: Annotated[
        int | None, Parameter(help="tokens of a text that are read (default: what the model can read)")
    ] = None,
    batch_tokens: Annotated[int, Parameter(help="source tokens per batch, with padding (default: 1024)")] = 1024,
    mark: MarkFlag = False,
    json: AsJson = False,
) -> None:
    """Summarise texts with a model trained on texts and summaries: one line per text, in order.

    A text that is too long is cut, with a notice. An empty line gives an empty line.

    **Examples:**

        longspan summarize runs/wikitext2-headings --file sections.txt
        longspan summarize bart-large-cnn/ "$(cat article.txt)"
        cat articles.txt | longspan summarize runs/news --file - --beams 1 --max-new 30
        longspan summarize flan-t5-small/ --file articles.txt --prefix "summarize: " --json

    Parameters
    ----------
    path
        The folder of a run or of a model.
    words
        Texts, one per argument.
    """
    from longspan import hub
    from longspan.hub.use.summarize import search_of

    texts = read_lines(words, file, "--file", "a text to summarise")
    model = load_model(path)
    given = {"beams": beams, "alpha": alpha, "min_new": min_new, "max_new": max_new, "no_repeat_ngram": no_repeat}
    beam = replace(search_of(model), **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    with notices(), progress("summarising", len(texts)) as tell:
        summaries = hub.summarize(
            model, texts, beam=beam, prefix=prefix, longest=max_length, tokens=batch_tokens, progress=tell
        )
    label = Mark.of(path) if mark else None
    if json:
        rows = [
            {"text": text, "summary": result.text, "logprob": result.logprob, "reason": result.reason, **by(label)}
            for text, result in zip(texts, summaries)
        ]
        print_json(rows)
        return
    for result in summaries:
        print(marked(" ".join(result.text.split()), label))  # always one line, whatever the model wrote
