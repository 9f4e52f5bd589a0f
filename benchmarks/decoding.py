"""Time and state of one decoding step after contexts of growing length.

    python -m benchmarks.decoding [--lengths 1024,4096,16384,65536] [--only linear] [--repeats 5]

One attention of 8 heads of 64, batch 1, float32, 2 threads: the step of one token, as the ratio to the step at the
shortest context, and the bytes of the state. Constant-state mechanisms should stay at 1.
"""

import argparse
from functools import partial

import torch

from benchmarks.timing import compare
from longspan.attention import build, find, names

HEADS, WIDTH, STEPS = 8, 64, 32
OPTIONS = {"window": {"window": 256}, "image_local": {"query_block": 256, "memory": 256}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,4096,16384,65536")
    parser.add_argument("--only", default="linear,performer,window,retention,softmax")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    lengths = [int(part) for part in given.lengths.split(",")]
    chosen = [name for name in given.only.split(",") if name in names() and find(name).supports.streaming]
    print(f"{'':18}{'ms at ' + str(lengths[0]):>12}" + "".join(f"{n:>9}" for n in lengths) + "   MB of state")
    for name in chosen:
        sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": max(lengths) + 2 * STEPS}
        attention = build(name, **sizes, causal=True, **OPTIONS.get(name, {})).eval()
        cases, held = {}, {}
        with torch.inference_mode():
            for length in lengths:
                state = attention.start(1)
                for begin in range(0, length, 4096):
                    piece = torch.randn(1, HEADS, min(4096, length - begin), WIDTH)
                    _, state = attention.extend(piece, piece, piece, state)
                held[length] = state.bytes
                cases[length] = partial(steps, attention, state)
            best = compare(cases, given.repeats)
        first = best[lengths[0]]
        ratios = "".join(f"{best[length] / first:9.2f}" for length in lengths)
        bytes_shown = " ".join(f"{held[length] / 1e6:.2f}" for length in lengths)
        print(f"{name:18}{1e3 * first / STEPS:12.3f}{ratios}   {bytes_shown}", flush=True)


def steps(attention, state) -> None:  # type: ignore[no-untyped-def]
    token = torch.ones(1, HEADS, 1, WIDTH)
    for _ in range(STEPS):
        _, state = attention.extend(token, token, token, state)


if __name__ == "__main__":
    main()
