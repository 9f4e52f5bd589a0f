"""Checkpoints of Hugging Face and others, in and out: `load` reads a folder or file, `save` writes a folder."""

from longspan.hub.files import load
from longspan.hub.folder import Pretrained, save

__all__ = ["Pretrained", "load", "save"]
