"""Decoding, over any model that can `start` and `extend`: `generate`, `stream`, `beam_search`, `score`."""

from longspan.decode.beam import Hypothesis, beam_search
from longspan.decode.beam_batches import search_many
from longspan.decode.ensemble import Ensemble
from longspan.decode.options import GREEDY, Beam, Sampling
from longspan.decode.prefix_cache import Memory
from longspan.decode.run import Generation, Piece, generate, stream
from longspan.decode.scoring import score
from longspan.decode.text import Detokeniser, StopStrings

__all__ = [
    "GREEDY",
    "Beam",
    "Detokeniser",
    "Ensemble",
    "Generation",
    "Hypothesis",
    "Memory",
    "Piece",
    "Sampling",
    "StopStrings",
    "beam_search",
    "generate",
    "score",
    "search_many",
    "stream",
]
