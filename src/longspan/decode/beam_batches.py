"""Beam search over many sources: in batches of equal lengths, given back in the order they came in."""

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
    """What `beam_search` gives for each source, whose text starts with the tokens `begin`.

    A batch holds at most `tokens` source tokens, padding included, and one source at least.

    >>> search_many(model, [[5, 9, 4, 2], [8, 2]], begin=[1], ends=2, options=Beam(beams=5))
    """
    if tokens < 1:
        raise InvalidOption(f"a batch must hold 1 token at least, not {tokens}")
    found: list[list[Hypothesis]] = [[] for _ in sources]
    done = 0
    for numbers in _batches([len(source) for source in sources], tokens):
        batch = [sources[number] for number in numbers]
        made = beam_search(model, [list(begin)] * len(batch), options=options, eos=ends, source=batch)
        for number, hypotheses in zip(numbers, made):
            found[number] = hypotheses
        done += len(batch)
        if progress is not None:
            progress(done)
    return found


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The longest first, so that a machine whose memory is too small says so at once."""
    held: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if held and lengths[held[0]] * (len(held) + 1) > tokens:
            yield held
            held = []
        held.append(number)
    if held:
        yield held


__all__ = ["search_many"]
