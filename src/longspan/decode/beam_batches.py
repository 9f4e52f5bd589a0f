"""Beam search over many sources, in batches of similar length; results are in the order of the sources."""

from collections.abc import Callable, Iterator, Sequence

from longspan.decode.beam import DEFAULT, Hypothesis, beam_search
from longspan.decode.options import Beam
from longspan.errors import InvalidOption
from longspan.models.base import CausalModel


def search_many(
    model: CausalModel,
    sources: Sequence[Sequence[int]],
    begin: Sequence[int],
    ends: int | Sequence[int],
    *,
    options: Beam = DEFAULT,
    tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of `beam_search` for each source; every target starts with the tokens `begin`.

    A model that reads no source continues the source and `begin`, its separator, as one text (Liu et al. 2018).

    A batch has at most `tokens` source tokens, padding included, and at least one source.

    >>> search_many(model, [[5, 9, 4, 2], [8, 2]], begin=[1], ends=2, options=Beam(beams=5))
    """
    if tokens < 1:
        raise InvalidOption(f"tokens per batch must be at least 1, not {tokens}")
    results: list[list[Hypothesis]] = [[] for _ in sources]
    done = 0
    for numbers in _batches([len(source) for source in sources], tokens):
        batch = [sources[number] for number in numbers]
        if model.reads_source:
            batch_results = beam_search(model, [list(begin)] * len(batch), options=options, eos=ends, source=batch)
        else:
            prompts = [[*source, *begin] for source in batch]
            limits = [len(source) + options.extra for source in batch] if options.max_new is None else None
            batch_results = beam_search(model, prompts, options=options, eos=ends, limits=limits)
        for number, hypotheses in zip(numbers, batch_results):
            results[number] = hypotheses
        done += len(batch)
        if progress is not None:
            progress(done)
    return results


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices of each batch, the longest sources first, so that too little memory shows at once."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


__all__ = ["search_many"]
