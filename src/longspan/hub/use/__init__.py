"""Using a pretrained model.

- `generate`, `chat`: continue a prompt; hold a conversation.
- `fill`: predict masked tokens.
- `embed`: vectors of texts.
- `translate`: translate with an encoder–decoder.
- `texts`: encode texts for a model, within the length it can read.
"""
