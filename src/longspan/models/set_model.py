"""The Set Transformer (Lee et al. 2019): a model of sets of numbers, whatever their order and size.

An encoder of set attention blocks, pooling by attention onto `seeds` learned rows, a decoder of set attention blocks,
and a linear layer. With `pool = "mean"` the mean of the encoded elements replaces attention: the paper's control.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Mask
from longspan.models.image_base import SetModel
from longspan.nn.heads import pool
from longspan.nn.linear import Linear
from longspan.nn.set_transformer import ISAB, PMA, SAB, row_wise


class SetTransformer(SetModel):
    """Numbers for a whole set: (batch, seeds, outputs) from elements (batch, size, features).

    >>> model = build("set_transformer", features=2, seeds=4, outputs=5)
    >>> model(points, key_mask=mask)
    """

    name = "set_transformer"
    paper = "Lee et al. 2019"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        features: int = option(1, "numbers of an element", low=1)
        outputs: int = option(1, "numbers of each output row", low=1)
        seeds: int = option(1, "output rows", low=1)
        width: int = option(128, "width of the hidden states", low=1)
        heads: int = option(4, "attention heads", low=1)
        points: int = option(32, "inducing points of an encoder block; 0: every element reads every other", low=0)
        layers: int = option(2, "blocks of the encoder", low=1)
        decoder_layers: int = option(2, "blocks of the decoder", low=0)
        encoder: str = option(
            "attention", "what the encoder's blocks are: set attention, or feed-forward", choices=("attention", "rows")
        )
        pool: str = option("attention", "how a set becomes one: attention, or the mean", choices=("attention", "mean"))
        variant: str = option("paper", "the blocks of the paper, or as released", choices=("paper", "released"))

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.pool == "mean" and options.seeds > 1 and options.decoder_layers:
            raise InvalidOption("the mean is one row: with several outputs give decoder_layers = 0 and more outputs")
        width, heads = options.width, options.heads
        self.inputs = Linear(options.features, width)
        self.encoder = nn.ModuleList(self._block() for _ in range(options.layers))
        by_attention = options.pool == "attention"
        self.pool = PMA(width, heads, options.seeds, variant=options.variant) if by_attention else None  # type: ignore[arg-type]
        self.decoder = nn.ModuleList(
            SAB(width, heads, variant=options.variant)  # type: ignore[arg-type]
            for _ in range(options.decoder_layers if by_attention else 0)
        )
        rows = 1 if by_attention else options.seeds
        self.out = Linear(width, rows * options.outputs)

    def _block(self) -> nn.Module:
        options = self.options
        if options.encoder == "rows":
            return nn.Sequential(row_wise(options.width), nn.ReLU())
        form = {"variant": options.variant}
        if options.points:
            return ISAB(options.width, options.heads, options.points, **form)  # type: ignore[arg-type]
        return SAB(options.width, options.heads, **form)  # type: ignore[arg-type]

    def forward(
        self, elements: Float[Tensor, "batch size features"], *, key_mask: Mask | None = None
    ) -> Float[Tensor, "batch seeds outputs"]:
        features = self.options.features
        if elements.ndim != 3 or elements.shape[-1] != features:
            raise InvalidInput(f"expected sets (batch, size, {features} features), got {tuple(elements.shape)}")
        if 0 in elements.shape:
            raise InvalidInput(f"expected at least one set and one element, got {tuple(elements.shape)}")
        x = self.inputs(elements)
        for block in self.encoder:
            x = block(x) if self.options.encoder == "rows" else block(x, key_mask=key_mask)
        if self.pool is None:
            out: Tensor = self.out(pool(x, key_mask, "mean")).unflatten(1, (self.options.seeds, -1))
            return out
        x = self.pool(x, key_mask=key_mask)
        for block in self.decoder:
            x = block(x)
        out = self.out(x)
        return out


__all__ = ["SetTransformer"]
