"""What recurrent models can and cannot learn: three small tasks with generated data.

    python -m benchmarks.seq2seq --task copy      # without attention, accuracy falls with the length of the source
    python -m benchmarks.seq2seq --task reverse   # the alignment that attention learns is the anti-diagonal
    python -m benchmarks.seq2seq --task recall    # an LSTM remembers over 50 steps, an Elman network does not

`--steps`, `--width` and `--seed` change the budget; `--json FILE` writes the results. Expected results:

- copy, both models trained on lengths 1 to 40: without attention over 95 % exact up to length 10, and at least 30
  points below attention at 40;
- reverse: over 90 % of the largest weights on the anti-diagonal;
- recall at lag 50: LSTM over 99 %, Elman at least 30 points less.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.energy import spent
from longspan.models import build
from longspan.models.base import Model
from longspan.nn.loss import IGNORED

PAD, BEGIN, END, FIRST = 0, 1, 2, 3
SYMBOLS = 8
BATCH = 64


def learn(model: Model, loss: Callable[[], Tensor], steps: int, rate: float) -> Iterator[tuple[int, float]]:
    """Adam with linear decay and gradients clipped at 1; reports progress now and then."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, steps)
    model.train()
    for step in range(1, steps + 1):
        value = loss()
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % max(steps // 5, 1) == 0:
            yield step, value.item()
    model.eval()


def pairs(lengths: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Source, its mask, what the decoder reads, the mask of that, and its targets; padding on the right."""
    longest = int(lengths.max())
    places = torch.arange(longest + 1)
    source = torch.randint(FIRST, FIRST + SYMBOLS, (len(lengths), longest))
    mask = places[:-1] < lengths[:, None]
    mirrored = source.gather(1, (lengths[:, None] - 1 - places[:-1]).clamp_min(0))
    wanted = mirrored if reverse else source
    targets = torch.cat([wanted, torch.full((len(lengths), 1), END)], 1)
    targets[places == lengths[:, None]] = END
    real = places <= lengths[:, None]
    inputs = torch.cat([torch.full((len(lengths), 1), BEGIN), targets[:, :-1]], 1)
    return source.where(mask, PAD), mask, inputs.where(real, PAD), real, targets.where(real, IGNORED)


def translate(model: Any, source: Tensor, mask: Tensor, inputs: Tensor, real: Tensor) -> Tensor:
    return model(source, inputs, source_mask=mask, key_mask=real)


def train_pairs(options: dict[str, Any], longest: int, given: argparse.Namespace, *, reverse: bool) -> Any:
    torch.manual_seed(given.seed)
    model: Any = build("seq2seq", vocabulary=FIRST + SYMBOLS, **options)

    def loss() -> Tensor:
        # One length per batch, so that short batches are cheap; all lengths are equally likely.
        lengths = torch.randint(1, longest + 1, (1,)).expand(BATCH)
        source, mask, inputs, real, targets = pairs(lengths, reverse=reverse)
        logits = translate(model, source, mask, inputs, real)
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    begin = time.perf_counter()
    for step, value in learn(model, loss, given.steps, given.rate):
        print(f"  step {step}: loss {value:.4f}, {time.perf_counter() - begin:.0f} s", flush=True)
    return model


@torch.no_grad()
def exact(model: Any, length: int, *, reverse: bool, count: int = 200) -> float:
    """The share of sentences that greedy decoding gets entirely right.

    Greedy output equals the target exactly if each token is the likeliest after the target's tokens before it, so that
    one parallel pass tells.
    """
    source, mask, inputs, real, targets = pairs(torch.full((count,), length), reverse=reverse)
    return (translate(model, source, mask, inputs, real).argmax(-1) == targets).all(1).double().mean().item()


def copy(given: argparse.Namespace) -> dict[str, Any]:
    sizes = {"embedding": 32, "width": given.width, "layers": 1, "reverse_source": False, "forget_bias": 1.0}
    forms: dict[str, dict[str, Any]] = {"plain": {}, "luong": {"decoder": "luong", "score": "general"}}
    record: dict[str, Any] = {}
    lengths = (1, 5, 10, 15, 20, 30, 40)
    for form, options in forms.items():
        print(f"copy, {form}")
        model = train_pairs({**sizes, **options, "init_bound": 0.1}, 40, given, reverse=False)
        record[form] = {length: exact(model, length, reverse=False) for length in lengths}
    print(f"{'exact, %':12}" + "".join(f"{length:>7}" for length in lengths))
    for form, found in record.items():
        print(f"{form:12}" + "".join(f"{100 * share:7.1f}" for share in found.values()))
    return record


def reverse(given: argparse.Namespace) -> dict[str, Any]:
    sizes = {"embedding": 32, "width": given.width, "layers": 1, "reverse_source": False, "init_bound": 0.1}
    own = {"decoder": "bahdanau", "cell": "gru", "bidirectional": True, "maxout": given.width}
    print("reverse, bahdanau")
    model = train_pairs({**sizes, **own}, 20, given, reverse=True)
    record = {}
    for length in (10, 20):
        source, _, inputs, _, _ = pairs(torch.full((100,), length), reverse=True)
        with torch.no_grad():
            _, state = model.extend(inputs, model.start(100, source=source, align=True))
        looked = state.alignment[:, :length].argmax(-1)
        share = (looked == torch.arange(length - 1, -1, -1)).double().mean().item()
        right = exact(model, length, reverse=True)
        record[length] = {"anti-diagonal": share, "exact": right}
        print(f"length {length}: {100 * share:.1f} % on the anti-diagonal, {100 * right:.1f} % exact")
    return record


def recall(given: argparse.Namespace, lag: int = 50) -> dict[str, Any]:
    """One of 8 symbols, then blanks, then the question: which was it? Trained on lags 1 to `lag`, asked at `lag`."""
    blank, question = SYMBOLS, SYMBOLS + 1
    record = {}
    for cell in ("elman", "lstm"):
        torch.manual_seed(given.seed)
        bias = 1.0 if cell == "lstm" else None
        sizes = {"width": given.width, "layers": 1, "dropout": 0.0, "init_bound": given.width**-0.5}
        model: Any = build("recurrent", vocabulary=SYMBOLS + 2, cell=cell, forget_bias=bias, **sizes)

        def answers(count: int, blanks: int, model: Any = model) -> tuple[Tensor, Tensor]:
            wanted = torch.randint(SYMBOLS, (count,))
            between = torch.full((count, blanks), blank)
            ids = torch.cat([wanted[:, None], between, torch.full((count, 1), question)], 1)
            return model.extend(ids, model.start(count), last=True)[0][:, 0], wanted

        def loss(ask: Callable[[int, int], tuple[Tensor, Tensor]] = answers) -> Tensor:
            return cross_entropy(*ask(BATCH, int(torch.randint(1, lag + 1, ()))))

        print(f"recall over {lag}, {cell}")
        for step, value in learn(model, loss, given.steps, given.rate):
            print(f"  step {step}: loss {value:.4f}", flush=True)
        with torch.no_grad():
            logits, wanted = answers(1000, lag)
        record[cell] = (logits.argmax(-1) == wanted).double().mean().item()
        print(f"{cell}: {100 * record[cell]:.1f} % right (chance {100 / SYMBOLS:.1f})")
    return record


TASKS = {"copy": (copy, 3000, 128), "reverse": (reverse, 1500, 64), "recall": (recall, 1000, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(TASKS), required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    run, steps, width = TASKS[given.task]
    given.steps, given.width = given.steps or steps, given.width or width
    record = run(given)
    if given.json:
        settings = {name: getattr(given, name) for name in ("task", "steps", "width", "rate", "seed")}
        given.json.write_text(json.dumps({**settings, "found": record, "energy": spent()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
