"""Each mechanism against torch's own full attention, in one run: times faster, forward and with backward.

    python -m benchmarks.attention [--length 4096] [--only window] [--repeats 7] [--json FILE]

Float32, batch 1, 8 heads of 64, 2 threads. The goals are those of the project's first release.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import compare
from longspan.attention import build

HEADS, WIDTH = 8, 64

# (row, mechanism, causal, options, goal forward, goal with backward)
ROWS = [
    ("softmax", "softmax", False, {}, 1.0, 1.0),
    ("window, causal 256", "window", True, {"window": 255}, 10.0, 9.0),
    ("window, ±128", "window", False, {"window": 128}, 9.0, 8.0),
    ("reformer, 4 rounds", "reformer", False, {"rounds": 4, "chunk": 64}, 2.8, 3.6),
    ("reformer, causal", "reformer", True, {"rounds": 4, "chunk": 64}, 2.2, 2.8),
    ("routing, window 128", "routing", False, {"window": 128, "clusters": 32}, 6.5, 14.0),
    ("linformer, k 256", "linformer", False, {"rank": 256}, 4.5, 5.0),
    ("nystrom, 64 landmarks", "nystrom", False, {"landmarks": 64, "kernel": 0}, 18.0, 15.0),
    ("nystrom, kernel 33", "nystrom", False, {"landmarks": 64, "kernel": 33}, 18.0, 15.0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--padding", action="store_true", help="hide the last tenth of the keys")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, given.length, WIDTH, requires_grad=True) for _ in range(3))
    gradient = torch.randn_like(q)
    mask = torch.arange(given.length)[None] < given.length * 9 // 10 if given.padding else None
    rows = [row for row in ROWS if given.only in row[0]]

    def forward(call) -> None:  # type: ignore[no-untyped-def]
        with torch.no_grad():
            call(q, k, v)

    def backward(call) -> None:  # type: ignore[no-untyped-def]
        out: Tensor = call(q, k, v)
        torch.autograd.grad(out, (q, k, v), gradient, allow_unused=True)  # shared queries and keys leave out k

    calls = {"full": scaled_dot_product_attention}
    for row, name, causal, options, _, _ in rows:
        sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": given.length}
        module = build(name, **sizes, causal=causal, dropout=given.dropout, **options)
        calls[row] = lambda q, k, v, module=module: module(q, k, v, key_mask=mask)
    cases = {
        (name, kind.__name__): (lambda kind=kind, call=call: kind(call))
        for name, call in calls.items()
        for kind in (forward, backward)
    }
    best = compare(cases, given.repeats)

    full = best["full", "forward"], best["full", "backward"]
    print(f"length {given.length}, full attention {1e3 * full[0]:.0f} / {1e3 * full[1]:.0f} ms")
    print(f"{'':28}{'ms':>15}{'times faster':>16}{'goal':>14}")
    record = {}
    for row, _, _, _, *goal in rows:
        times = best[row, "forward"], best[row, "backward"]
        ratios = [whole / part for whole, part in zip(full, times)]
        record[row] = [round(ratio, 2) for ratio in ratios]
        met = "" if ratios[0] >= goal[0] and ratios[1] >= goal[1] else "  short"
        shown = f"{1e3 * times[0]:7.1f} /{1e3 * times[1]:6.1f}{ratios[0]:8.1f} /{ratios[1]:6.1f}"
        print(f"{row:28}{shown}{goal[0]:7g} /{goal[1]:5g}{met}")
    if given.json:
        given.json.write_text(json.dumps({"length": given.length, "times_faster": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
