"""Images pixel by pixel, with any causal attention: the Image Transformer (Parmar et al. 2018) and its relatives.

The image is a sequence in the order of generation: row by row, or block by block (`block`, for local attention in two
dimensions). Two outputs:

- `categorical`: one token for each channel of each pixel, and a softmax over its values;
- `mixture`: one token for each pixel, and a discretised mixture of logistics for its channels.

The input is the image moved by one token in that order, with zeros first. Half of a position codes the row, half the
column and channel. Labels are added to every token. With `source_size`, an encoder reads a smaller image, which the
decoder enlarges (super-resolution).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from longspan.attention.config import AttentionConfig
from longspan.attention.layouts import raster_to_blocks
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.models.body import BodyOptions, build_stack, initialise
from longspan.models.pixel_base import ImageSampling, Labels, PixelModel, Pixels
from longspan.nn import logistic_mixture
from longspan.nn.dropout import Dropout
from longspan.nn.inputs import BlockInputs
from longspan.nn.linear import Linear
from longspan.nn.patches import pair
from longspan.shapes import Hidden

LOCAL = (AttentionConfig("image_local"),)
DENSE = (AttentionConfig("softmax"),)


class ImageDecoder(PixelModel):
    """The likelihood of images and new images.

    >>> model = build("image_decoder", image_size=28, channels=1, attention="linear")
    >>> model.nats(images)  # -log p of each
    >>> model.sample(ImageSampling(16, generator=torch.Generator().manual_seed(0)))
    """

    name = "image_decoder"
    paper = "Parmar et al. 2018"

    @dataclass(frozen=True, kw_only=True)
    class Options(BodyOptions):
        """The defaults are the paper's categorical model of CIFAR-10 with local attention in one dimension."""

        width: int = option(512, "width of the hidden states", low=2)
        layers: int = option(12, "number of blocks", low=1)
        heads: int = option(4, "attention heads", low=1)
        dropout: float = option(0.3, "on embeddings and on the output of each sub-layer", low=0, high=0.999)
        image_size: int | tuple[int, ...] = option(32, "pixels of a side, or height and width", low=1)
        channels: int = option(3, "channels of a pixel: 3 for colour, 1 for grey", low=1)
        levels: int = option(256, "values of a channel", low=2, high=65536)
        output: str = option("categorical", "distribution of a value", choices=("categorical", "mixture"))
        components: int = option(10, "components of the mixture", low=1)
        block: tuple[int, ...] | None = option(
            None, "height and width of the blocks that are generated one after the other; none: row by row", low=1
        )
        classes: int = option(0, "number of labels that images are conditioned on; 0: none", low=0)
        source_size: int | tuple[int, ...] | None = option(
            None, "super-resolution: pixels of a side of the small images, or height and width", low=1
        )
        source_layers: int = option(4, "super-resolution: blocks of the encoder", low=1)
        attention: tuple[AttentionConfig, ...] = option(LOCAL, "attention of each layer, repeated from the bottom up")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.output == "mixture" and options.channels not in logistic_mixture.LINKS:
            raise InvalidOption(f"a mixture of logistics has 1 or 3 channels, not {options.channels}")
        if options.width % 2:
            raise InvalidOption(f"half of a position codes the row: the width must be even, not {options.width}")
        if options.block is not None and len(options.block) != 2:
            raise InvalidOption(f"block is the height and width of a block, not {options.block}")
        self.size, self.channels = pair(options.image_size, "image_size"), options.channels
        self.levels, self.classes = options.levels, options.classes
        self.by_channel = options.output == "categorical"  # tokens are channels of pixels, not pixels
        self.tokens = self.size[0] * self.size[1] * (self.channels if self.by_channel else 1)
        half, per_row = options.width // 2, self.tokens // self.size[0]
        if self.by_channel:  # a table for each channel
            self.values = nn.Parameter(torch.empty(self.channels, self.levels, options.width))
            nn.init.normal_(self.values, std=options.width**-0.5)
        else:
            self.project = Linear(self.channels, options.width)
        self.rows = nn.Parameter(torch.randn(self.size[0], half) * 0.02)
        self.columns = nn.Parameter(torch.randn(per_row, options.width - half) * 0.02)
        self.labels = nn.Parameter(torch.randn(self.classes, options.width) * 0.02) if self.classes else None
        self.drop = Dropout(options.dropout if options.embedding_dropout is None else options.embedding_dropout)
        sized = replace(options, max_length=options.max_length or self.tokens)
        self.source_size = None if options.source_size is None else pair(options.source_size, "source_size")
        cross = None if self.source_size is None else DENSE
        self.stack = build_stack(sized, options.attention, stack_name="decoder", causal=True, cross=cross)
        self.encoder = None if self.source_size is None else self._build_encoder(options, self.source_size)
        outputs = self.levels if self.by_channel else logistic_mixture.parameters(self.channels, options.components)
        self.out = Linear(self.stack.out_width, outputs)
        initialise(self, options)

    def _build_encoder(self, options: Options, size: tuple[int, int]) -> nn.ModuleDict:
        tokens = size[0] * size[1]
        sized = replace(options, max_length=tokens)
        stack = build_stack(sized, DENSE, stack_name="encoder", causal=False, layers=options.source_layers)
        return nn.ModuleDict(
            {
                "project": Linear(self.channels, options.width),
                "positions": nn.Embedding(tokens, options.width),
                "stack": stack,
            }
        )

    # Sequences

    def _order(self, device: torch.device) -> Int[Tensor, " tokens"]:
        """The raster index of each token, in the order of generation."""
        height, width = self.size
        pixels = torch.arange(height * width, device=device)
        if self.options.block is not None:
            block = (self.options.block[0], self.options.block[1])
            pixels = raster_to_blocks(height, width, block, device)
        if not self.by_channel:
            return pixels
        return (pixels[:, None] * self.channels + torch.arange(self.channels, device=device)).flatten()

    def _positions(self, device: torch.device) -> Float[Tensor, "tokens width"]:
        """Row and column (with channel) of each token, in the order of generation."""
        order, per_row = self._order(device), self.tokens // self.size[0]
        return torch.cat([self.rows[order // per_row], self.columns[order % per_row]], -1)

    def _sequence(self, images: Pixels) -> Tensor:
        """(batch, tokens) values of channels, or (batch, tokens, channels) of pixels, in the order of generation."""
        flat = images.flatten(1) if self.by_channel else images.flatten(1, 2)
        return flat[:, self._order(images.device)]

    def _images(self, sequence: Tensor) -> Pixels:
        """The inverse of `_sequence`."""
        raster = torch.empty_like(sequence)
        raster[:, self._order(sequence.device)] = sequence
        return raster.view(len(sequence), *self.size, self.channels)

    def _embed(self, values: Tensor, tokens: Tensor) -> Hidden:
        """The vectors of values; `tokens` are their indices in the raster."""
        if not self.by_channel:
            scaled = values.to(self.rows.dtype) * (2 / (self.levels - 1)) - 1
            out: Tensor = self.project(scaled)
            return out
        index = (tokens % self.channels) * self.levels + values
        rows: Tensor = self.values.flatten(0, 1)[index] * self.options.width**0.5
        return rows

    # Likelihood

    def forward(
        self, images: Pixels, labels: Labels | None = None, source: Pixels | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        """The outputs for each token, from the tokens before it."""
        self.check_images(images)
        sequence, order = self._sequence(images), self._order(images.device)
        inputs = pad(self._embed(sequence[:, :-1], order[:-1]), (0, 0, 1, 0))
        x = inputs + self._positions(images.device) + self._label(labels, len(images))
        states: Tensor = self.stack(self.drop(x), BlockInputs(context=self._context(source, len(images))))
        out: Tensor = self.out(states)
        return out

    def nats(
        self, images: Pixels, labels: Labels | None = None, source: Pixels | None = None
    ) -> Float[Tensor, " batch"]:
        out = self(images, labels, source)
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        sequence = self._sequence(images)
        if self.by_channel:
            return cross_entropy(out.flatten(0, 1), sequence.flatten(), reduction="none").view(sequence.shape).sum(1)
        return -logistic_mixture.log_likelihood(out, sequence, self.levels).sum(1)

    # Generation

    @torch.inference_mode()
    def sample(self, sampling: ImageSampling) -> Pixels:
        device, count = self.device, sampling.count
        order, positions = self._order(device), self._positions(device)
        label = self._label(sampling.labels, count)
        known = self.known_rows(sampling).flatten(1, 3 if self.by_channel else 2)  # in raster order
        context = BlockInputs(context=self._context(sampling.source, count))
        state = self.stack.start(count, context, dtype=self.dtype, device=device)
        shape = (count, self.tokens) if self.by_channel else (count, self.tokens, self.channels)
        sequence = torch.zeros(shape, dtype=torch.long, device=device)
        x = torch.zeros(count, 1, self.options.width, dtype=self.dtype, device=device)
        for step, index in enumerate(order.tolist()):
            states, state = self.stack.extend(x + positions[step] + label, state)
            if index < known.shape[1]:
                sequence[:, step] = known[:, index]
            else:
                sequence[:, step] = self._draw(self.out(states[:, -1]), sampling)
            x = self._embed(sequence[:, step : step + 1], order[step : step + 1])
            sampling.advance()
        return self._images(sequence)

    def _draw(self, out: Tensor, sampling: ImageSampling) -> Tensor:
        if self.by_channel:
            return sampling.draw(out)
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        return logistic_mixture.sample(
            out, self.channels, self.levels, temperature=sampling.temperature, generator=sampling.generator
        )

    def _label(self, labels: Tensor | None, count: int) -> Tensor | float:
        self.check_labels(labels, count)
        return 0.0 if labels is None or self.labels is None else self.labels[labels][:, None]

    def _context(self, source: Pixels | None, count: int) -> Hidden | None:
        self.check_source(source, count)
        if source is None or self.encoder is None:
            return None
        scaled = source.flatten(1, 2).to(self.rows.dtype) * (2 / (self.levels - 1)) - 1
        positions: Any = self.encoder["positions"]
        context: Tensor = self.encoder["stack"](self.encoder["project"](scaled) + positions.weight)
        return context


__all__ = ["ImageDecoder"]
