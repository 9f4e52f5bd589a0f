"""Layouts: where the keys of each query lie, and how to reach them without an n × n tensor.

A mechanism of the pattern family is a union of *sources* of keys, each with a layout, under one softmax (see
`joint.py`). A layout knows two ways to the same numbers:

- plain: `scores` of every query with its keys, (batch, heads, queries, width), and `mix` of weights with values. It is
  made of ordinary differentiable operations: learned biases, compilers and other devices use it.
- fused: `forward` and `backward` over torch's CPU kernel in pieces that stay in cache. Nothing of the scores is kept.

The names K1–K8 are those of the specification the project grew from.
"""

from longspan.attention.layouts.axis import GridAxis
from longspan.attention.layouts.band import Band
from longspan.attention.layouts.base import Layout, ceil_div, check_reach, first_rows, offset_bias
from longspan.attention.layouts.blocks import BlockTable
from longspan.attention.layouts.by_head import ByHead
from longspan.attention.layouts.dense import Dense, stream_queries
from longspan.attention.layouts.grid import (
    blocks_to_raster,
    fold_axis,
    place_in_blocks,
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
    "place_in_blocks",
    "rank_in_blocks",
    "raster_to_blocks",
    "relative_scores",
    "skew",
    "stream_queries",
    "unfold_axis",
    "unfold_residues",
]
