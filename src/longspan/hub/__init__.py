"""Load, use and save checkpoints of Hugging Face, llama.cpp and longspan.

load_checkpoint    `load`: a folder or file to a `Pretrained`
save_checkpoint    `save`: a folder that Hugging Face reads
pretrained         `Pretrained`: a model with its tokenizer and settings
conversion         `convert`: one checkpoint format to another
lift               a BERT-like encoder becomes an ETC
describe           what `longspan show FOLDER` prints
locate             find a model by its name: folder, run, file, package, or a name in
local_cache        the local cache of Hugging Face, which is only read
finetune           new heads on a pretrained model; frozen parameters

weight_mapping     move tensors between a checkpoint and a model
tensor_names       rules that rename tensors, in both directions
skip_init          build a model without initialising its parameters
changed_options    load weights into a model with another attention, length or vocabulary
sidecar_files      tokenizer, generation settings and sentence pooling
generation_config  generation_config.json as search options
sentence_pooling   pooling settings of sentence-transformers

their_tools        `register`, `use_attention`, `to_transformers`: the way into transformers

families/                architectures of Hugging Face
formats/                 file formats
transformers_interface/  our attention in their models
transformers_models/     our models as theirs, for Trainer, pipeline, generate, PEFT
use/                     generate, chat, translate, summarize, fill, embed, words
"""

from longspan.hub.conversion import convert
from longspan.hub.describe import describe
from longspan.hub.load_checkpoint import load
from longspan.hub.locate import locate
from longspan.hub.pretrained import Pretrained
from longspan.hub.save_checkpoint import save
from longspan.hub.their_tools import register, to_transformers, use_attention
from longspan.hub.use.chat import Chat
from longspan.hub.use.embed import TokenVectors, embed, embed_tokens
from longspan.hub.use.fill import MaskGuess, fill
from longspan.hub.use.generate import GeneratedText, generate, stream
from longspan.hub.use.summarize import summarize
from longspan.hub.use.translate import translate
from longspan.hub.use.words import load_words

__all__ = [
    "Chat",
    "GeneratedText",
    "MaskGuess",
    "Pretrained",
    "TokenVectors",
    "convert",
    "describe",
    "embed",
    "embed_tokens",
    "fill",
    "generate",
    "load",
    "load_words",
    "locate",
    "register",
    "save",
    "stream",
    "summarize",
    "to_transformers",
    "translate",
    "use_attention",
]
