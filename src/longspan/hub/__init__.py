"""Checkpoints of Hugging Face and others, in and out: `load` reads a folder or file, `save` writes a folder.

What is loaded can be used in one line: `generate` and `stream` write text, `translate` translates, `fill`
predicts masked tokens, `embed` makes vectors of texts.
"""

from longspan.hub.chatting import Chat
from longspan.hub.conversion import convert
from longspan.hub.describe import describe
from longspan.hub.folder import save
from longspan.hub.loading import load
from longspan.hub.locate import locate
from longspan.hub.masked import Guess, fill
from longspan.hub.pretrained import Pretrained
from longspan.hub.translation import translate
from longspan.hub.vectors import embed
from longspan.hub.writing import Text, generate, stream

__all__ = [
    "Chat",
    "Guess",
    "Pretrained",
    "Text",
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
