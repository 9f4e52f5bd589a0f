"""Token embeddings from options: widths of the tables, and the positions that are added."""

from typing import TYPE_CHECKING

from longspan.errors import InvalidOption
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.norm import build_norm
from longspan.nn.positions import AbsolutePositions, AxialPositions, LearnedPositions, SinusoidalPositions

if TYPE_CHECKING:
    from longspan.models.body import BodyOptions


def embedding(options: "BodyOptions", vocabulary: int, padding: int | None = None) -> TokenEmbedding:
    """The token embedding, with the positions that are added to it."""
    width = table_width(options)
    finished = position_width(options)
    return TokenEmbedding(
        vocabulary,
        width,
        scale=options.scale,
        padding=padding,
        position=absolute_position(options),
        norm=build_norm(options.norm, finished, options.eps) if options.embedding_norm else None,
        dropout=options.dropout if options.embedding_dropout is None else options.embedding_dropout,
        segments=options.segments,
        out_width=options.width,
        project=options.embedding_projection,
        narrow=options.narrow_tokens,
    )


def table_width(options: "BodyOptions") -> int:
    """The width of the table of tokens."""
    return options.embedding_width or options.width


def position_width(options: "BodyOptions") -> int:
    """The width of the tables of positions and segments: that of tokens, unless tokens alone are narrow."""
    return options.width if options.narrow_tokens else table_width(options)


def absolute_position(options: "BodyOptions") -> AbsolutePositions | None:
    """The positions that are added to the embedding, or None if `position` is not of that kind."""
    width = position_width(options)
    if options.position == "sinusoidal":
        return SinusoidalPositions(width)
    if options.position in ("learned", "learned_relative"):
        if options.max_length is None:
            raise InvalidOption("learned positions are a table: give max_length, the longest text")
        return LearnedPositions(options.max_length, width, offset=options.position_offset)
    if options.position == "axial":
        if options.axes is None or options.axis_widths is None or sum(options.axis_widths) != width:
            raise InvalidOption(f"axial positions need axes, and axis_widths that add up to the width {width}")
        return AxialPositions(options.axes, options.axis_widths)
    if options.position == "axial_sum":
        if options.axes is None:
            raise InvalidOption("axial_sum positions need axes, the sides of the grid")
        return AxialPositions(options.axes, [width] * len(options.axes), summed=True)
    return None


__all__ = ["absolute_position", "embedding", "position_width", "table_width"]
