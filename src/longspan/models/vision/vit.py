"""The Vision Transformer (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2020): tokens are the patches of an image.

Apart from the patches it is `Encoder` with pre-norm: the same blocks with any attention, and the same task heads.

With `distillation`, a second token follows the class token. Its head learns the labels of a teacher (the option
`teacher` of the task `images`); predictions join both heads.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.attention.config import AttentionConfig
from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.models.body import BodyOptions, build_stack, initialise
from longspan.models.headed import Headed, build_heads
from longspan.models.image_base import ImageHeads
from longspan.nn.feedforward import GATED, PLAIN
from longspan.nn.heads import Head
from longspan.nn.inputs import BlockInputs
from longspan.nn.linear import Linear
from longspan.nn.patches import Images, PatchEmbedding, pair
from longspan.shapes import Hidden

DENSE = (AttentionConfig("softmax"),)


class VisionTransformer(Headed, ImageHeads):
    """Hidden states of the class token and of the patches of an image, and task heads on them.

    >>> model = build("vit", image_size=32, patch_size=4, tasks=[{"task": "classify", "labels": 10}])
    >>> model.outputs(images)["classify"]
    """

    name = "vit"
    paper = "Dosovitskiy et al. 2021"

    @dataclass(frozen=True, kw_only=True)
    class Options(BodyOptions):
        """The defaults are the paper's base model with patches of 16 × 16."""

        width: int = option(768, "width of the hidden states", low=1)
        layers: int = option(12, "number of blocks", low=1)
        heads: int = option(12, "attention heads", low=1)
        hidden: int = option(3072, "inner width of the feed-forward layer", low=1)
        activation: str = option("gelu", "of the feed-forward layer", choices=(*PLAIN, *GATED))
        norm_position: str = option(
            "pre", "norm after each sub-layer, or before it", choices=("post", "pre"), formerly="place"
        )
        eps: float = option(1e-6, "added to the variance in norms", low=0)
        position: str = option("learned", "kind of position encoding", choices=("learned", "none"))
        image_size: int | tuple[int, ...] = option(224, "pixels of a side, or height and width", low=1)
        patch_size: int | tuple[int, ...] = option(16, "pixels of a patch's side, or its height and width", low=1)
        channels: int = option(3, "channels of a pixel: 3 for colour, 1 for grey", low=1)
        class_token: bool = option(True, "whether a learned token precedes the patches")
        distillation: bool = option(False, "whether a second token and head learn from a teacher (DeiT)")
        fusion: str = option(
            "softmax",
            "how predictions join the two heads: sum of probabilities (the paper), or mean of logits (released); "
            "label: one head, on the class token",
            choices=("softmax", "logits", "label"),
        )
        attention: tuple[AttentionConfig, ...] = option(DENSE, "attention of each layer, repeated from the bottom up")
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if not options.class_token and any(head.pool == "first" for head in options.tasks or ()):
            raise InvalidOption("a head with pool='first' reads the class token; give class_token=True or pool='mean'")
        if options.distillation and not options.class_token:
            raise InvalidOption("the distillation token follows the class token; give class_token=True")
        dropout = options.dropout if options.embedding_dropout is None else options.embedding_dropout
        self.embedding = PatchEmbedding(
            pair(options.image_size, "image_size"),
            pair(options.patch_size, "patch_size"),
            options.channels,
            options.width,
            class_token=options.class_token,
            distillation=options.distillation,
            positions=options.position == "learned",
            dropout=dropout,
        )
        # Mechanisms that need a longest input are built for an image of `image_size`.
        sized = replace(options, max_length=options.max_length or self.embedding.tokens)
        self.stack = build_stack(sized, options.attention, stack_name="encoder", causal=False)
        self.heads = build_heads(options, self.stack.out_width, None)
        taught = [head for head in options.tasks or () if head.task in ("classify", "regress")]
        self.teacher_task = taught[0].task if taught else None  # the task that has a second head
        second = options.distillation and options.fusion != "label" and bool(taught)
        self.teacher_head = Linear(self.stack.out_width, taught[0].labels) if second else None
        initialise(self, options)

    def check_data(self, size: tuple[int, int], channels: int) -> None:
        super().check_data(size, channels)
        patch = self.embedding.patch
        if size[0] % patch[0] or size[1] % patch[1]:
            raise InvalidOption(
                f"patches of {patch[0]} × {patch[1]} do not divide images of {size[0]} × {size[1]}, so some pixels "
                "would not be read; choose another patch_size, or resize the images"
            )

    @property
    def table(self) -> Tensor:
        raise Unsupported("vit reads images: it has no token embedding")

    def forward(
        self, images: Images, *, interpolate: bool = False, streams: Mapping[str, Tensor] | None = None
    ) -> Hidden:
        """The states. With `interpolate` images may have any size: the grid of positions is interpolated."""
        states: Tensor = self.stack(self.embedding(images, interpolate=interpolate), BlockInputs(streams=streams))
        return states

    def outputs(
        self, images: Images, *, interpolate: bool = False, streams: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The output of each head, by task; with a distillation token, the label's joins both heads."""
        states: Hidden | None = None

        def compute() -> Hidden:
            nonlocal states
            states = self(images, interpolate=interpolate, streams=streams)
            return states

        outputs = self.read_from(self.stack, compute)
        task = self.teacher_task
        if self.teacher_head is not None and task is not None and states is not None:
            how = "logits" if task == "regress" else self.options.fusion  # a number has no probability
            outputs[task] = fuse(outputs[task], self.teacher_head(states[:, 1]), how)
        return outputs

    def student_logits(self, images: Images, task: str) -> tuple[Tensor, Tensor]:
        """The logits of the class token, and those of the distillation token; the same without one."""
        if self.teacher_head is None:
            return super().student_logits(images, task)
        states = self(images)
        return self.read(states)[task], self.teacher_head(states[:, 1])


def fuse(label: Tensor, teacher: Tensor, how: str) -> Tensor:
    """The logits of the joint prediction: the mean of the two probabilities, or of the two logits."""
    if how == "logits":
        return (label + teacher) / 2
    return torch.logaddexp(label.log_softmax(-1), teacher.log_softmax(-1)) - math.log(2)


__all__ = ["VisionTransformer", "fuse"]
