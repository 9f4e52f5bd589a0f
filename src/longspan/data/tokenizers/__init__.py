"""Tokenizers: text to token ids and back.

- `tokenizer`: the tokenizer class; `learn`: learn one from text (BPE, WordPiece, Unigram, words, characters, bytes).
- `tokenizer_files`, `vocabularies`, `sentencepiece`: read the files of model folders.
- `chat_template`, `template_sandbox`: chat templates, and the sandbox they run in.
- `statistics`: how a tokenizer splits a text.
"""
