"""A small convolutional network with a large receptive field on our Pathfinder: can the task be solved?

    python -m benchmarks.pathfinder_cnn [--size 32] [--contours 6,9,14] [--images 40000] [--minutes 14]

A model at chance on Pathfinder means nothing unless the labels can be learned from the pixels. Residual 3×3
convolutions, dilated 1, 2, 4, 8, 1, 2, 4, 8, cover the whole image. The generator is accepted if such a network exceeds
85 % at 32×32, where counting pixels stays at 50. Test images are separate from training images. Long curves cannot be
learned from scratch in minutes, so short ones come first. Results: docs/results.md.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan.arena.tasks import registry as arena_tasks
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.files import cache

DILATIONS = (1, 2, 4, 8, 1, 2, 4, 8)
BATCH, RATE = 64, 2e-3


class Network(nn.Module):
    """Residual dilated convolutions and max pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation)
            )
            for dilation in DILATIONS
        )
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Linear(2 * width, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images.contiguous(memory_format=torch.channels_last))  # nearly twice as fast on CPUs
        for layer in self.layers:
            x = x + layer(x)
        x = torch.relu(self.norm(x))
        return self.last(torch.cat([x.amax((2, 3)), x.mean((2, 3))], 1))


def pictures(examples: LabelledSequences, size: int) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(examples.tokens.astype("float32")).view(-1, 1, size, size) / 255
    return pixels, torch.from_numpy(examples.labels)


def turned(images: Tensor) -> Tensor:
    """Rotate and mirror a whole batch; this preserves labels."""
    images = torch.rot90(images, int(torch.randint(4, ())), (2, 3))
    return images.flip(3) if torch.rand(()) < 0.5 else images


@torch.no_grad()
def accuracy(network: Network, images: Tensor, labels: Tensor) -> float:
    network.eval()
    right = sum(int((network(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500)))
    network.train()
    return right / len(labels)


def draw(size: int, contour: int, images: int) -> tuple[ArenaTask, Splits]:
    sizes = {"size": size, "contour_length": contour, "train": images, "held_out": 500, "test": 2000}
    task = arena_tasks.build("pathfinder", sizes)
    return task, task.splits(DataFolders(None, Path(cache() / "arena")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--contours", default="6,9,14", help="paddles of a curve, the tested ones last")
    parser.add_argument("--images", type=int, default=40_000, help="to train on of each length; 2000 more are tested")
    parser.add_argument("--width", type=int, default=16, help="channels")
    parser.add_argument("--minutes", type=float, default=14.0, help="minutes of training for each length")
    given = parser.parse_args()
    torch.manual_seed(0)
    network = Network(given.width)
    for contour in map(int, given.contours.split(",")):
        task, splits = draw(given.size, contour, given.images)
        counted = ", ".join(f"{name} {share:.3f}" for name, share in task.baselines(splits).items())
        print(f"{given.size} × {given.size}, contours of {contour}; {counted}", flush=True)
        train(network, splits, given.size, 60 * given.minutes)
        test = pictures(splits.test, given.size)
        print(f"{accuracy(network, *test):.3f} of {len(test[1])} test images", flush=True)


def train(network: Network, splits: Splits, size: int, seconds: float) -> None:
    images, labels = pictures(splits.train, size)
    held_out = pictures(splits.held_out, size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    began, step, shown = time.perf_counter(), 0, 0.0
    while (spent := time.perf_counter() - began) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 200) * (1 - spent / seconds)
        chosen = torch.randint(len(labels), (BATCH,))
        loss = cross_entropy(network(turned(images[chosen])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if spent - shown > seconds / 10:
            shown = spent
            print(
                f"{spent:.0f} s, step {step}: loss {loss:.3f}, held out {accuracy(network, *held_out):.3f}", flush=True
            )


if __name__ == "__main__":
    main()
