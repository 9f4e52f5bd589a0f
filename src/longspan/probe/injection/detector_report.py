"""All figures of `longspan probe detector`: ROC on test rows, a threshold from held-out rows, and evasions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan import files
from longspan.errors import InvalidInput
from longspan.inspect.measures.findings import Finding, Line, LineChart
from longspan.parsing import read_json_table
from longspan.probe.injection.detectors import THRESHOLD, TrainedDetector, evade, quality
from longspan.probe.injection.measure import FLIPS, evasion_grid, flips, quality_grid
from longspan.probe.injection.readers import Prompt
from longspan.probe.injection.roc import choose_threshold, roc
from longspan.train.run import SPLIT

FALSE_ALARMS = 0.02
MEANING = (
    "The test rows are of the same collection as the training rows, so these figures say how the detector does on "
    "texts like these, not on attacks that were written after it. A text that the detector passes is not safe."
)


@dataclass(frozen=True)
class Rows:
    """Labelled prompts that the detector did not learn from."""

    validation: Sequence[Prompt]  # held out while training; the threshold comes from here
    test: Sequence[Prompt]


def rows_of(run: Path, prompts: Sequence[Prompt]) -> Rows:
    """The rows that a run held out, by its split.json, and the test rows."""
    path = run / SPLIT
    if not path.is_file():
        raise InvalidInput(
            f"{run} has no {SPLIT}, so its held-out rows are unknown; give the folder of a run of minilm-injection"
        )
    record = read_json_table(path)
    held, count = record.get("held_out"), record.get("rows")
    train = {prompt.line: prompt for prompt in prompts if prompt.part == "train"}
    last = max(train, default=0)
    if not isinstance(held, list) or not all(isinstance(n, int) and 0 <= n < last for n in held) or count != last:
        raise InvalidInput(f"{path} is of other data: it has {count} rows, and the file's training rows are {last}")
    validation = [train[number + 1] for number in held if number + 1 in train]
    return Rows(validation, [prompt for prompt in prompts if prompt.part == "test"])


def detector_findings(
    detector: TrainedDetector, rows: Rows, *, threshold: float | None = None, false_alarms: float = FALSE_ALARMS
) -> tuple[TrainedDetector, list[Finding]]:
    """The detector with its threshold, chosen on held-out rows unless given, and what was found on test rows."""
    held, kept = detector.scores(_texts(rows.validation)), _labels(rows.validation)
    chosen = choose_threshold(held, kept, false_alarms) if threshold is None else threshold
    ready = TrainedDetector(detector.pretrained, chosen)
    scores, labels = ready.scores(_texts(rows.test)), _labels(rows.test)
    curve, before = roc(scores, labels), roc(held, kept)
    injections = [prompt.text for prompt in rows.test if prompt.label]
    values = quality(ready.flags, injections, [prompt.text for prompt in rows.test if not prompt.label])
    evasions = evade(ready.flags, injections)
    names = ("recall", "false alarms", "false alarms on mentions", "false alarms on other texts")
    recall, alarms, named, others = (values[name] for name in names)
    source = f"{len(held)} held-out training rows" if threshold is None else "the command line"
    found = [
        Finding(
            "roc",
            "ROC on test rows",
            f"AUC {curve.auc:.3f} (95 %: {curve.low:.3f} to {curve.high:.3f}) on {len(scores)} test rows, "
            f"{sum(labels)} of them injections.",
            f"AUC on the {len(held)} held-out training rows: {before.auc:.3f}. Chance has 0.5. DeLong's interval.",
            [
                LineChart(
                    "Injections found by false alarms",
                    "false alarms",
                    "found",
                    [Line("test rows", curve.points), Line("chance", [(0, 0), (1, 1)], control=True)],
                )
            ],
            {
                "auc": curve.auc,
                "low": curve.low,
                "high": curve.high,
                "held-out auc": before.auc,
                "points": curve.points,
            },
        ),
        Finding(
            "quality",
            "At the threshold",
            f"At {chosen:.3g} it finds {recall['share']:.0f} % of the injections (95 %: {recall['low']:.0f} to "
            f"{recall['high']:.0f}), with false alarms on {alarms['share']:.0f} % of benign prompts and on "
            f"{named['share']:.0f} % of {named['count']} texts that merely mention injections. Ordinary sentences, "
            f"reviews and passages: {others['share']:.0f} % of {others['count']}.",
            f"The threshold comes from {source}: at most {100 * false_alarms:.0f} % false alarms there. The texts that "
            "mention injections and the other texts are ours, and nothing like them was trained on. Alarms there show "
            "whether it learned what an injection is, or what the benign prompts of its data look like.",
            [quality_grid(values)],
            {"threshold": chosen, "threshold from": source, **values},
        ),
        Finding(
            "evasions",
            "Attacks on the detector itself",
            flips(evasions),
            FLIPS,
            [evasion_grid(evasions)],
            {"evasions": evasions},
        ),
    ]
    return ready, found


def save_threshold(run: Path, detector: TrainedDetector, rows: Rows, false_alarms: float | None) -> None:
    """Keep the threshold in the run, for `longspan probe injection --detector`."""
    record = {
        "threshold": detector.threshold,
        "chosen_on": "given" if false_alarms is None else f"{len(rows.validation)} held-out training rows",
        "most_false_alarms": false_alarms,
    }
    files.write_text(run / THRESHOLD, json.dumps(record, indent=1) + "\n")


def _texts(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


def _labels(prompts: Sequence[Prompt]) -> list[int]:
    return [prompt.label for prompt in prompts]


__all__ = ["FALSE_ALARMS", "MEANING", "Rows", "detector_findings", "rows_of", "save_threshold"]
