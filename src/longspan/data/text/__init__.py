"""Text for training: files, token files and the examples cut from them.

- `text_files`, `tables`, `parallel`: plain text, CSV and JSON lines, sentence pairs in two languages.
- `token_files`, `pieces`, `blocks`: token ids on disk, tokenised piece by piece, cut into training blocks.
- `corpora`, `sentence_pairs`: documents of sentences; pairs of spans for BERT-like pre-training.
- `masking`, `noise`: masked tokens (BERT, RoBERTa); text corruption (BART).
- `windows`: long texts in overlapping windows.
"""
