"""Data: from text and images on disk to batches.

base            `Data`: numbered examples, in batches whose order is a function of seed and epoch
order           shuffled orders that are computed, not stored
examples        texts of different lengths, in batches with little padding
files           JSON and text files, with errors that name them
json_lines      JSON lines, each checked before it is used
npz_files       .npz files, checked before memory is taken for them

tokenizers/     text to token ids and back: read, learn, chat templates
text/           text files, tables, parallel text; token files; masking and noise for pre-training
images/         images with labels
sets/           named data sets: catalogue, download, preparation; and generated ones
"""

from longspan.data.tokenizers.chat_template import encode_chat
from longspan.data.tokenizers.tokenizer import Encoded, Padded, Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_tokenizer

__all__ = ["Encoded", "Padded", "Tokenizer", "encode_chat", "read_tokenizer"]
