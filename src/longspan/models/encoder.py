"""The encoder of the Transformer by itself: BERT and similar models, with any attention in each layer."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import Ids, Mask, Streams, TextHeads, TextStates
from longspan.models.body import build_stack, embedding, initialise, mechanisms
from longspan.models.headed import Headed, build_heads
from longspan.models.text import TextOptions
from longspan.nn.global_tokens import global_mask, question_mask
from longspan.nn.heads import Head
from longspan.nn.inputs import BlockInputs
from longspan.nn.recorder import recorded_states
from longspan.shapes import Hidden


class Encoder(Headed, TextHeads, TextStates):
    """Hidden states of a text, each of which has read all of it, with task heads (BERT, RoBERTa, ALBERT and others)."""

    name = "encoder"
    paper = "Vaswani et al. 2017"
    _embed, _stack = staticmethod(embedding), staticmethod(build_stack)  # subclasses may replace them

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")
        count_real: bool = option(False, "whether positions count the tokens that are not padding (RoBERTa)")
        separator: int | None = option(None, "the id of the token between two texts", low=0)
        global_tokens: str | None = option(
            None, "tokens that are global where none are given: the first (a swapped Longformer)", choices=("first",)
        )

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.count_real and options.padding is None:
            raise InvalidOption("count_real counts the tokens that are not padding: give padding, its id")
        self.embedding = self._embed(options, options.vocabulary, options.padding)
        self.stack = self._stack(options, options.attention, stack_name="encoder", causal=False)
        self.heads = build_heads(options, self.stack.out_width, options.vocabulary)
        reads = {stream.name for mechanism in mechanisms(self) for stream in mechanism.streams}
        if any(head.global_tokens for head in options.tasks or ()) and "global_mask" not in reads:
            raise InvalidOption("a head with global_tokens needs a mechanism that has them, such as longformer")
        if options.global_tokens is not None and "global_mask" not in reads:
            raise InvalidOption("global_tokens needs a mechanism that has them, such as longformer")
        initialise(self, options)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def forward(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
    ) -> Hidden:
        padding = self.options.padding
        if positions is None and self.options.count_real and padding is not None:
            real = ids.ne(padding)
            positions = real.cumsum(1) * real - 1  # padding is at -1, the row before the first
        if self.options.global_tokens is not None and "global_mask" not in (streams or {}):
            marked = global_mask(self.options.global_tokens, ids, key_mask, None)
            streams = {**(streams or {}), "global_mask": marked}
        x = self.embedding(ids, positions=positions, segments=segments)
        states: Tensor = self.stack(x, BlockInputs(key_mask=key_mask, streams=streams, positions=positions))
        return states

    def text_states(self, ids: Ids, *, key_mask: Mask | None = None) -> Hidden:
        states: Tensor = self(ids, key_mask=key_mask)
        return states

    def layer_states(self, ids: Ids, *, key_mask: Mask | None = None) -> list[Hidden]:
        return recorded_states(self.stack, lambda: self.text_states(ids, key_mask=key_mask))

    def outputs(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
        chosen: Mask | None = None,
    ) -> dict[str, Tensor]:
        """The output of each head, by task.

        Heads may derive missing inputs from the text: which tokens are global (`Head.global_tokens`), and which belong
        to a question (`Head.question`). With `chosen`, the head for masked tokens reads these tokens only.
        """
        tasks, separator = self.options.tasks or (), self.options.separator
        marks = sorted({head.global_tokens for head in tasks if head.global_tokens is not None})
        if marks and "global_mask" not in (streams or {}):
            masks = [global_mask(how, ids, key_mask, separator) for how in marks]
            streams = {**(streams or {}), "global_mask": torch.stack(masks).any(0)}
        in_question = question_mask(ids, separator) if any(head.question for head in tasks) else None
        if in_question is not None and segments is None:
            segments = (~in_question).long()
        out = self.read_from(
            self.stack,
            lambda: self(ids, key_mask=key_mask, positions=positions, segments=segments, streams=streams),
            key_mask,
            chosen,
        )
        if in_question is not None:
            in_question[:, 0] = False  # a span at the first token means that there is no answer
            out["span"] = out["span"] - 1e6 * in_question[..., None]
        return out

    def choose(
        self,
        ids: Int[Tensor, "batch choices length"],
        *,
        key_mask: Bool[Tensor, "batch choices length"] | None = None,
        segments: Int[Tensor, "batch choices length"] | None = None,
    ) -> Float[Tensor, "batch choices"]:
        """The score of each choice, of which one is right; a softmax over them gives their probabilities.

        `outputs` reads each choice as a row of its own.
        """
        if "choose" not in self.heads:
            raise Unsupported(f"this {self.name} has no head for 'choose'; it has {', '.join(self.heads) or 'none'}")
        if ids.ndim != 3:
            raise InvalidInput(f"expected token ids (batch, choices, length), got {tuple(ids.shape)}")
        rows = (None if tensor is None else tensor.flatten(0, 1) for tensor in (key_mask, segments))
        mask, kinds = rows
        scores = self.outputs(ids.flatten(0, 1), key_mask=mask, segments=kinds)["choose"]
        return torch.unflatten(scores, 0, ids.shape[:2])


__all__ = ["Encoder"]
