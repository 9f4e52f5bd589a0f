"""Fill masks: the most probable tokens at the masked positions of a text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from longspan.data.tokenizers.tokenizer import Side
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import TextHeads

MASKS = ("[MASK]", "<mask>")  # accepted for every model, whatever its own mask is called
BATCH = 16


@dataclass(frozen=True)
class MaskGuess:
    """A candidate for a masked token."""

    id: int
    token: str  # as the vocabulary spells it
    word: str  # as text
    probability: float


@torch.inference_mode()
def fill(
    pretrained: Pretrained, texts: Sequence[str], *, top: int = 5, truncate: bool = False
) -> list[list[list[MaskGuess]]]:
    """For each text and each of its masks, the `top` most probable tokens, best first.

    A mask is the model's own, or "[MASK]" or "<mask>". Each mask is predicted independently.

    >>> fill(hub.load("bert-base-uncased"), ["The capital of France is [MASK]."])[0][0][0].word
    """
    if isinstance(texts, str):
        raise InvalidInput("expected a list of texts, got one text; put it in a list")
    if not texts:
        raise InvalidInput("there are no texts; give one at least")
    model, tokenizer = pretrained.model, tokenizer_of(pretrained)
    if not isinstance(model, TextHeads) or "masked" not in model.heads:
        heads = ", ".join(getattr(model, "heads", {})) or "none"
        raise Unsupported(
            f"this {pretrained.family or model.name} has no head that predicts masked tokens; it has: {heads}"
        )
    mask = tokenizer.special.get("mask")
    if mask is None or tokenizer.mask is None:
        raise Unsupported("this tokenizer has no token for masks")
    vocabulary = getattr(model.options, "vocabulary", tokenizer.size)
    if not 1 <= top <= vocabulary:
        raise InvalidOption(f"top must be 1 to {vocabulary}, the vocabulary, not {top}")
    written = re.compile("|".join(map(re.escape, dict.fromkeys((mask, *MASKS)))))
    marked = [written.sub(lambda _: mask, text) for text in texts]
    for row, text in enumerate(marked):
        if mask not in text:
            raise InvalidInput(f"text {row} has no {mask}, and nothing to predict: {texts[row][:60]!r}")
    side: Side | None = "right" if truncate else None
    results: list[list[list[MaskGuess]]] = []
    for start in range(0, len(marked), BATCH):
        encoded = read_texts(pretrained, marked[start : start + BATCH], allow=[mask], truncate=side, first=start)
        for row, tokens in enumerate(encoded):
            if tokenizer.mask not in tokens.ids:
                raise InvalidInput(
                    f"text {start + row} has its {mask} behind the {len(tokens)} tokens that can be read"
                )
        filled = tokenizer.pad_batch(encoded, padding=getattr(model.options, "padding", None))
        ids, real = filled.ids.to(model.device), filled.mask.to(model.device)
        masked = (ids == tokenizer.mask) & real
        logits = model.outputs(ids, key_mask=real, chosen=masked)["masked"]
        chances, best = logits.float().softmax(-1).topk(top)
        guesses = [
            [_guess(pretrained, number, chance) for number, chance in zip(*row)]
            for row in zip(best.tolist(), chances.tolist())
        ]
        counts = masked.sum(1).tolist()
        for count in counts:
            results.append(guesses[:count])
            guesses = guesses[count:]
    return results


def _guess(pretrained: Pretrained, number: int, probability: float) -> MaskGuess:
    tokenizer = tokenizer_of(pretrained)
    known = tokenizer.inner.id_to_token(number)  # a model may have more rows than its tokenizer has tokens
    return MaskGuess(number, "" if known is None else known, tokenizer.decode([number], special=True), probability)


__all__ = ["MaskGuess", "fill"]
