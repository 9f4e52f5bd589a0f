"""Text to token ids and back.

tokenizer         `Tokenizer`: encode, decode, pad, save
tokenizer_files   read the tokenizer of a folder, whatever files it has
vocabularies      tokenizers from vocab.txt, vocab.json with merges.txt, or SentencePiece files
sentencepiece     the protocol buffer of SentencePiece files
learn             learn a tokenizer from text
template          special tokens that a task puts around its texts
chat_template     conversations as a model was trained on them
template_sandbox  run the Jinja template of a stranger with limits
statistics        how a tokenizer cuts a text
"""
