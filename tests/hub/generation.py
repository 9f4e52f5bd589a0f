"""Holding generation to Hugging Face's `generate`, token for token."""

from typing import Any

import torch

from longspan.decode import Beam, beam_search, generate
from longspan.hub import Pretrained

PROMPTS = [[5, 9, 17, 4, 8], [7], [11, 3, 22]]
PADDING = 2  # not 0: Hugging Face's beam search takes that for none and fills up with the end instead


def assert_same_texts(found: Pretrained, theirs: Any, *, beams: int, new: int) -> None:
    """Greedy or beam search over prompts of unequal lengths, to the length limit and then to an end before it."""
    first = _ours(found, beams, new, None)
    assert first == _theirs(theirs, beams, new, None) and all(len(text) == new for text in first)
    end = first[0][new // 2]
    second = _ours(found, beams, new, end)
    assert any(len(text) < new for text in second)
    longest = max(map(len, second))
    assert _theirs(theirs, beams, new, end) == [text + [PADDING] * (longest - len(text)) for text in second]


def _ours(found: Pretrained, beams: int, new: int, end: int | None) -> list[list[int]]:
    if beams == 1:
        return generate(found.model, PROMPTS, max_new=new, eos=end).tokens
    options = Beam(beams=beams, length_penalty="none", max_new=new)
    return [row[0].tokens for row in beam_search(found.model, PROMPTS, options=options, eos=end)]


def _theirs(model: Any, beams: int, new: int, end: int | None) -> list[list[int]]:
    """Theirs have to be padded on the left."""
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[PADDING] * (longest - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    with torch.no_grad():
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=new,
            do_sample=False,
            num_beams=beams,
            length_penalty=0.0,
            early_stopping=False,
            pad_token_id=PADDING,
            eos_token_id=end,
        )
    return found[:, longest:].tolist()
