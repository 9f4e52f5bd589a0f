"""The Universal Transformer (Dehghani et al. 2018): one block, applied several times.

It is the Transformer with another body. `layers` is how often the block is applied; P^t, which encodes position and
step, is added before each step instead of positions once (`nn/universal_stack.py`). With `halting` each position stops
by itself, after at most `max_steps` (`nn/halting.py`). Encoder and decoder share no weights.
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
    """Options of a body that applies one block repeatedly."""

    layers: int = option(6, "how often the block is applied; with halting, half of the default max_steps", low=1)
    step_signal: str = option(
        "sinusoidal",
        "encoding of the step: the paper's sinusoids, or learned rows as released",
        choices=("sinusoidal", "learned", "none"),
    )
    transition: str = option(
        "feedforward",
        "what follows attention: a feed-forward layer, or two separable convolutions",
        choices=("feedforward", "convolution"),
    )
    halting: bool = option(False, "whether each position decides by itself after how many steps it stops")
    max_steps: int | None = option(None, "halting: the most steps; 2 · layers unless given", low=1)
    threshold: float = option(0.99, "halting: the sum of probabilities at which a position stops", low=0, high=1)
    combine: str = option(
        "listing",
        "halting: the output, the running average of the paper's listing or Graves's sum",
        choices=("listing", "accumulate"),
    )
    halted: str = option(
        "evolve",
        "halting: whether the state that others read of a halted position keeps changing, or is copied",
        choices=("evolve", "copy"),
    )
    force_remainder: bool = option(False, "halting: whether the last possible step gets all remaining weight")
    ponder: float = option(0.01, "halting: weight of the mean ponder time in the loss", low=0)


def _embed(options: BodyOptions, vocabulary: int, padding: int | None = None) -> TokenEmbedding:
    """Token embeddings without positions, which are added at every step."""
    return embedding(replace(options, position="none"), vocabulary, padding)


def _stack(
    options: Any,  # BodyOptions and RecurrenceOptions
    settings: Sequence[AttentionConfig],
    *,
    stack_name: str,
    causal: bool,
    layers: int | None = None,
    cross: Sequence[AttentionConfig] | None = None,
    cross_length: int | None = None,
) -> UniversalStack:
    """The stack: one block with its step signal and halting; `layers` is the number of steps."""
    if options.reversible:
        raise Unsupported(f"{stack_name}: a block that is applied repeatedly is not reversible; leave out reversible")
    steps = options.layers if layers is None else layers
    steps = (options.max_steps or 2 * steps) if options.halting else steps
    mixer = spread(settings, 1, f"{stack_name} self-attention")[0]
    reader = None if cross is None else spread(cross, 1, f"{stack_name} cross-attention")[0]
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
        options, mixer, stack_name=stack_name, causal=causal, cross=reader, cross_length=cross_length, change=change
    )
    return UniversalStack(block, last_norm(options), width=options.width, steps=steps, signal=signal, halting=halting)


class UniversalEncoder(Encoder):
    """The Universal Transformer's encoder, for classification and question answering."""

    name = "universal_encoder"
    paper = "Dehghani et al. 2018"
    _embed, _stack = staticmethod(_embed), staticmethod(_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrenceOptions, Encoder.Options):
        pass

    options: Options


class UniversalDecoder(Decoder):
    """The Universal Transformer as a language model."""

    name = "universal_decoder"
    paper = "Dehghani et al. 2018"
    _embed, _stack = staticmethod(_embed), staticmethod(_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrenceOptions, Decoder.Options):
        pass

    options: Options


class UniversalTransformer(Transformer):
    """The Universal Transformer: an encoder and a decoder of one block each, which halt independently."""

    name = "universal"
    paper = "Dehghani et al. 2018"
    _embed, _stack = staticmethod(_embed), staticmethod(_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrenceOptions, Transformer.Options):
        pass

    options: Options


__all__ = ["RecurrenceOptions", "UniversalDecoder", "UniversalEncoder", "UniversalTransformer"]
