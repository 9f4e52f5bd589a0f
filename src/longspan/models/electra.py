"""ELECTRA (Clark et al. 2020): a small generator fills in masked tokens, a discriminator detects which were replaced.

Both are encoders that share their embedding: tokens, positions, segments and the norm after them, as wide as the
discriminator's; each has its own projection from there. They are trained together from the start, the generator for
masked tokens only: no gradient flows through its draws. Afterwards the discriminator is kept. Each half is an encoder
by itself: `hub.save(model.discriminator, folder, family="electra")`.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from longspan.attention.devices import host_may_read
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Detection, Ids, Mask, ReplacedTokenPair
from longspan.models.body import INITS, POSITIONS, table_width
from longspan.models.encoder import Encoder
from longspan.models.text import TextOptions
from longspan.nn.feedforward import GATED, PLAIN
from longspan.nn.heads import Head


@dataclass(frozen=True)
class ElectraLoss:
    """The loss, and the two means that it is the weighted sum of."""

    total: Float[Tensor, ""]
    masked: Float[Tensor, ""]  # over the chosen tokens
    detection: Float[Tensor, ""]  # over all real tokens


class Electra(ReplacedTokenPair):
    """Generator and discriminator, trained together to detect replaced tokens.

    >>> detection = model(ids, ids.masked_fill(chosen, mask), chosen, key_mask=real)
    >>> model.loss(detection).total.backward()
    """

    name = "electra"
    paper = "Clark et al. 2020"

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        """The discriminator's options, and how the generator differs; the defaults are the paper's small model."""

        width: int = option(256, "width of the hidden states", low=1)
        layers: int = option(12, "number of blocks", low=1)
        heads: int = option(4, "attention heads", low=1)
        hidden: int = option(1024, "inner width of the feed-forward layer", low=1)
        embedding_width: int | None = option(128, "width of the tables; none: that of the states", low=1)
        activation: str = option("gelu", "of the feed-forward layer", choices=(*PLAIN, *GATED))
        eps: float = option(1e-12, "added to the variance in norms", low=0)
        embedding_norm: bool = option(True, "whether embeddings are normalised before dropout")
        attention_dropout: float = option(0.1, "on attention weights", low=0, high=0.999)
        segments: int = option(2, "kinds of tokens, such as first and second sentence", low=0)
        position: str = option("learned", "kind of position encoding", choices=POSITIONS)
        max_length: int | None = option(512, "the longest text; required by fixed-size tables", low=1)
        scale: bool = option(False, "whether embeddings are multiplied by the root of the width")
        init: str = option("normal", "initial weights", choices=INITS)
        vocabulary: int = option(30522, "number of token ids", low=1)
        padding: int | None = option(0, "the id of padding, whose embedding is zero", low=0)
        mask: int | None = option(None, "the id of the mask token; the generator never draws it", low=0)
        generator_fraction: float = option(0.25, "the generator's widths relative to the discriminator's", low=0.01)
        generator_layers: int | None = option(None, "blocks of the generator; as many as `layers` unless given", low=1)
        generator_heads: int | None = option(None, "heads of the generator; 64 wide unless given", low=1)
        detection_weight: float = option(50.0, "weight of the discriminator's loss relative to the generator's", low=0)

    options: Options
    discriminator: Encoder
    generator: Encoder

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.max_length = options.max_length
        if options.mask is not None and options.mask >= options.vocabulary:
            raise InvalidOption(f"mask must be a token id in 0..{options.vocabulary - 1}, not {options.mask}")
        # Built first, so that files have the shared tables under its name.
        self.discriminator = Encoder(_half(options, Head(task="detect", activation=_plain(options), dropout=0.0)))
        self.generator = Encoder(_half(_smaller(options), Head(task="masked", activation="gelu")))
        embedding, shared = self.generator.embedding, self.discriminator.embedding
        embedding.weight, embedding.segment = shared.weight, shared.segment
        embedding.position, embedding.norm = shared.position, shared.norm

    @property
    def detection_weight(self) -> float:
        return self.options.detection_weight

    def forward(
        self,
        ids: Ids,
        masked: Ids,
        chosen: Mask,
        *,
        key_mask: Mask | None = None,
        segments: Ids | None = None,
        generator: torch.Generator | None = None,
    ) -> Detection:
        """Reads `masked`, which is `ids` with some or all of the `chosen` tokens masked; draws tokens for the chosen
        ones with the random `generator`, and says of every token whether it was replaced.

        Padding and the first token of a text are never replaced, even if chosen.
        """
        real = torch.ones_like(chosen) if key_mask is None else key_mask
        self._check(ids, masked, chosen)
        chosen = chosen & real & (real.cumsum(1) != 1)
        proposals, targets = self.propose(masked, chosen, key_mask=key_mask, segments=segments), ids[chosen]
        corrupted = ids.masked_scatter(chosen, self.draw(proposals, generator).to(ids.dtype))
        detections = self.detect(corrupted, key_mask=key_mask, segments=segments)
        return Detection(proposals, targets, corrupted, corrupted != ids, detections, real)

    def propose(
        self, masked: Ids, chosen: Mask, *, key_mask: Mask | None = None, segments: Ids | None = None
    ) -> Float[Tensor, "places vocabulary"]:
        """The generator's logits at the chosen tokens only."""
        x = self.generator(masked, key_mask=key_mask, segments=segments)
        logits: Tensor = self.generator.heads["masked"](x[chosen], self.generator.table)
        return logits

    def detect(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None
    ) -> Float[Tensor, "batch length"]:
        """The discriminator's logits that each token was replaced."""
        return self.discriminator.outputs(ids, key_mask=key_mask, segments=segments)["detect"]

    @torch.no_grad()
    def draw(
        self, proposals: Float[Tensor, "places vocabulary"], generator: torch.Generator | None = None
    ) -> Int[Tensor, " places"]:
        """Draws a token for each row from the softmax: the largest logit after adding Gumbel noise."""
        wide = proposals.to(torch.promote_types(proposals.dtype, torch.float32))
        if self.options.mask is not None:
            wide = wide.index_fill(-1, torch.tensor([self.options.mask], device=wide.device), float("-inf"))
        return (wide - torch.empty_like(wide).exponential_(generator=generator).log()).argmax(-1)

    def loss(self, detection: Detection) -> ElectraLoss:
        """The generator's cross-entropy plus `detection_weight` times the discriminator's; both are means."""
        dtype = torch.promote_types(detection.detections.dtype, torch.float32)
        masked = functional.cross_entropy(detection.proposals.to(dtype), detection.targets, reduction="sum")
        masked = masked / max(1, len(detection.targets))
        logits, labels = detection.detections.to(dtype)[detection.real], detection.labels.to(dtype)[detection.real]
        detected = functional.binary_cross_entropy_with_logits(logits, labels)
        return ElectraLoss(masked + self.detection_weight * detected, masked, detected)

    def _check(self, ids: Ids, masked: Ids, chosen: Mask) -> None:
        for name, tensor in (("masked", masked), ("chosen", chosen)):
            if tensor.shape != ids.shape:
                raise InvalidInput(f"expected {name} of the text's shape {tuple(ids.shape)}, got {tuple(tensor.shape)}")
        if host_may_read(masked) and bool(((masked != ids) & ~chosen).any()):
            row, column = ((masked != ids) & ~chosen).nonzero()[0].tolist()
            raise InvalidInput(
                f"text {row} differs at token {column}, which was not chosen; only chosen tokens may be masked"
            )


def _half(options: TextOptions, head: Head) -> Encoder.Options:
    shared = {field.name: getattr(options, field.name) for field in fields(TextOptions)}
    return Encoder.Options(**shared, tasks=(head,))


def _smaller(options: Electra.Options) -> TextOptions:
    """The generator's options: a fraction of the widths, heads 64 wide, and the discriminator's tables."""
    shared = {field.name: getattr(options, field.name) for field in fields(TextOptions)}
    width = round(options.generator_fraction * options.width)
    heads = options.generator_heads or max(1, width // 64)
    if width % heads:
        raise InvalidOption(
            f"{heads} heads do not divide the generator's width {width}; "
            "give generator_heads, or another generator_fraction"
        )
    sizes = {
        "width": width,
        "hidden": 4 * width,
        "heads": heads,
        "layers": options.generator_layers or options.layers,
        "embedding_width": table_width(options),
        **dict.fromkeys(("head_dim", "key_dim", "value_dim", "kv_heads")),
    }
    return TextOptions(**{**shared, **sizes})


def _plain(options: TextOptions) -> str:
    """The activation of the discriminator's head: the body's, or GELU where that is gated."""
    return options.activation if options.activation in PLAIN else "gelu"


__all__ = ["Electra", "ElectraLoss"]
