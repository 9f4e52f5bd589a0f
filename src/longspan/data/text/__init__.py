"""Text on its way to a model.

text_files      plain and compressed files, by lines, documents or blocks
tables          CSV, tab-separated, JSON, Parquet and folders of texts, row by row
text_folders    which files of a folder count, and their labels
columns         guesses which column is the text and which the label
row_texts       the texts of a table's rows or a folder's files, as documents
parallel        sentence pairs of two languages, in batches of similar lengths
joined_pairs    the same pairs as one text each: source, separator, target
corpora         documents of sentences, for pre-training
pieces          a text larger than memory in pieces, cut between words
token_files     ids on disk, mapped into memory; shards
blocks          blocks of a token file for language models, shuffled or in streams
windows         texts that are longer than a model reads
sentence_pairs  spans for next-sentence and sentence-order prediction
sentence_tokens which tokens end a sentence
masking         masked language modelling
noise           BART's noise: infilling, deletion, permutation, rotation
"""
