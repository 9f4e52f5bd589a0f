"""Layouts: which keys each query reads, and how to reach them without an n × n tensor.

A mechanism with a sparse pattern is a union of *sources* of keys, each with a layout, under one softmax
(`kernels.multi_source_softmax`). A layout computes the same numbers in two ways:

- plain: `scores` of every query with its keys, (batch, heads, queries, width), and `mix` of weights with values. These
  are ordinary differentiable operations, for learned biases, compilers and devices other than the CPU.
- fused: `forward` and `backward` with torch's CPU kernel, in pieces that stay in cache. No scores are stored.

The layouts, one a file:

- `dense`: every key, or every key up to the query. `band`: a sliding window.
- `tiles`: blocks of queries that share one stretch of keys. `own_block`: the past within the query's own block.
- `blocks`: blocks of keys chosen by a table (BigBird). `summaries`: a few fixed columns of every past block.
- `strided`: every stride-th past key. `residue`: every stride-th position as a separate sequence (dilation).
- `stairs`: one more key after every `stride` queries (compressed memories).
- `axis`: one axis of a grid (Axial). `rectangles`: blocks of an image with their surroundings (Image Transformer).
- `first_keys`: a few keys at given positions, for queries that have them behind their window.
- `routed`: groups of any size, each with a list of keys (Routing Transformer).
- `sorted`, `sorted_rows`, `sorted_whole`: rounds of sorted buckets (Reformer). `ring`: Reformer as released.
- `by_head`: a different layout for some heads. `grouped`: several query heads read one head of keys.

`base` defines `Layout`. `runs` and `strips` make the fused calls that several layouts share; `grid` has the index
arithmetic of images and of relative positions.
"""

from longspan.attention.layouts.axis import GridAxis
from longspan.attention.layouts.band import Band
from longspan.attention.layouts.base import Layout, ceil_div, check_reach, first_rows, offset_bias
from longspan.attention.layouts.blocks import BlockTable
from longspan.attention.layouts.by_head import ByHead
from longspan.attention.layouts.dense import Dense, stream_queries
from longspan.attention.layouts.first_keys import FirstKeys
from longspan.attention.layouts.grid import (
    blocks_to_raster,
    fold_axis,
    position_in_blocks,
    rank_in_blocks,
    raster_to_blocks,
    relative_scores,
    skew,
    unfold_axis,
)
from longspan.attention.layouts.own_block import OwnBlock
from longspan.attention.layouts.rectangles import Rectangles
from longspan.attention.layouts.residue import Residue, fold_residues, unfold_residues
from longspan.attention.layouts.ring import Ring
from longspan.attention.layouts.routed import Routed
from longspan.attention.layouts.sorted import Sorted
from longspan.attention.layouts.stairs import Stairs
from longspan.attention.layouts.strided import Strided
from longspan.attention.layouts.summaries import Summaries
from longspan.attention.layouts.tiles import Tiles

__all__ = [
    "Band",
    "BlockTable",
    "ByHead",
    "Dense",
    "FirstKeys",
    "GridAxis",
    "Layout",
    "OwnBlock",
    "Rectangles",
    "Residue",
    "Ring",
    "Routed",
    "Sorted",
    "Stairs",
    "Strided",
    "Summaries",
    "Tiles",
    "blocks_to_raster",
    "ceil_div",
    "check_reach",
    "first_rows",
    "fold_axis",
    "fold_residues",
    "offset_bias",
    "position_in_blocks",
    "rank_in_blocks",
    "raster_to_blocks",
    "relative_scores",
    "skew",
    "stream_queries",
    "unfold_axis",
    "unfold_residues",
]
