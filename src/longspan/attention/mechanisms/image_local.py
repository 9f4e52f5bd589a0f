"""Image Transformer: blocks of queries read themselves and a shared memory around them, in one or two dimensions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Dense, Layout, Rectangles, Ring, Tiles, ceil_div, rank_in_blocks
from longspan.attention.layouts.ring import shown_in_ring
from longspan.attention.parts import persistent_memory
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights


@dataclass(frozen=True)
class ImageLocalState(State):
    k: Rows  # from the first position that can still be read
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may
    length: int  # positions read so far


class ImageLocalAttention(Attention):
    """Attention within blocks of an image and to the positions around them.

    The sequence is in generation order: row after row for local 1D, block after block for local 2D
    (`layouts.raster_to_blocks` puts an image into that order).
    """

    name = "image_local"
    paper = "Parmar et al. 2018 (Image Transformer)"
    survey_class = ("FP",)
    order = "n·(query_block + memory)"
    exponent = 1.0
    scaled_dot = True
    supports = Supports(causal=True, streaming=True, dropout=True, grouped=True, persistent=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        query_block: int | tuple[int, ...] = option(
            256, "positions of a query block (local 1D), or its height and width (local 2D)", low=1
        )
        memory: int | tuple[int, ...] = option(
            256,
            "positions before the block that it also reads (local 1D), or rows above and columns beside it (local "
            "2D); if not causal, as many after or below it",
            low=0,
        )
        memory_after: int | None = option(
            None,
            "positions after the block that it also reads (local 1D, not causal); memory unless given",
            low=0,
            formerly="behind",
        )
        ring: bool = option(
            False, "whether the first block follows the last (local 1D, not causal), as in the released Reformer"
        )
        width: int | None = option(None, "positions of a row of the image; needed for local 2D", low=1)
        height: int | None = option(
            None, "rows of the image (local 2D); any number of whole rows of blocks unless given", low=1
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        self.form = _form(self.options)
        if causal and (self.options.ring or self.options.memory_after is not None):
            raise InvalidOption("options ring and memory_after are for causal=False; a causal form reads no later key")
        if self.options.ring and not isinstance(self.form, LineBlocks):
            raise InvalidOption("option ring is for local 1D, with one number as query_block")

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        self.check_length(length)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        if self.options.ring:
            count = shown_in_ring(torch.arange(length, device=q.device).expand(1, 1, 1, -1), *self._sizes)
            scores, near = scores + count.clamp_min(1).to(scores.dtype).log(), count > 0
        else:
            near = self.form.neighbourhood(length).to(q.device)
        keep = near & readable(length, length, self.causal, extras.key_mask, q.device)
        return masked_softmax(*persistent_memory.append_scores(self, scores, keep, q))

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        self.check_length(q.shape[2])
        layout = self._ring(q.shape[:3], q.device) if self.options.ring else self.form.layout(self.causal)
        return self._joint(layout, q, k, v, extras.key_mask)

    def _ring(self, shape: Sequence[int], device: torch.device | str) -> Ring:
        batch, heads, length = shape
        return Ring(torch.arange(length, device=device).expand(batch, heads, 1, -1), *self._sizes)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """For a ring: positions of a block, and blocks before and after it."""
        assert isinstance(self.form, LineBlocks)
        block = self.form.block
        return block, self.form.memory_size // block, self.form.memory_after // block

    def _joint(self, layout: Layout, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        sources = [KeySource(layout, k, v, keep), *persistent_memory.sources(self, q)]
        return joint(q, sources, scale=self.shape.head_dim**-0.5, dropout=dropout)

    def check_length(self, length: int, *, whole: bool = True) -> None:
        """Refuse a sequence that is not the image, or, in decoding, not a beginning of it."""
        height, width = self.options.height, self.options.width
        if height is None or width is None or length == height * width or (length < height * width and not whole):
            return
        size = f"image_local was built for an image of {height} × {width}, which is {height * width} positions"
        if whole:
            raise InvalidInput(f"{size}, not {length}; leave out height to read any number of them")
        raise InvalidInput(f"{size}, and these tokens reach to {length}; start a new image")

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width = self.shape.heads, self.shape.fused_width
        layout = self._ring((1, heads, queries), "meta") if self.options.ring else self.form.layout(self.causal)
        pairs = layout.pairs(heads, queries, keys)
        cost = Cost(4 * pairs * width, heads * queries * (width + 1))  # kept: output and log-sum-exp
        return persistent_memory.add_cost(self, cost, queries)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ImageLocalState:
        self._refuse_streaming()
        return ImageLocalState(Rows.empty(batch), Rows.empty(batch), None, 0)

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: ImageLocalState, extras: Extras
    ) -> tuple[Output, State]:
        begin, end = state.length, state.length + q.shape[2]
        self.check_length(end, whole=False)
        seen = append_mask(state.seen, len(state.k), extras.key_mask, q)
        keys, values = state.k.append(k), state.v.append(v)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        if begin == 0:
            out = self._joint(self.form.layout(causal=True), q, keys.value, values.value, keep)
        else:
            out = self._by_block(q, keys.value, values.value, keep, begin)
        kept = end - self.form.first(end)
        return out, ImageLocalState(keys.trim(kept), values.trim(kept), None if seen is None else seen.trim(kept), end)

    def _by_block(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, begin: int) -> Tensor:
        """The rows from position `begin` on, block by block; k, v and keep end where q does."""
        end, outs = begin + q.shape[2], []
        first = end - k.shape[2]  # the position of the first key
        at = begin
        while at < end:
            stop = min(end, self.form.end_of_block(at))
            # All that the block may read, in order of time; the queries are at its end.
            index = self.form.memory(at, stop, first, q.device)
            queries, mask = q[:, :, at - begin : stop - begin], None if keep is None else keep[:, index]
            outs.append(self._joint(Dense(causal=True), queries, k[:, :, index], v[:, :, index], mask))
            at = stop
        return torch.cat(outs, dim=2)


class Form(ABC):
    """Local 1D or local 2D: which positions belong together."""

    @abstractmethod
    def layout(self, causal: bool) -> Layout: ...

    @abstractmethod
    def neighbourhood(self, length: int) -> Tensor:
        """(length, length): the memory block of each query as in the paper, without regard to causality."""

    @abstractmethod
    def end_of_block(self, position: int) -> int:
        """The position after the last one of the block of `position`."""

    @abstractmethod
    def memory(self, position: int, stop: int, first: int, device: torch.device) -> Any:
        """The indices, from `first` on, of positions before `stop` that the block of `position` may read."""

    @abstractmethod
    def first(self, position: int) -> int:
        """The first position that `position` or a later one may read."""


@dataclass(frozen=True)
class LineBlocks(Form):
    """Section 3.3, local 1D: a block of `block` queries and the memory positions before and after it."""

    block: int
    memory_size: int
    memory_after: int

    def layout(self, causal: bool) -> Layout:
        return Tiles(self.block, self.memory_size, self.memory_after, causal)

    def neighbourhood(self, length: int) -> Tensor:
        first = torch.arange(length)[:, None] // self.block * self.block  # of the query's block
        key = torch.arange(length)
        return (key >= first - self.memory_size) & (key < first + self.block + self.memory_after)

    def end_of_block(self, position: int) -> int:
        return (position // self.block + 1) * self.block

    def memory(self, position: int, stop: int, first: int, device: torch.device) -> slice:
        return slice(self.first(position) - first, stop - first)

    def first(self, position: int) -> int:
        return max(0, position // self.block * self.block - self.memory_size)


@dataclass(frozen=True)
class ImageBlocks(Form):
    """Section 3.3, local 2D: a block of the image, and a flange of rows above and columns on both sides of it."""

    block: tuple[int, int]
    flange: tuple[int, int]
    width: int
    height: int | None

    def layout(self, causal: bool) -> Layout:
        return Rectangles(self.block, self.flange, self.width, self.height, causal)

    def neighbourhood(self, length: int) -> Tensor:
        (tall, broad), (above, beside) = self.block, self.flange
        # The image, block after block, each row by row.
        rows = ceil_div(length, tall * self.width) * tall if self.height is None else self.height
        pixels = [
            (row, column, top, left)
            for top in range(0, rows, tall)
            for left in range(0, self.width, broad)
            for row in range(top, min(top + tall, rows))
            for column in range(left, min(left + broad, self.width))
        ]
        row, column, top, left = torch.tensor(pixels[:length]).unbind(1)
        top, left = top[:, None], left[:, None]  # of the query's block; row and column are the key's
        in_rows = (row >= top - above) & (row < top + tall + above)
        return in_rows & (column >= left - beside) & (column < left + broad + beside)

    def end_of_block(self, position: int) -> int:
        return self._block_of(position)[-1]

    def memory(self, position: int, stop: int, first: int, device: torch.device) -> Tensor:
        top, left, _ = self._block_of(position)
        (tall, broad), (above, beside) = self.block, self.flange
        bottom = top + tall if self.height is None else min(top + tall, self.height)
        # On the host, which must know how many there are: asking an accelerator would mean waiting for it.
        rows = torch.arange(max(0, top - above), bottom)[:, None]
        columns = torch.arange(max(0, left - beside), min(left + broad + beside, self.width))
        ranks = rank_in_blocks(rows, columns, self.height, self.width, self.block).flatten().tolist()
        return torch.tensor(sorted(rank - first for rank in ranks if rank < stop), device=device)

    def first(self, position: int) -> int:
        """Whole rows of blocks are kept: the fewest that hold the flange."""
        tall, above = self.block[0], self.flange[0]
        top = position // (tall * self.width) * tall
        return max(0, top - above) // tall * tall * self.width

    def _block_of(self, position: int) -> tuple[int, int, int]:
        """Top and left of the block of `position`, and the position after the block's last one."""
        (tall, broad), width = self.block, self.width
        strip, rest = divmod(position, tall * width)
        rows = tall if self.height is None else min(tall, self.height - strip * tall)
        column = rest // (broad * rows)
        columns = min(broad, width - column * broad)
        return strip * tall, column * broad, strip * tall * width + (column * broad + columns) * rows


def _form(options: Any) -> Form:
    block, memory, width, height = options.query_block, options.memory, options.width, options.height
    after = memory if options.memory_after is None else options.memory_after
    if isinstance(block, int) and isinstance(memory, int):
        for name, value in (("width", width), ("height", height)):
            if value is not None:
                raise InvalidOption(f"option {name} goes with a query_block of two numbers (local 2D), not {block!r}")
        if options.ring and (memory % block or after % block):
            raise InvalidOption(
                f"a ring has whole blocks of {block}, so memory and memory_after must be multiples of it"
            )
        return LineBlocks(block, memory, after)
    if options.memory_after is not None:
        raise InvalidOption("option memory_after is for local 1D, with one number as query_block")
    for name, value in (("query_block", block), ("memory", memory)):
        if not isinstance(value, tuple) or len(value) != 2:
            raise InvalidOption(
                f"option {name} must be two numbers for local 2D, not {value!r}; query_block and memory are one number "
                "each for local 1D"
            )
    if width is None:
        raise InvalidOption("option width must be given for local 2D: the positions of a row of the image")
    return ImageBlocks(block, memory, width, height)
