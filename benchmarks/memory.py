"""Speed of a Transformer-XL layer relative to torch's full attention, forward and with backward.

    python -m benchmarks.memory [--length 4096] [--segment 512] [--memory 512] [--repeats 7]

Float32, batch 1, width 512, 8 heads of 64, 2 threads. The layer has five projections and reads the whole text segment
by segment; full attention has no projections, as in `benchmarks.attention`. Goal: 1.5 / 2 at length 4096.
"""

import argparse
from functools import partial

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention import HEADS, KINDS, WIDTH
from longspan.measure.subject import Subject
from longspan.measure.timing import compare
from longspan.nn.memory_layer import LayerMemory, MemoryLayer, Reach
from longspan.nn.relative_multihead import RelativeAttention
from longspan.nn.residual import Residual


def layer_case(length: int, segment: int, memory: int) -> Subject:
    torch.manual_seed(0)
    width = HEADS * WIDTH
    u, w = (nn.Parameter(torch.randn(HEADS, WIDTH)) for _ in range(2))
    attention = RelativeAttention(width, HEADS, WIDTH, u, w)
    layer = MemoryLayer(attention, nn.Identity(), residual=partial(Residual, width, norm_position="none"))
    reach = Reach(segment=segment, memory=memory, furthest=segment + memory - 1)
    none = torch.zeros(1, 0, width)

    def run(x: torch.Tensor) -> torch.Tensor:
        return layer(x, LayerMemory(none, none), reach, attention.distances(segment + memory))[0]

    return Subject(run, (torch.randn(1, length, width, requires_grad=True),), layer, tuple(layer.parameters()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--segment", type=int, default=512)
    parser.add_argument("--memory", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    heads = tuple(torch.randn(1, HEADS, given.length, WIDTH, requires_grad=True) for _ in range(3))
    cases = {
        "full": Subject(scaled_dot_product_attention, heads),
        "layer": layer_case(given.length, given.segment, given.memory),
    }
    best = compare({(name, kind): getattr(case, kind) for name, case in cases.items() for kind in KINDS}, given.repeats)
    times = [1e3 * best["layer", kind] for kind in KINDS]
    ratios = [best["full", kind] / best["layer", kind] for kind in KINDS]
    print(f"transformer_xl, segment {given.segment}, memory {given.memory}, length {given.length}")
    print(f"{times[0]:.0f} / {times[1]:.0f} ms, {ratios[0]:.2f} / {ratios[1]:.2f} times faster than full attention")


if __name__ == "__main__":
    main()
