"""ResNet (He et al. 2016), with attention in place of convolutions or between them.

- `spatial` says what reads the neighbourhood of a pixel in each of the four stages: a 3 × 3 convolution, or local
  attention (stand-alone self-attention, Ramachandran et al. 2019). All four, with the attention stem: no convolution is
  wider than one pixel.
- `nonlocal_blocks` puts non-local blocks (Wang et al. 2018) into the stages: one before the last residual block of a
  stage or, if there are more, one after every second block.

Parameters have torchvision's names, apart from the heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.headed import Headed, build_heads
from longspan.models.image_base import ImageHeads
from longspan.nn.heads import Head
from longspan.nn.local_attention2d import AttentionStem, LocalAttention2d
from longspan.nn.nonlocal_block import NonLocalBlock
from longspan.nn.patches import Images
from longspan.shapes import Hidden

SPATIAL = ("convolution", "attention")
STEMS = ("convolution", "small", "attention")
FORMS = ("embedded", "gaussian", "dot", "concatenation")
Layer = Callable[[int, int, int], nn.Module]  # input channels, output channels, stride


class ResNet(Headed, ImageHeads):
    """The map after the last stage as tokens, its mean first, and task heads.

    >>> model = build("resnet", stem="small", spatial=["convolution"] * 2 + ["attention"] * 2, tasks=["classify"])
    """

    name = "resnet"
    paper = "He et al. 2016"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        """The defaults are ResNet-50."""

        blocks: tuple[int, ...] = option((3, 4, 6, 3), "residual blocks of each stage", low=1)
        width: int = option(64, "channels of the first stage; each stage doubles them", low=1)
        bottleneck: bool = option(True, "whether a block narrows to a quarter of its width (ResNet-50 and larger)")
        stem: str = option(
            "convolution",
            "the first layer: 7 × 7 of stride 2 and pooling, 3 × 3 for small images, or attention",
            choices=STEMS,
        )
        spatial: tuple[str, ...] = option(
            ("convolution",) * 4, "of each stage: 3 × 3 convolutions, or local attention", choices=SPATIAL
        )
        kernel: int = option(7, "side of the neighbourhood that local attention reads; odd", low=1)
        heads: int = option(8, "heads of local attention", low=1)
        grouped: bool = option(False, "whether each head reads its own share of the channels")
        nonlocal_blocks: tuple[int, ...] = option((0, 0, 0, 0), "non-local blocks in each stage", low=0)
        nonlocal_form: str = option("embedded", "how a non-local block compares two pixels", choices=FORMS)
        nonlocal_subsample: bool = option(True, "whether non-local blocks pool keys and values 2 × 2")
        channels: int = option(3, "channels of a pixel: 3 for colour, 1 for grey", low=1)
        image_size: int | tuple[int, ...] | None = option(None, "unused: any size is read; set by the task", low=1)
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        stages = len(options.blocks)
        for name in ("spatial", "nonlocal_blocks"):
            if len(getattr(options, name)) != stages:
                raise InvalidOption(f"{name} needs {stages} values, one per stage, not {len(getattr(options, name))}")
        self._build_stem()
        expansion = 4 if options.bottleneck else 1
        channels = options.width
        for stage, count in enumerate(options.blocks):
            inner = options.width * 2**stage
            build_block = partial(
                (Bottleneck if options.bottleneck else BasicBlock), inner=inner, spatial=self._spatial(stage)
            )
            blocks: list[nn.Module] = []
            inserted = _insertions(count, options.nonlocal_blocks[stage], stage)
            for index in range(count):
                if index in inserted:
                    blocks.append(self._nonlocal(channels))
                blocks.append(build_block(channels, stride=2 if index == 0 and stage > 0 else 1))
                channels = inner * expansion
            if count in inserted:
                blocks.append(self._nonlocal(channels))
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.heads = build_heads(options, channels, None)
        self._initialise()

    def _build_stem(self) -> None:
        options = self.options
        self.maxpool: nn.Module = nn.Identity()
        if options.stem == "attention":
            self.conv1: nn.Module = AttentionStem(options.channels, options.width, heads=options.heads)
            self.bn1: nn.Module = nn.Identity()  # the stem has its own
        else:
            small = options.stem == "small"
            self.conv1 = nn.Conv2d(
                options.channels,
                options.width,
                3 if small else 7,
                stride=1 if small else 2,
                padding=1 if small else 3,
                bias=False,
            )
            self.bn1 = nn.BatchNorm2d(options.width)
            if not small:
                self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)

    def _spatial(self, stage: int) -> Layer:
        options = self.options
        if options.spatial[stage] == "convolution":
            return lambda inputs, outputs, stride: nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return lambda inputs, outputs, stride: LocalAttention2d(
            inputs, outputs, kernel=options.kernel, heads=options.heads, stride=stride, grouped=options.grouped
        )

    def _nonlocal(self, channels: int) -> NonLocalBlock:
        form = self.options.nonlocal_form
        return NonLocalBlock(channels, form=form, subsample=self.options.nonlocal_subsample)  # type: ignore[arg-type]

    def _initialise(self) -> None:
        """He et al.'s initial weights for the convolutions; attention keeps its own, a non-local block is identity."""
        own = (LocalAttention2d, NonLocalBlock)
        skipped = {id(layer) for block in self.modules() if isinstance(block, own) for layer in block.modules()}
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and id(layer) not in skipped:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    @property
    def table(self) -> Tensor:
        raise Unsupported("resnet reads images: it has no token embedding")

    def forward(self, images: Images) -> Hidden:
        """(batch, 1 + positions, channels): the mean of the last map, and the map row by row."""
        x = self.features(images).flatten(2).mT
        return torch.cat([x.mean(1, keepdim=True), x], 1)

    def features(self, images: Images) -> Tensor:
        """The map after the last stage: (batch, channels, height, width)."""
        if images.ndim != 4 or images.shape[1] != self.options.channels:
            raise InvalidInput(
                f"expected images (batch, {self.options.channels} channels, height, width), got {tuple(images.shape)}"
            )
        if images.numel() == 0:
            raise InvalidInput(f"expected at least one image and one pixel, got {tuple(images.shape)}")
        if not images.is_floating_point():
            raise InvalidInput(f"expected images of a floating-point type, got {images.dtype}; try images / 255")
        x: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        for stage in range(len(self.options.blocks)):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x

    def outputs(self, images: Images) -> dict[str, Tensor]:
        """The output of each head, by task."""
        return self.read(self(images))


class Bottleneck(nn.Module):
    """1 × 1, spatial, 1 × 1 to four times the inner width; the spatial layer has the stride (ResNet v1.5)."""

    expansion = 4

    def __init__(self, channels: int, *, inner: int, stride: int, spatial: Layer) -> None:
        super().__init__()
        out = inner * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = spatial(inner, inner, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = _shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class BasicBlock(nn.Module):
    """Two spatial layers (ResNet-18 and 34)."""

    expansion = 1

    def __init__(self, channels: int, *, inner: int, stride: int, spatial: Layer) -> None:
        super().__init__()
        self.conv1, self.bn1 = spatial(channels, inner, stride), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = spatial(inner, inner, 1), nn.BatchNorm2d(inner)
        self.downsample = _shortcut(channels, inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


def _shortcut(channels: int, out: int, stride: int) -> nn.Module | None:
    if channels == out and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))


def _insertions(blocks: int, count: int, stage: int) -> set[int]:
    """Before which residual blocks the non-local blocks are; `blocks` stands for after the last."""
    if count == 1:
        return {blocks - 1}
    places = set(range(2, blocks + 1, 2))
    if count and count != len(places):
        raise InvalidOption(
            f"stage {stage + 1} of {blocks} blocks has 0, 1 or {len(places)} non-local blocks (one after every second "
            f"block), not {count}"
        )
    return places if count else set()


__all__ = ["BasicBlock", "Bottleneck", "ResNet"]
