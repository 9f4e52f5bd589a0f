"""Every registered mechanism in one model, with the reasons of those that cannot stand in it."""

from collections.abc import Iterator, Mapping, Sequence

import longspan
from longspan.adapt.swap import Swap
from longspan.attention.registry import names
from longspan.errors import LongspanError
from longspan.hub import Pretrained


def swaps(
    original: Pretrained, options: Mapping[str, Sequence[str]], *, length: int | None = None
) -> Iterator[tuple[str, Swap | None, str | None]]:
    """(attention, the swap or None, the reason of a refusal or None), with default options unless given."""
    for name in names():
        for attention in options.get(name, (name,)):
            try:
                swapped = longspan.swap(original, attention, length=length)
            except LongspanError as error:
                yield attention, None, str(error).partition("; these can")[0].partition("; these have")[0]
            else:
                yield attention, swapped, None
