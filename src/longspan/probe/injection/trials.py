"""Run the cases under each defence: benign twins first, then attacks."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.probe.injection.cases import Case, Host
from longspan.probe.injection.defences import message, valid
from longspan.probe.injection.detectors import TrainedDetector, rate
from longspan.probe.injection.rules import solves
from longspan.probe.injection.targets import Answers, Target
from longspan.probe.intervals import bootstrap

BY_OUTPUT = ("detector", "validator")  # defences that ask the model nothing new: they stop a text or an output


@dataclass(frozen=True)
class Trial:
    """A benign text or an attack under a defence: what the model wrote, and whether it solved the task or obeyed."""

    host: Host
    case: Case | None  # None: without an attack
    defence: str
    message: str
    outputs: tuple[str, ...]
    blocked: tuple[bool, ...]  # by the detector or the validator: nobody sees the output
    solved: tuple[bool, ...]
    obeyed: tuple[str | None, ...]  # why it counts as obedience

    def record(self) -> dict[str, Any]:
        """For the log."""
        case = self.case
        return {
            "id": self.host.id if case is None else case.id,
            "family": "benign" if case is None else case.family,
            "kind": "" if case is None else case.kind,
            "task": self.host.task,
            "position": None if case is None else case.position,
            "canary": None if case is None else case.canary,
            "attack": None if case is None else case.attack,
            "defence": self.defence,
            "message": self.message,
            "outputs": self.outputs,
            "blocked": self.blocked,
            "solved": self.solved,
            "obeyed": self.obeyed,
        }


def run_trials(
    answers: Answers,
    hosts: Sequence[Host],
    cases: Sequence[Case],
    defences: Sequence[str],
    *,
    detector: TrainedDetector | None = None,
    specials: Sequence[str] = (),
    seed: int = 0,
) -> list[Trial]:
    """For each defence, trials of all hosts, then of all cases. A message that recurs is asked once."""
    benign: list[tuple[Host, Case | None]] = [(host, None) for host in hosts]
    attacks: list[tuple[Host, Case | None]] = [(case.host, case) for case in cases]
    trials: list[Trial] = []
    for defence in defences:
        for part, what in ((benign, "benign"), (attacks, "attacks")):
            trials += _under(answers, part, defence, f"{what}, {defence}", detector, specials, seed)
    return trials


def _under(
    answers: Answers,
    subjects: Sequence[tuple[Host, Case | None]],
    defence: str,
    what: str,
    detector: TrainedDetector | None,
    specials: Sequence[str],
    seed: int,
) -> list[Trial]:
    texts = [host.text if case is None else case.untrusted for host, case in subjects]
    inner = "none" if defence in BY_OUTPUT else defence
    messages = [
        message(host, text, inner, specials=specials, mark=_mark(seed, host, case))
        for (host, case), text in zip(subjects, texts)
    ]
    outputs = answers.ask(messages, what)
    alarms = [False] * len(texts)
    if defence == "detector" and texts:
        assert detector is not None
        alarms = detector.flags(texts)
    return [
        _judged(host, case, defence, asked, written, alarm)
        for (host, case), asked, written, alarm in zip(subjects, messages, outputs, alarms)
    ]


def _judged(host: Host, case: Case | None, defence: str, asked: str, written: Sequence[str], alarm: bool) -> Trial:
    blocked = tuple(alarm or (defence == "validator" and not valid(host, output)) for output in written)
    solved = tuple(
        not stop and solves(host.task, output, host.text, host.answer) for output, stop in zip(written, blocked)
    )
    obeyed = tuple(
        None if stop or case is None else case.rule(output, case.attack, host.text)
        for output, stop in zip(written, blocked)
    )
    return Trial(host, case, defence, asked, tuple(written), blocked, solved, obeyed)


def run_pasted(answers: Answers, cases: Sequence[Case], target: Target) -> list[Trial]:
    """Attacks whose special tokens are read as tokens, as by a program that pastes texts into a template."""
    messages = [message(case.host, case.untrusted) for case in cases]
    outputs = answers.ask_pasted(messages, "special tokens read as tokens", target)
    return [
        _judged(case.host, case, "pasted", asked, written, False)
        for case, asked, written in zip(cases, messages, outputs)
    ]


def control(trials: Sequence[Trial], cases: Sequence[Case]) -> int:
    """How many rules say "obeyed" for the output on the benign twin: false successes, which should be none."""
    plain = {trial.host.id: trial.outputs for trial in trials if trial.case is None and trial.defence == "none"}
    return sum(
        any(case.rule(output, case.attack, case.host.text) is not None for output in plain[case.host.id])
        for case in cases
        if case.host.id in plain
    )


def success(trials: Sequence[Trial]) -> list[float]:
    """For each trial with an attack, the share of samples that obey."""
    return [sum(why is not None for why in trial.obeyed) / len(trial.obeyed) for trial in trials]


def utility(trials: Sequence[Trial]) -> list[float]:
    """For each trial, the share of samples that solve the task."""
    return [sum(trial.solved) / len(trial.solved) for trial in trials]


def estimate(shares: Sequence[float]) -> dict[str, float]:
    """Mean in percent with a 95 % interval over cases: Wilson's, or the bootstrap if cases have several samples."""
    if all(share in (0.0, 1.0) for share in shares):
        return rate(round(sum(shares)), len(shares))
    low, high = bootstrap(shares)
    mean = sum(shares) / len(shares)
    return {"count": len(shares), "share": 100 * mean, "low": 100 * low, "high": 100 * high}


def difference(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """The mean change in percentage points over the same cases, with a bootstrap interval."""
    changes = [new - old for old, new in zip(before, after)]
    low, high = bootstrap(changes)
    return {"change": 100 * sum(changes) / len(changes), "low": 100 * low, "high": 100 * high}


def grouped(trials: Sequence[Trial], attribute: str) -> Mapping[str, list[Trial]]:
    """Trials by family, position, kind or task."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(str(trial.record()[attribute]), []).append(trial)
    return groups


def _mark(seed: int, host: Host, case: Case | None) -> str:
    """A name for delimiters that no attack knows, the same in each run of a seed."""
    return hashlib.sha256(f"{seed} {host.id if case is None else case.id}".encode()).hexdigest()[:8]


__all__ = [
    "Trial",
    "control",
    "difference",
    "estimate",
    "grouped",
    "run_pasted",
    "run_trials",
    "success",
    "utility",
]
