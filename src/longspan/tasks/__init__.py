"""Tasks: what models are trained for and measured by. A recipe's table `[task]` names one.

    base         `Task`, `Objective` and `Metrics`; registry has the names
    language     the next token              masked       masked tokens, with sentence pairs or without
    detect       replaced tokens             denoise      restoring corrupted texts
    classify     labels or numbers           tag          a tag for each word
    answer       spans of a passage          choose       multiple choice
    translate    sentence to sentence        summarize    a text to its summary
    images       labels of images

    pretraining  what masked, detect and denoise share: documents and how they are masked
    text_inputs  what classify, tag, answer and choose share: files, tokenizer, how a model reads a batch
    starting     small models and training for recipes that are written for a user's own data
    splits       held-out rows           survey       what is in a file
    metrics      metrics by their definitions; metric_sums adds their counts up over batches; bleu; rouge; baselines
    predict      a trained model on new texts

Tasks ask models for abilities of `longspan.models.base`, so that any model with the ability can be trained.
"""
