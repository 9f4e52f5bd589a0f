"""Decoding with any model that has `start` and `extend`: `generate`, `stream`, `beam_search`, `score`."""

from longspan.decode.beam import Hypothesis, beam_search
from longspan.decode.beam_batches import search_many
from longspan.decode.ensemble import Ensemble
from longspan.decode.generation import Generation, Piece, generate, stream
from longspan.decode.options import GREEDY, Beam, Sampling
from longspan.decode.prefix_cache import PrefixCache
from longspan.decode.scoring import score
from longspan.decode.text import Detokeniser, StopStrings

__all__ = [
    "GREEDY",
    "Beam",
    "Detokeniser",
    "Ensemble",
    "Generation",
    "Hypothesis",
    "Piece",
    "PrefixCache",
    "Sampling",
    "StopStrings",
    "beam_search",
    "generate",
    "score",
    "search_many",
    "stream",
]
