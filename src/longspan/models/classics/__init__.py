"""Models from before the Transformer: recurrent language models, seq2seq, ELMo and word2vec."""
