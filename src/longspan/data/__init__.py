"""Texts on their way to a model: so far, tokenizers."""

from longspan.data.tokenizers.chat_template import encode_chat
from longspan.data.tokenizers.tokenizer import Encoded, Padded, Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_tokenizer

__all__ = ["Encoded", "Padded", "Tokenizer", "encode_chat", "read_tokenizer"]
