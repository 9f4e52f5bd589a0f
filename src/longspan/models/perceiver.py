"""The Perceiver (Jaegle et al. 2021): a few latent vectors read a long input of any kind, again and again.

The input is a set of elements, each with features and coordinates: pixels, samples of sound, points. Cross-attention
reads it into the latents, linear in its length; a latent Transformer follows. The first cross-attention has its own
weights, the others share theirs, and all latent Transformers share theirs (section 3.1 and appendix).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import Mask
from longspan.models.headed import Headed, build_heads
from longspan.models.image_base import ImageHeads
from longspan.nn.feedforward import FeedForward
from longspan.nn.fourier import FourierPositions, grid
from longspan.nn.heads import Head
from longspan.nn.multihead import Context, MultiHead
from longspan.nn.norm import LayerNorm
from longspan.nn.patches import Images
from longspan.shapes import Hidden


class Perceiver(Headed, ImageHeads):
    """The latents after reading, and task heads on their mean.

    >>> model = build("perceiver", shape=(32, 32), tasks=[{"task": "classify", "labels": 10}])
    >>> model.outputs(images)["classify"]

    For other kinds of input, `encode(elements, positions)` takes elements (batch, n, channels) and their coordinates
    (batch, n, axes) in [-1, 1].
    """

    name = "perceiver"
    paper = "Jaegle et al. 2021"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        """The defaults are the paper's model of ImageNet."""

        latents: int = option(512, "number of latent vectors", low=1)
        width: int = option(1024, "width of a latent vector", low=1)
        reads: int = option(8, "how often the latents read the input", low=1)
        blocks: int = option(6, "self-attention blocks after each reading", low=1)
        cross_heads: int = option(1, "heads of the cross-attention", low=1)
        heads: int = option(8, "heads of the latent Transformer", low=1)
        shared: bool = option(True, "whether readings share their weights (the first cross-attention never does)")
        shape: int | tuple[int, ...] = option((224, 224), "size of the input along each axis, such as rows and columns")
        channels: int = option(3, "features of an element, such as the colours of a pixel", low=1)
        bands: int = option(64, "frequencies of the Fourier positions, for each axis", low=1)
        image_size: int | tuple[int, ...] | None = option(None, "for images: the same as shape", low=1)
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.width % options.heads:
            raise InvalidOption(f"heads must divide the width: {options.width} is not a multiple of {options.heads}")
        size = options.shape if options.image_size is None else options.image_size
        axes = 2 if options.image_size is not None else 1
        self.shape = (size,) * axes if isinstance(size, int) else tuple(size)
        self.positions = FourierPositions(self.shape, options.bands)
        self.in_width = options.channels + self.positions.width
        if min(options.width, self.in_width) % options.cross_heads:
            raise InvalidOption(f"cross_heads must divide {min(options.width, self.in_width)}, the narrower width")
        self.latents = nn.Parameter(torch.empty(options.latents, options.width))
        nn.init.trunc_normal_(self.latents, std=0.02, a=-2.0, b=2.0)
        readers, towers = (min(options.reads, 2), 1) if options.shared else (options.reads, options.reads)
        self.readers = nn.ModuleList(Reader(options.width, self.in_width, options.cross_heads) for _ in range(readers))
        self.towers = nn.ModuleList(
            nn.ModuleList(LatentBlock(options.width, options.heads) for _ in range(options.blocks))
            for _ in range(towers)
        )
        self.heads = build_heads(options, options.width, None)

    @property
    def table(self) -> Tensor:
        raise Unsupported("perceiver reads elements with positions: it has no token embedding")

    def forward(self, images: Float[Tensor, "batch channels *shape"]) -> Hidden:
        """The mean of the latents, and the latents, after reading an array of the option `shape`."""
        channels = self.options.channels
        if images.ndim != 2 + len(self.shape) or images.shape[1] != channels:
            axes = ", ".join(str(size) for size in self.shape)
            raise InvalidInput(f"expected (batch, {channels} channels, {axes}), got {tuple(images.shape)}")
        if images.numel() == 0:
            raise InvalidInput(f"expected at least one element, got {tuple(images.shape)}")
        if not images.is_floating_point():
            raise InvalidInput(f"expected an input of a floating-point type, got {images.dtype}; try images / 255")
        exact = torch.promote_types(images.dtype, torch.float32)
        positions = grid(tuple(images.shape[2:]), device=images.device, dtype=exact)
        return self.encode(images.flatten(2).mT, positions.expand(len(images), -1, -1))

    def encode(
        self,
        elements: Float[Tensor, "batch n channels"],
        positions: Float[Tensor, "batch n axes"],
        *,
        key_mask: Mask | None = None,
    ) -> Hidden:
        """(batch, 1 + latents, width) for any elements; `key_mask` is True for the real ones."""
        source = torch.cat([elements, self.positions(positions).to(elements.dtype)], -1)
        x = self.latents.expand(len(source), -1, -1)
        prepared: dict[int, Context] = {}  # readings that share their weights see the same keys and values
        for index, (reader, tower) in enumerate(self._layers()):
            place = min(index, len(self.readers) - 1)
            if place not in prepared:
                prepared[place] = reader.prepare(source, key_mask)
            x = reader(x, prepared[place])
            for block in tower:
                x = block(x)
        return torch.cat([x.mean(1, keepdim=True), x], 1)

    def _layers(self) -> Iterator[tuple["Reader", nn.ModuleList]]:
        for index in range(self.options.reads):
            reader = self.readers[min(index, len(self.readers) - 1)]
            tower = self.towers[min(index, len(self.towers) - 1)]
            assert isinstance(reader, Reader) and isinstance(tower, nn.ModuleList)
            yield reader, tower

    def outputs(self, images: Images) -> dict[str, Tensor]:
        """The output of each head, by task."""
        return self.read(self(images))


class Reader(nn.Module):
    """The latents read the input, each through its own norm; then a feed-forward layer. Nothing is widened.

    Queries, keys and values are as wide as the narrower of the two inputs.
    """

    def __init__(self, width: int, in_width: int, heads: int) -> None:
        super().__init__()
        inner = min(width, in_width)
        self.norm, self.source_norm = LayerNorm(width), LayerNorm(in_width)
        self.attention = MultiHead(width, heads=heads, head_dim=inner // heads, context_width=in_width)
        self.feedforward_norm, self.feedforward = LayerNorm(width), FeedForward(width, width, "gelu")

    def prepare(self, source: Tensor, key_mask: Tensor | None) -> Context:
        """The keys and values of the input."""
        return self.attention.prepare(self.source_norm(source), key_mask)

    def forward(self, x: Hidden, context: Context) -> Hidden:
        x = x + self.attention(self.norm(x), context)
        out: Tensor = x + self.feedforward(self.feedforward_norm(x))
        return out


class LatentBlock(nn.Module):
    """A pre-norm block of the latent Transformer; its feed-forward layer is as wide as the latents."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = LayerNorm(width), MultiHead(width, heads=heads)
        self.feedforward_norm, self.feedforward = LayerNorm(width), FeedForward(width, width, "gelu")

    def forward(self, x: Hidden) -> Hidden:
        x = x + self.attention(self.norm(x))
        out: Tensor = x + self.feedforward(self.feedforward_norm(x))
        return out


__all__ = ["LatentBlock", "Perceiver", "Reader"]
