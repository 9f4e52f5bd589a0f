"""The effect of strict causality on a small language model: the paper's form against the strict one.

    LONGSPAN_DATA=/path/to/data python -m benchmarks.strict_forms [--steps 400] [--seeds 3] [--json FILE]

In the papers' training forms of Reformer and Routing, later tokens influence which earlier ones are read. This measures
two losses on held-out text, in bits per character:

- parallel: the whole text at once, as papers report it. In the paper's form, future tokens influence the pattern of
  each prediction.
- honest: the same predictions from the preceding text alone, as in generation. For the strict form both losses are
  equal by construction.

Tiny Shakespeare by character; 2 layers of 64, 4 heads, 256 characters, batches of 8.
"""

import argparse
import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan.models.decoder import Decoder

LENGTH, BATCH = 256, 8
SIZES = {"width": 64, "layers": 2, "heads": 4, "hidden": 256, "max_length": LENGTH}
# Rotary positions: a learned position table does not learn to read the previous character within this budget.
KIND = {
    "norm_position": "pre",
    "activation": "gelu",
    "position": "rotary",
    "dropout": 0.0,
    "scale": False,
    "init": "normal",
}

FORMS = {
    "reformer, paper": {"name": "reformer", "form": "paper", "chunk": 16, "rounds": 2},
    "reformer, strict": {"name": "reformer", "form": "strict", "chunk": 16, "rounds": 2},
    "routing, paper": {"name": "routing", "membership": "sequence", "clusters": 8, "window": 32},
    "routing, strict": {"name": "routing", "membership": "strict", "clusters": 8, "window": 32},
}


def train(text: Tensor, symbols: int, attention: dict[str, object], seed: int, steps: int) -> Decoder:
    torch.manual_seed(seed)
    model = Decoder.build(vocabulary=symbols, attention=attention, **SIZES, **KIND)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,))
        rows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        auxiliary = model.auxiliary_loss()
        loss = loss if auxiliary is None else loss + auxiliary
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def losses(model: Decoder, text: Tensor) -> tuple[float, float]:
    """Bits per character, parallel and honest, on the same predictions: the second half of each row."""
    rows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:32]
    positions = torch.arange(LENGTH // 2, LENGTH, 8)
    targets = rows[:, positions + 1]
    parallel = cross_entropy(model(rows[:, :-1])[:, positions].flatten(0, 1), targets.flatten())
    honest = torch.stack([model(rows[:, : position + 1])[:, -1] for position in positions.tolist()], dim=1)
    return parallel.item() / math.log(2), cross_entropy(honest.flatten(0, 1), targets.flatten()).item() / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if "LONGSPAN_DATA" not in os.environ:
        parser.error("set LONGSPAN_DATA to the folder that contains tinyshakespeare/input.txt")
    text = (Path(os.environ["LONGSPAN_DATA"]) / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    known = sorted(set(text))
    ids = torch.tensor([known.index(symbol) for symbol in text])
    border = len(ids) * 9 // 10

    record = {}
    print(f"{'':20}{'parallel':>18}{'honest':>18}   bits per character, {given.seeds} seeds, {given.steps} steps")
    for form, attention in FORMS.items():
        found = [
            losses(train(ids[:border], len(known), attention, seed, given.steps), ids[border:])
            for seed in range(given.seeds)
        ]
        columns = torch.tensor(found).T
        record[form] = {kind: column.tolist() for kind, column in zip(("parallel", "honest"), columns)}
        shown = "".join(f"{column.mean():11.3f} ±{column.std():5.3f}" for column in columns)
        print(f"{form:20}{shown}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
