"""Static word vectors: analogies with their controls, and agreement with people's judgements of similarity."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longspan.inspect.measures.findings import Finding, Grid
from longspan.models.classics.analogies import AnalogyReport
from longspan.models.classics.word_table import WordTable
from longspan.tasks.similarity import similarity

METHODS = {"add": "3CosAdd", "multiply": "3CosMul"}


def measure_analogies(table: WordTable, path: Path) -> Finding:
    """3CosAdd and 3CosMul by section, with and without the question's own words as answers."""
    reports = {name: table.evaluate(path, method=method) for method, name in METHODS.items()}
    first = reports["3CosAdd"]
    rows: list[list[object]] = []
    for number, section in enumerate(first.sections):
        scores = [_share(report.sections[number].correct, section.asked) for report in reports.values()]
        free = [_share(report.sections[number].correct_unexcluded, section.asked) for report in reports.values()]
        rows.append([section.name or "(none)", section.asked, section.skipped, *scores, *free])
    totals = [[getattr(r, name) for r in reports.values()] for name in ("accuracy", "accuracy_unexcluded")]
    rows.append(["all", first.asked, first.skipped, *totals[0], *totals[1]])
    own = sum(section.own_words for section in first.sections)
    head = (
        "section",
        "asked",
        "unknown words",
        *METHODS.values(),
        *(f"{m}, nothing excluded" for m in METHODS.values()),
    )
    accuracy, free_accuracy = first.accuracy, first.accuracy_unexcluded
    sentence = (
        f"No question of {path.name} has all its words in the vectors."
        if accuracy is None or free_accuracy is None
        else f"3CosAdd answers {accuracy:.1%} of {first.asked:,} questions, and {free_accuracy:.1%} if the question's "
        f"own words may be answers: then {own / max(first.asked, 1):.0%} of the answers are one of them."
    )
    return Finding(
        "analogies",
        f"Analogies: {path.name}",
        sentence,
        f"Nothing excluded, and the nearest neighbour of c alone ({_percent(first.accuracy_neighbour)}). "
        f"{first.skipped:,} questions have an unknown word and were not asked.",
        [Grid("Share of right answers", head, rows)],
        {name: _plain(report) for name, report in reports.items()},
    )


def _plain(report: AnalogyReport) -> dict[str, Any]:
    totals = ("accuracy", "semantic", "syntactic", "accuracy_unexcluded", "accuracy_neighbour", "asked", "skipped")
    return {**{name: getattr(report, name) for name in totals}, "sections": [vars(row) for row in report.sections]}


def measure_similarity(table: WordTable, paths: Sequence[Path]) -> Finding:
    """Spearman's correlation with each file of judgements, and the covered pairs."""
    reports = [similarity(table.unit, table.words.ids, path, lower=table.lowercase) for path in paths]
    known = [report for report in reports if report.correlation is not None]
    best = max(known, key=lambda report: report.correlation or 0.0) if known else None
    return Finding(
        "similarity",
        "Similarity as people judge it",
        "No pair of these files has both words in the vectors."
        if best is None
        else f"Cosines rank pairs most like people do in {best.file}: {best.correlation:.3f} over {best.covered} of "
        f"{best.pairs} pairs.",
        "0 is the correlation of random vectors; uncovered pairs are counted, not scored.",
        [
            Grid(
                "Spearman's rank correlation",
                ("file", "correlation", "covered", "pairs"),
                [(report.file, report.correlation, report.covered, report.pairs) for report in reports],
            )
        ],
        {"files": [vars(report) for report in reports]},
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(value: float | None) -> str:
    return "none asked" if value is None else f"{value:.1%}"


__all__ = ["measure_analogies", "measure_similarity"]
