"""The Universal Transformer (Dehghani et al. 2018) in its three forms: one block, applied until it is enough.

It is the Transformer with another body: `layers` says how often the one block is applied, P^t is added before each of
these steps instead of positions once (`nn/universal_stack.py`), and with `halting` each position stops by itself,
after at most `max_steps` (`nn/halting.py`). Encoder and decoder share nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from longspan import config
from longspan.attention.config import AttentionConfig
from longspan.config import option
from longspan.errors import Unsupported
from longspan.models.body import BodyOptions, absolute_position, build_block, embedding, last_norm, spread
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.transformer import Transformer
from longspan.nn.convolution import SeparableConvolution
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.halting import Halting
from longspan.nn.universal_stack import StepSignal, UniversalStack


@dataclass(frozen=True, kw_only=True)
class RecurrenceOptions(config.Options):
    """What a body has that applies one block again and again."""

    layers: int = option(6, "how often the block is applied; with halting, what max_steps is twice of", low=1)
    step_signal: str = option(
        "sinusoidal",
        "how the step is told: the paper's sinusoids, or learned rows as released",
        choices=("sinusoidal", "learned", "none"),
    )
    transition: str = option(
        "feedforward",
        "what follows attention: a feed-forward layer, or two separable convolutions",
        choices=("feedforward", "convolution"),
    )
    halting: bool = option(False, "whether each position decides by itself after how many steps it is done")
    max_steps: int | None = option(None, "halting: the most steps; 2 · layers unless given", low=1)
    threshold: float = option(0.99, "halting: the sum of probabilities past which a position is done", low=0, high=1)
    combine: str = option(
        "listing",
        "halting: what comes out, the listing's running average or Graves's sum",
        choices=("listing", "accumulate"),
    )
    halted: str = option(
        "evolve",
        "halting: whether what others read of a halted position goes on changing, or is copied",
        choices=("evolve", "copy"),
    )
    force_remainder: bool = option(False, "halting: whether the last possible step gets all weight that is left")
    ponder: float = option(0.01, "halting: weight of the mean ponder time in the loss", low=0)


def _embed(options: BodyOptions, vocabulary: int, padding: int | None = None) -> TokenEmbedding:
    """Token rows alone: positions are added at every step."""
    return embedding(replace(options, position="none"), vocabulary, padding)


def _stack(
    options: Any,  # of a body, and of its recurrence
    settings: Sequence[AttentionConfig],
    *,
    place: str,
    causal: bool,
    layers: int | None = None,
    cross: Sequence[AttentionConfig] | None = None,
    cross_length: int | None = None,
) -> UniversalStack:
    """The one block, with its signal and its halting; `layers` is the number of steps."""
    if options.reversible:
        raise Unsupported(f"{place}: reversible blocks are different ones, not one applied again; leave out reversible")
    steps = options.layers if layers is None else layers
    steps = (options.max_steps or 2 * steps) if options.halting else steps
    own = spread(settings, 1, f"{place} self-attention")[0]
    reader = None if cross is None else spread(cross, 1, f"{place} cross-attention")[0]
    change = halting = None
    if options.transition == "convolution":
        change = SeparableConvolution(
            options.width,
            options.hidden,
            options.activation,
            causal=causal,
            bias=options.bias,
            dropout=options.hidden_dropout,
        )
    if options.halting:
        halting = Halting(
            options.width,
            threshold=options.threshold,
            combine=options.combine,
            halted=options.halted,
            force_remainder=options.force_remainder,
            ponder=options.ponder,
        )
    signal = StepSignal(options.width, steps, position=absolute_position(options), step=options.step_signal)
    block = build_block(
        options, own, place=place, causal=causal, cross=reader, cross_length=cross_length, change=change
    )
    return UniversalStack(block, last_norm(options), width=options.width, steps=steps, signal=signal, halting=halting)


class UniversalEncoder(Encoder):
    """Hidden states of a text: the form for classification and question answering."""

    name = "universal_encoder"
    paper = "Dehghani et al. 2018"
    _embed, _stack = staticmethod(_embed), staticmethod(_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrenceOptions, Encoder.Options):
        pass

    options: Options


class UniversalDecoder(Decoder):
    """A language model."""

    name = "universal_decoder"
    paper = "Dehghani et al. 2018"
    _embed, _stack = staticmethod(_embed), staticmethod(_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrenceOptions, Decoder.Options):
        pass

    options: Options


class UniversalTransformer(Transformer):
    """An encoder, and a decoder that reads its final states; each has one block and halts by itself."""

    name = "universal"
    paper = "Dehghani et al. 2018"
    _embed, _stack = staticmethod(_embed), staticmethod(_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrenceOptions, Transformer.Options):
        pass

    options: Options


__all__ = ["RecurrenceOptions", "UniversalDecoder", "UniversalEncoder", "UniversalTransformer"]
