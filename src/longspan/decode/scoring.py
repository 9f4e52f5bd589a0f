"""Log-probabilities of given continuations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.decode.batch import Texts, check_ids, evaluating, read_batch
from longspan.errors import InvalidInput
from longspan.models.base import CausalModel, Streams

ROOM = 2**24  # logits at a time


@torch.inference_mode()
def score(
    model: CausalModel,
    prompts: Texts | None,
    continuations: Sequence[Sequence[int]],
    *,
    prompt_mask: Tensor | None = None,
    source: Texts | None = None,
    source_mask: Tensor | None = None,
    source_streams: Streams | None = None,
    bos: int | None = None,
) -> list[Tensor]:
    """The log-probability of each token of each continuation, computed in parallel.

    They equal those that `generate` reports for the same tokens.
    """
    batch = read_batch(model, prompts, prompt_mask, source, source_mask, bos, source_streams)
    if len(continuations) != len(batch):
        raise InvalidInput(f"got {len(continuations)} continuations for {len(batch)} prompts; give one for each")
    for row, text in enumerate(continuations):
        if not len(text):
            raise InvalidInput(f"continuation {row} is empty; give at least one token")
    check_ids(continuations, model.vocabulary, "continuation")
    begins = batch.lengths.tolist()
    ends = [begin + len(text) for begin, text in zip(begins, continuations)]
    longest = max(ends)
    if model.max_length is not None and longest > model.max_length:
        raise InvalidInput(
            f"the longest prompt with its continuation has {longest} tokens, "
            f"and this {model.name} holds at most {model.max_length}"
        )
    tokens = torch.nn.functional.pad(batch.tokens, (0, longest - batch.longest))
    for row, text in enumerate(continuations):
        tokens[row, begins[row] : ends[row]] = torch.tensor(list(text), device=tokens.device)
    # No mask: tokens after the end of a shorter row do not change earlier ones.
    with evaluating(model):
        logprobs = _read(model, batch.start(model), tokens, min(begins))
    return [row[begin - 1 : end - 1] for row, begin, end in zip(logprobs, begins, ends)]


def _read(model: CausalModel, state: object, tokens: Tensor, begin: int) -> Tensor:
    """The log-probability of token i + 1 after token i, from token `begin` on; 0 before it."""
    rows, length = tokens.shape
    pieces = [torch.zeros(rows, begin - 1, dtype=torch.float64, device=tokens.device)]
    if begin > 1:
        _, state = model.extend(tokens[:, : begin - 1], state, last=True)
    size = max(1, ROOM // (rows * model.vocabulary))
    for left in range(begin - 1, length - 1, size):
        right = min(left + size, length - 1)
        logits, state = model.extend(tokens[:, left:right], state)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = logits.gather(2, tokens[:, left + 1 : right + 1, None])[..., 0]
        pieces.append((chosen - logits.logsumexp(2)).double())
    return torch.cat(pieces, 1)


__all__ = ["score"]
