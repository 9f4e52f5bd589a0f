"""Time and state of one decoding step after contexts of growing length.

    python -m benchmarks.decoding [--lengths 1024,4096,16384,65536] [--only linear] [--models] [--repeats 5]

One attention of 8 heads of 64 or, with `--models`, a whole language model (2 layers of 256, 4 heads, vocabulary 256);
batch 1, float32, 2 threads. Prints the time of a one-token step relative to the shortest context, and the bytes of the
state. With a constant-size state the ratio should stay at 1.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from longspan.attention import build, find, names
from longspan.measure.timing import compare
from longspan.models import build as build_model

HEADS, WIDTH, STEPS, VOCABULARY = 8, 64, 32, 256
OPTIONS = {"window": {"window": 256}, "image_local": {"query_block": 256, "memory": 256}}
CONSTANT = "linear,performer,window,retention"
MEMORY = {"segment": 256, "memory": 256}
MODELS: dict[str, dict[str, Any]] = {
    "transformer_xl": {**MEMORY, "same_length": True},
    "compressive": {**MEMORY, "slots": 256, "ratio": 4},
    "recurrent": {"width": 256, "embedding": 256, "layers": 2},
}
BODY = {"width": 256, "layers": 2, "heads": 4, "hidden": 1024}

Read = Callable[[int, Any], Any]  # (number of tokens, state) -> state after them


def attention(name: str, longest: int) -> tuple[Any, Read]:
    """The first state of one attention, and a function that reads more tokens."""
    sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": longest}
    mechanism = build(name, **sizes, causal=True, **OPTIONS.get(name, {})).eval()

    def read(count: int, state: Any) -> Any:
        heads = torch.randn(1, HEADS, count, WIDTH) if count > 1 else torch.ones(1, HEADS, 1, WIDTH)
        return mechanism.extend(heads, heads, heads, state)[1]

    return mechanism.start(1), read


def model(name: str, longest: int) -> tuple[Any, Read]:
    """The same for a whole model: one of `MODELS`, or a decoder with the mechanism of that name."""
    if name in MODELS:
        body = {} if name == "recurrent" else BODY
        network = build_model(name, vocabulary=VOCABULARY, **body, **MODELS[name]).eval()
    else:
        config = {"name": name, **OPTIONS.get(name, {})}
        network = build_model("decoder", vocabulary=VOCABULARY, **BODY, attention=config, max_length=longest).eval()

    def read(count: int, state: Any) -> Any:
        return network.extend(torch.ones(1, count, dtype=torch.long), state, last=True)[1]

    return network.start(1), read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,4096,16384,65536")
    parser.add_argument("--only", default=None, help="names, separated by commas")
    parser.add_argument("--models", action="store_true", help="whole models instead of single attentions")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    lengths = [int(part) for part in given.lengths.split(",")]
    known = [name for name in names() if find(name).supports.streaming] + (list(MODELS) if given.models else [])
    wanted = given.only or (f"{CONSTANT},{','.join(MODELS)},softmax" if given.models else f"{CONSTANT},softmax")
    print(f"{'':18}{'ms at ' + str(lengths[0]):>12}" + "".join(f"{n:>9}" for n in lengths) + "   MB of state")
    for name in wanted.split(","):
        if name not in known:
            parser.error(f"{name} is unknown or cannot decode; known: {', '.join(known)}")
        cases, held = {}, {}
        with torch.inference_mode():
            first, read = (model if given.models else attention)(name, max(lengths) + 2 * STEPS)
            for length in lengths:
                state = first
                for begin in range(0, length, 4096):
                    state = read(min(4096, length - begin), state)
                held[length] = state.bytes
                cases[length] = partial(steps, read, state)
            best = compare(cases, given.repeats)
        shortest = best[lengths[0]]
        ratios = "".join(f"{best[length] / shortest:9.2f}" for length in lengths)
        bytes_shown = " ".join(f"{held[length] / 1e6:.2f}" for length in lengths)
        print(f"{name:18}{1e3 * shortest / STEPS:12.3f}{ratios}   {bytes_shown}", flush=True)


def steps(read: Read, state: Any) -> None:
    for _ in range(STEPS):
        state = read(1, state)


if __name__ == "__main__":
    main()
