"""Each mechanism against torch's own full attention, in one run: times faster, forward and with backward.

    python -m benchmarks.attention [--length 4096] [--only window] [--repeats 7] [--json FILE]

Float32, batch 1, 8 heads of 64, 2 threads. Peak memory is that of a forward and backward pass in a process of its own
(`--memory`), above what the process held before.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.rows import ROWS, Row
from longspan.attention import build, names
from longspan.measure.timing import compare
from longspan.nn.multihead import MultiHead

HEADS, WIDTH, GLOBALS = 8, 64, 16
FULL = "full"
KINDS = ("forward", "backward")


class Case:
    """One call, and what its gradients are taken with respect to."""

    def __init__(
        self,
        run: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        module: nn.Module | None = None,
        learned: tuple[Tensor, ...] = (),
    ) -> None:
        self.run, self.inputs, self.module, self.learned = run, inputs, module, learned

    def forward(self) -> None:
        """As in use: in evaluation mode, unless there is dropout to be seen."""
        if self.module is not None:
            self.module.train(any(getattr(part, "dropout", 0.0) for part in self.module.modules()))
        with torch.no_grad():
            self.run(*self.inputs)

    def backward(self) -> None:
        """As in training."""
        if self.module is not None:
            self.module.train()
        out = self.run(*self.inputs)
        torch.autograd.grad(out, (*self.inputs, *self.learned), torch.ones_like(out), allow_unused=True)


def make(name: str, length: int, dropout: float, padding: bool) -> Case:
    """The case of one row; `full` is torch's own attention."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    if name == FULL:
        return Case(scaled_dot_product_attention, (q, k, v))
    row: Row = ROWS[name]
    sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": length}
    mechanism = build(row.mechanism, **sizes, causal=row.causal, dropout=dropout, **row.options)
    mask = torch.arange(length)[None] < length * 9 // 10 if padding else None
    if row.layer:
        layer = MultiHead(HEADS * WIDTH, mechanism)
        hidden = torch.randn(1, length, HEADS * WIDTH, requires_grad=True)
        return Case(partial(layer, key_mask=mask), (hidden,), layer, tuple(layer.parameters()))
    marked = (torch.arange(length) % (length // GLOBALS) == 0)[None]
    streams = {
        "heads": lambda: torch.randn_like(q).requires_grad_(),
        "hidden": lambda: torch.randn(1, length, HEADS * WIDTH, requires_grad=True),
        "mask": lambda: marked,
        "ids": lambda: torch.zeros(1, length, dtype=torch.long),
    }
    beside = {stream.name: streams[stream.kind]() for stream in mechanism.streams if stream.kind != "ids"}
    learned = [tensor for tensor in beside.values() if tensor.requires_grad]
    learned += [weight for weight in mechanism.parameters() if weight.requires_grad]
    inputs = (q, k, v) if "k" in mechanism.projects else (q, q, v) if "q" in mechanism.projects else (v, v, v)
    return Case(partial(mechanism, key_mask=mask, streams=beside), inputs, mechanism, tuple(learned))


def peak(name: str, length: int) -> int:
    """Bytes that a forward and backward pass adds to the process at its fullest."""
    case = make(name, length, 0.0, False)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = _status("VmRSS")
    case.backward()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dropout", type=float, default=0.0, help="on the weights, in training mode")
    parser.add_argument("--padding", action="store_true", help="hide the last tenth of the keys")
    parser.add_argument("--memory", action="store_true", help="peak memory too, each case in a process of its own")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [name for name, row in ROWS.items() if given.only in name and row.mechanism in names()]

    # One row at a time beside the baseline: thirty cases in one process would crowd each other out of the caches.
    best = {}
    baseline = make(FULL, given.length, 0.0, False)
    for name in rows:
        case = make(name, given.length, given.dropout, given.padding)
        times = compare(
            {(own, kind): getattr(each, kind) for own, each in ((FULL, baseline), (name, case)) for kind in KINDS},
            given.repeats,
        )
        best[name] = [(times[FULL, kind], times[name, kind]) for kind in KINDS]
    bytes_of = {}
    if given.memory:
        for name in rows:
            with get_context("spawn").Pool(1) as pool:
                bytes_of[name] = pool.apply(peak, (name, given.length))

    print(f"length {given.length}; full attention is measured anew beside each row")
    print(f"{'':30}{'ms':>15}{'times faster':>16}{'goal':>14}{'MiB' if bytes_of else '':>8}")
    record = {}
    for name in rows:
        times, goal = [own for _, own in best[name]], ROWS[name].goal
        ratios = [whole / own for whole, own in best[name]]
        record[name] = [round(ratio, 2) for ratio in ratios]
        met = "" if ratios[0] >= goal[0] and ratios[1] >= goal[1] else "  short"
        shown = f"{1e3 * times[0]:7.1f} /{1e3 * times[1]:6.1f}{ratios[0]:8.1f} /{ratios[1]:6.1f}"
        memory = f"{bytes_of[name] / 2**20:8.0f}" if bytes_of else ""
        print(f"{name:30}{shown}{goal[0]:7g} /{goal[1]:5g}{memory}{met}")
    if given.json:
        given.json.write_text(json.dumps({"length": given.length, "times_faster": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
