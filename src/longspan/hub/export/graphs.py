"""What is exported of each kind of model: its inputs, its outputs, and inputs to trace and check it with.

Inputs and outputs have the names of Hugging Face: `input_ids`, `attention_mask` (int64, 1 for a real token), `logits`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longspan.attention.base import Attention
from longspan.errors import Unsupported
from longspan.models.base import CausalModel, EncoderDecoder, Model, SentenceHeads, TextHeads, TextStates
from longspan.models.body import mechanisms
from longspan.models.headed import Headed
from longspan.models.image_base import ImageHeads
from longspan.models.vision.vit import VisionTransformer
from longspan.nn.heads import TOKEN_TASKS

Values = tuple[Tensor, ...]


@dataclass(frozen=True)
class Axes:
    """Which axes of an input are variables: axis number to name."""

    names: Mapping[int, str]


class Graph(nn.Module, ABC):
    """One program: a function of tensors, with names for its inputs and outputs."""

    name: str  # of the file, without its suffix
    inputs: Sequence[str]
    outputs: Sequence[str]

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def axes(self) -> list[Axes]:
        """The variable axes of each input."""

    @abstractmethod
    def sample(self, batch: int, length: int, seed: int) -> Values:
        """Inputs of this size; some tokens are padding if there is room for it."""

    @abstractmethod
    def expected(self, inputs: Values) -> Values:
        """The outputs of the model itself, by its ordinary path."""

    def real(self, inputs: Values) -> Tensor | None:
        """Which places of an output matter, (batch, length); None: all. Outputs at padding may be anything."""
        return None


TOKENS = Axes({0: "batch", 1: "length"})


class TextGraph(Graph):
    """A model that reads a text: hidden states, and the output of each head."""

    name = "model"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.shortest = max([1, *(mechanism.shortest_exported for mechanism in mechanisms(model))])
        self.segments = isinstance(model, TextHeads) and model.segment_kinds > 0
        heads = list(getattr(model, "heads", {}))
        # Hidden states are given too if that costs nothing: a pooler reads them alone.
        self.states = not heads or (heads == ["pool"] and isinstance(model, Headed) and not model.reads_layers)
        self.marks = self._marks()
        self.inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if self.segments else []), *self.marks]
        named = {"pool": "pooler_output"} if heads == ["pool"] else {heads[0]: "logits"} if len(heads) == 1 else {}
        self.outputs = [*(["last_hidden_state"] if self.states else []), *(named.get(task, task) for task in heads)]
        self.tasks = heads

    def _marks(self) -> list[str]:
        """Masks that mechanisms read and that no head derives from the text, such as which tokens are global."""
        tasks = getattr(self.model.options, "tasks", None) or ()
        if not isinstance(self.model, TextStates) or any(head.global_tokens for head in tasks):
            return []
        if isinstance(self.model, SentenceHeads | CausalModel):
            return []
        found = [stream.name for m in mechanisms(self.model) for stream in m.streams if stream.kind == "mask"]
        return list(dict.fromkeys(found))

    def axes(self) -> list[Axes]:
        return [TOKENS] * len(self.inputs)

    def sample(self, batch: int, length: int, seed: int) -> Values:
        ids, mask = random_text(self.model, batch, length, seed)
        values: list[Tensor] = [ids, mask]
        if self.segments:
            values.append((torch.arange(length) >= length // 2).long().expand(batch, -1).clone())
        for _ in self.marks:
            marked = torch.zeros(batch, length, dtype=torch.int64)
            marked[:, 0] = 1
            values.append(marked)
        return tuple(values)

    def forward(self, *inputs: Tensor) -> Values:
        length = inputs[0].shape[1]
        if self.shortest > 1:
            # Texts that are too short for the mechanism's traced form are padded, and the outputs cut again.
            missing = torch.sym_max(length, self.shortest) - length
            inputs = tuple(pad(x, (0, missing)) for x in inputs)
        outputs = self.expected(inputs)
        if self.shortest == 1:
            return outputs
        kept = torch.arange(length, device=inputs[0].device)
        by_token = [*([True] if self.states else []), *(task in ("masked", *TOKEN_TASKS) for task in self.tasks)]
        return tuple(x.index_select(1, kept) if rows else x for x, rows in zip(outputs, by_token))

    def expected(self, inputs: Values) -> Values:
        ids, mask, *rest = inputs
        key_mask = mask != 0
        more: dict[str, Any] = {}
        if self.segments:
            more["segments"] = rest.pop(0)
        if self.marks:
            more["streams"] = dict(zip(self.marks, (mark != 0 for mark in rest)))
        model = self.model
        if self.states:
            x = model(ids, key_mask=key_mask, **more) if more else text_states(model, ids, key_mask)
            heads = model.read(x, key_mask) if isinstance(model, Headed) and self.tasks else {}
            return (x, *(heads[task] for task in self.tasks))
        assert isinstance(model, TextHeads)
        heads = model.outputs(ids, key_mask=key_mask, **more)
        return tuple(heads[task] for task in self.tasks)

    def real(self, inputs: Values) -> Tensor | None:
        return inputs[1] != 0


class LogitsGraph(Graph):
    """A causal model over a whole text: the logits after every token."""

    name, inputs, outputs = "model", ("input_ids", "attention_mask"), ("logits",)

    def __init__(self, model: CausalModel) -> None:
        super().__init__(model)
        self.shortest = max([1, *(mechanism.shortest_exported for mechanism in mechanisms(model))])

    def axes(self) -> list[Axes]:
        return [TOKENS, TOKENS]

    def sample(self, batch: int, length: int, seed: int) -> Values:
        return random_text(self.model, batch, length, seed)

    def forward(self, ids: Tensor, mask: Tensor) -> Values:
        length = ids.shape[1]
        if self.shortest == 1:
            return self.expected((ids, mask))
        missing = torch.sym_max(length, self.shortest) - length
        (logits,) = self.expected((pad(ids, (0, missing)), pad(mask, (0, missing))))
        return (logits.index_select(1, torch.arange(length, device=ids.device)),)

    def expected(self, inputs: Values) -> Values:
        assert isinstance(self.model, CausalModel)
        return (self.model.text_logits(inputs[0], key_mask=inputs[1] != 0),)

    def real(self, inputs: Values) -> Tensor | None:
        return inputs[1] != 0


class TranslationGraph(Graph):
    """An encoder–decoder over a whole source and a whole target: the logits after every token of the target."""

    name, outputs = "model", ("logits",)
    inputs = ("input_ids", "attention_mask", "decoder_input_ids")

    def axes(self) -> list[Axes]:
        return [TOKENS, TOKENS, Axes({0: "batch", 1: "target"})]

    def sample(self, batch: int, length: int, seed: int) -> Values:
        source = random_text(self.model, batch, length, seed, source=True)
        return (*source, random_text(self.model, batch, max(1, length - 3), seed + 1)[0])

    def forward(self, ids: Tensor, mask: Tensor, target: Tensor) -> Values:
        return self.expected((ids, mask, target))

    def expected(self, inputs: Values) -> Values:
        ids, mask, target = inputs
        return (self.model(ids, target, source_mask=mask != 0),)


class ImageGraph(Graph):
    """A model of images of one size: the output of each head, or the hidden states."""

    name, inputs = "model", ("pixel_values",)

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.tasks = list(getattr(model, "heads", {}))
        self.outputs = ["logits"] if len(self.tasks) == 1 else self.tasks or ["last_hidden_state"]

    def axes(self) -> list[Axes]:
        return [Axes({0: "batch"})]

    def sample(self, batch: int, length: int, seed: int) -> Values:
        embedding = getattr(self.model, "embedding", None)
        size, channels = getattr(embedding, "image_size", None), getattr(self.model.options, "channels", 3)
        size = size or pair_of(self.model.options.image_size)
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(batch, channels, *size, generator=generator).to(self.model.dtype),)

    def forward(self, pixels: Tensor) -> Values:
        return self.expected((pixels,))

    def expected(self, inputs: Values) -> Values:
        if not self.tasks:
            return (self.model(*inputs),)
        assert isinstance(self.model, ImageHeads)
        heads = self.model.outputs(*inputs)
        return tuple(heads[task] for task in self.tasks)


def pair_of(size: int | Sequence[int]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def text_states(model: Model, ids: Tensor, key_mask: Tensor) -> Tensor:
    """The hidden states of a text."""
    if not isinstance(model, TextStates):
        raise Unsupported(f"a model {model.name!r} without heads gives nothing to export")
    return model.text_states(ids, key_mask=key_mask)


def random_text(model: Model, batch: int, length: int, seed: int, *, source: bool = False) -> tuple[Tensor, Tensor]:
    """Random token ids and a mask: the last row is padded, on the left if the model reads such texts."""
    generator = torch.Generator().manual_seed(seed)
    rows = getattr(model.options, "source_vocabulary", None) if source else None
    vocabulary, padding = rows or model.token_rows or 2, getattr(model.options, "padding", None)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
    if padding is not None:
        ids = torch.where(ids == padding, (padding + 1) % vocabulary, ids)
    mask = torch.ones(batch, length, dtype=torch.int64)
    cut = length // 3
    if cut and takes_mask(model):
        left = isinstance(model, CausalModel) and not source and model.left_padding
        mask[-1, :cut] = 0 if left else 1
        mask[-1, length - cut :] = 1 if left else 0
        if padding is not None:
            ids = torch.where(mask != 0, ids, padding)
    return ids, mask


def takes_mask(model: nn.Module) -> bool:
    """Whether every mechanism of the model can mask keys."""
    return all(m.supports.key_mask for m in model.modules() if isinstance(m, Attention))


def main_graph(model: Model) -> Graph:
    """The program of a whole input, by the model's abilities."""
    if isinstance(model, EncoderDecoder):
        return TranslationGraph(model)
    if isinstance(model, ImageHeads | VisionTransformer):
        return ImageGraph(model)
    if isinstance(model, CausalModel) and not getattr(model, "heads", None):
        return LogitsGraph(model)
    if isinstance(model, TextStates | TextHeads):
        return TextGraph(model)
    raise Unsupported(
        f"a model {model.name!r} is not exported; exported are models of text (encoder, decoder, transformer and "
        "others) and of images (vit)"
    )


__all__ = ["Axes", "Graph", "ImageGraph", "LogitsGraph", "TextGraph", "TranslationGraph", "Values", "main_graph"]
