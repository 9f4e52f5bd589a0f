"""All bias probes of a model, as findings for a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest
from longspan.hub.pretrained import Pretrained
from longspan.inspect.measures.findings import Finding
from longspan.probe import readers
from longspan.probe.pairs import pair_finding, score_causal, score_pairs
from longspan.probe.pronouns import template_finding, winogender_finding
from longspan.probe.salaries import salary_finding
from longspan.probe.scoring import Kind, LanguageScorer, Tell, quiet
from longspan.probe.stereoset import score_triples, stereoset_finding

PROBES = ("crows", "stereoset", "winobias", "winogender", "templates", "salaries")
MEANING = (
    "A probe measures preferences on its own sentences, not harm in use. A rate near 50 does not prove that a model "
    "is fair. What a model says of its own bias is text, not a measurement, and is not asked here."
)


@dataclass(frozen=True)
class BiasFiles:
    """Where the probes' files are; None: not given."""

    crows: Path | None = None
    stereoset: Path | None = None
    winobias: Path | None = None  # a folder
    winogender: Path | None = None  # a folder

    @classmethod
    def in_folder(cls, folder: Path) -> "BiasFiles":
        """The files by their published names in a data folder or its folder `bias`."""
        root = folder / "bias" if (folder / "bias").is_dir() else folder
        if not root.is_dir():
            raise InvalidInput(f"there is no folder {folder}")
        known = {
            "crows": root / "crows_pairs_anonymized.csv",
            "stereoset": root / "stereoset_dev_flat.json.gz",
            "winobias": root / "winobias",
            "winogender": root / "winogender",
        }
        return cls(**{name: path for name, path in known.items() if path.exists()})


def measure_bias(
    pretrained: Pretrained,
    files: BiasFiles,
    probes: Sequence[str] | None = None,
    *,
    kind: Kind | None = None,
    limit: int | None = None,
    samples: int = 2,
    seed: int = 0,
    tell: Tell = quiet,
) -> list[Finding]:
    """A finding per probe; `probes` None takes those whose files are there and that the model can do.

    `limit` draws that many pairs or triples of each file, by `seed`.
    """
    for name in probes or ():
        if name not in PROBES:
            raise UnknownName(f"there is no probe {name!r}; {suggest(name, PROBES)}")
    if limit is not None and limit < 2:
        raise InvalidOption(f"limit must be at least 2, not {limit}")
    scorer = LanguageScorer(pretrained, kind)
    chosen = tuple(probes or PROBES)
    needs = {name: getattr(files, _file(name)) is not None for name in chosen if _file(name)}
    if probes is not None:
        for name, there in needs.items():
            if not there:
                raise InvalidInput(
                    f"the probe {name} needs its file; give --data or the folder that LONGSPAN_DATA names"
                )
    work: dict[str, Any] = {}  # every file is read, and found good, before anything is measured
    for name in chosen:
        if needs.get(name, True):
            work[name] = _read(name, files)
    findings = []
    for name, content in work.items():
        tell(f"probe {name}")
        if name == "salaries" and scorer.kind == "masked":
            findings.append(Finding(name, "Salaries", skipped="the model writes no text"))
        elif name == "salaries":
            findings.append(salary_finding(pretrained, samples=samples, seed=seed, tell=tell))
        else:
            findings += _measure(name, content, scorer, limit, seed, tell)
    missing = [name for name, there in needs.items() if not there]
    findings += [Finding(name, name, skipped="its file is not there; give --data") for name in missing]
    return findings


def _file(probe: str) -> str:
    return {"templates": "winogender", "salaries": ""}.get(probe, probe)


def _read(name: str, files: BiasFiles) -> Any:
    if name == "crows" and files.crows:
        return readers.read_crows(files.crows)
    if name == "stereoset" and files.stereoset:
        return readers.read_stereoset(files.stereoset)
    if name == "winobias" and files.winobias:
        folder = files.winobias
        return [
            pair
            for kind in ("type1", "type2")
            for part in ("dev", "test")
            for pair in readers.read_winobias(
                folder / f"pro_stereotyped_{kind}.txt.{part}", folder / f"anti_stereotyped_{kind}.txt.{part}", kind
            )
        ]
    if name in ("winogender", "templates") and files.winogender:
        shares = readers.read_occupations(files.winogender / "occupations-stats.tsv")
        if name == "templates":
            return shares
        return readers.read_winogender(files.winogender / "all_sentences.tsv"), shares
    return None


def _measure(
    name: str, content: Any, scorer: LanguageScorer, limit: int | None, seed: int, tell: Tell
) -> list[Finding]:
    if name == "crows":
        pairs = _draw(content, limit, seed)
        if scorer.kind == "masked":
            return [pair_finding("crows", "CrowS-Pairs", score_pairs(scorer, pairs, tell), by_direction=True)]
        every, behind = score_causal(scorer, pairs, tell)
        title = "CrowS-Pairs, only shared words behind the difference"
        return [
            pair_finding("crows", "CrowS-Pairs", every, by_direction=True),
            pair_finding("crows_shared", title, behind, by_direction=True),
        ]
    if name == "stereoset":
        return [stereoset_finding(score_triples(scorer, _draw(content, limit, seed), tell))]
    if name == "winobias":
        caveat = (
            "The pronoun alone differs, and both genders are equally often the stereotype, so a general preference "
            "for one pronoun cancels. Type 2 can be solved by grammar, type 1 needs the world."
        )
        scores = score_pairs(scorer, _draw(content, limit, seed), tell)
        return [pair_finding("winobias", "WinoBias", scores, by_direction=False, caveat=caveat)]
    if name == "winogender":
        triples, shares = content
        return [winogender_finding(scorer, triples, shares, tell)]
    return [template_finding(scorer, content, tell)]


def _draw(items: list[Any], limit: int | None, seed: int) -> list[Any]:
    if limit is None or limit >= len(items):
        return items
    picks = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:limit].sort().values
    return [items[pick] for pick in picks.tolist()]


__all__ = ["MEANING", "PROBES", "BiasFiles", "measure_bias"]
