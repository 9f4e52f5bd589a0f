"""Checkpoints of Hugging Face and others, in and out: `load` reads a folder or file, `save` writes a folder.

What is loaded can be used in one line: `generate` and `stream` write text, `translate` translates, `fill`
predicts masked tokens, `embed` makes vectors of texts.
"""

from longspan.hub.conversion import convert
from longspan.hub.describe import describe
from longspan.hub.load_checkpoint import load
from longspan.hub.locate import locate
from longspan.hub.pretrained import Pretrained
from longspan.hub.save_checkpoint import save
from longspan.hub.use.chat import Chat
from longspan.hub.use.embed import embed
from longspan.hub.use.fill import MaskGuess, fill
from longspan.hub.use.generate import GeneratedText, generate, stream
from longspan.hub.use.translate import translate

__all__ = [
    "Chat",
    "GeneratedText",
    "MaskGuess",
    "Pretrained",
    "convert",
    "describe",
    "embed",
    "fill",
    "generate",
    "load",
    "locate",
    "save",
    "stream",
    "translate",
]
