"""Training data and update of skip-gram with negative sampling (Mikolov et al. 2013b), in vectorised batches."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from longspan.errors import InvalidInput

Pairs = Int[Tensor, "pairs 2"]  # centre, context
HITS = 16  # gradients of one batch that a row takes in full
RULES = {"code": 1e-3, "paper": 1e-5}  # how frequent words are dropped, with the threshold each was published with


def keep_probability(frequency: Float[Tensor, "*any"], threshold: float, rule: str) -> Float[Tensor, "*any"]:
    """Of a token of a word that is `frequency` of the corpus.

    The paper keeps √(t/f) (section 2.3); the authors' tool keeps √(t/f) + t/f.
    """
    ratio = threshold / frequency
    return (ratio.sqrt() + (ratio if rule == "code" else 0)).clamp_max(1)


class NegativeSampler:
    """Draws ids in proportion to count^power (0.75 in section 2.2)."""

    def __init__(self, counts: Sequence[int], power: float = 0.75) -> None:
        weights = torch.tensor(counts, dtype=torch.float64) ** power
        self.probability = weights / weights.sum()
        self._up_to = self.probability.cumsum(0)

    def draw(self, *shape: int, generator: torch.Generator | None = None) -> Int[Tensor, "..."]:
        uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
        return torch.searchsorted(self._up_to, uniform, right=True).clamp_max(len(self._up_to) - 1)


def pairs(
    tokens: Int[Tensor, " tokens"],
    sentences: Int[Tensor, " tokens"],
    kept: Bool[Tensor, " tokens"],
    *,
    window: int,
    widen: bool,
    generator: torch.Generator | None = None,
) -> Pairs:
    """Every centre with the words around it in its sentence, up to a radius drawn for each centre from 1..window.

    With `widen`, words that were dropped leave no gap, as in the authors' tool: windows then reach further.
    """
    if widen:
        tokens, sentences = tokens[kept], sentences[kept]
        kept = torch.ones_like(tokens, dtype=torch.bool)
    radius = torch.randint(1, window + 1, tokens.shape, generator=generator)
    found = []
    for offset in range(1, min(window, len(tokens) - 1) + 1):
        left, right = slice(None, -offset), slice(offset, None)
        near = (sentences[left] == sentences[right]) & kept[left] & kept[right]
        for centre, context in ((left, right), (right, left)):
            chosen = near & (radius[centre] >= offset)
            found.append(torch.stack([tokens[centre][chosen], tokens[context][chosen]], dim=1))
    return torch.cat(found) if found else tokens.new_empty(0, 2)


def blocks(tokens: Tensor, sentences: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The corpus in pieces of whole sentences, each of at least `size` tokens but the last."""
    begin = 0
    while begin < len(tokens):
        end = begin + size
        if end < len(tokens):
            end = int(torch.searchsorted(sentences, sentences[end - 1], right=True))
        yield tokens[begin:end], sentences[begin:end]
        begin = end


def loss(
    inputs: Float[Tensor, "words dim"],
    outputs: Float[Tensor, "words dim"],
    batch: Pairs,
    negatives: Int[Tensor, "pairs negatives"],
) -> Float[Tensor, ""]:
    """-Σ [log σ(u_o·v_c) + Σ_neg log σ(-u_neg·v_c)] (equation 4); a negative that is the context itself is left out."""
    centre, context = batch.unbind(1)
    v = inputs[centre]
    good = logsigmoid((outputs[context] * v).sum(-1)).sum()
    bad = logsigmoid(-torch.einsum("pd,pnd->pn", v, outputs[negatives]))
    return -good - (bad * (negatives != context[:, None])).sum()


@torch.no_grad()
def update(
    inputs: Float[Tensor, "words dim"],
    outputs: Float[Tensor, "words dim"],
    batch: Pairs,
    negatives: Int[Tensor, "pairs negatives"],
    rate: float,
) -> None:
    """One step down the gradient of `loss`, in place.

    The tool moves after each pair; here a batch is moved at once, and the sum over many stale gradients of one frequent
    word would be too long a step. So a row that is met more than HITS times moves by its mean gradient, HITS times.
    """
    centre, context = batch.unbind(1)
    answers = torch.cat([context[:, None], negatives], dim=1)  # the first is the true one
    flat = answers.flatten()
    # On CPU index_select copies whole rows, several times as fast as indexing does.
    v, u = inputs.index_select(0, centre), outputs.index_select(0, flat).view(*answers.shape, -1)
    slope = -torch.einsum("pd,pnd->pn", v, u).sigmoid_()
    slope[:, 0] += 1
    slope[:, 1:] *= negatives != context[:, None]
    slope *= rate
    to_inputs = torch.einsum("pn,pnd->pd", slope, u) * _share(centre, len(inputs), v)[:, None]
    slope *= _share(flat, len(outputs), v).view_as(slope)
    to_outputs = slope[:, :, None] * v[:, None]
    inputs.index_add_(0, centre, to_inputs)
    outputs.index_add_(0, flat, to_outputs.flatten(0, 1))


def _share(rows: Tensor, count: int, like: Tensor) -> Tensor:
    """What part of each gradient its row takes."""
    met = torch.bincount(rows, minlength=count).to(like.dtype)
    return (HITS / met).clamp_max_(1)[rows]


def number(corpus: Iterable[Sequence[str]], ids: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """The known words of all sentences as ids, in one row, and the number of the sentence of each."""
    tokens, sentences = array("q"), array("q")
    for index, sentence in enumerate(corpus):
        known = [ids[word] for word in sentence if word in ids]
        tokens.extend(known)
        sentences.extend([index] * len(known))
    if not tokens:
        raise InvalidInput("no word of the corpus is in the vocabulary; a generator can be read only once")
    return torch.frombuffer(tokens, dtype=torch.long), torch.frombuffer(sentences, dtype=torch.long)


__all__ = ["HITS", "RULES", "NegativeSampler", "blocks", "keep_probability", "loss", "number", "pairs", "update"]
