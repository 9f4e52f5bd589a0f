"""The inputs of blocks as one value: compiled, exported, checkpointed."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.nn.block import Block
from longspan.nn.feedforward import FeedForward
from longspan.nn.inputs import BlockInputs
from longspan.nn.multihead import MultiHead
from longspan.nn.residual import Residual
from longspan.nn.reversible_body import ReversibleBody
from longspan.nn.rotary import Rotary
from longspan.nn.stack import Body, Stack

WIDTH = 8


class Model(nn.Module):
    """A body as models use it: tensors come in by keyword, and the body receives one value."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, context: Tensor | None, mask: Tensor, marks: Tensor, positions: Tensor) -> Tensor:
        streams = {"global_mask": marks}
        return self.body(x, BlockInputs(context, mask, mask, streams, positions))


def mixer(name: str = "softmax", **options) -> MultiHead:
    position = Rotary(4) if name == "softmax" and not options else None
    return MultiHead(WIDTH, name, heads=2, position=position, **options)


def stack() -> Stack:
    names = [("longformer", {"window": 2}), ("softmax", {})]
    blocks = [
        Block(
            mixer(name, **options),
            FeedForward(WIDTH, 16, "relu"),
            cross=MultiHead(WIDTH, heads=2),
            residual=lambda: Residual(WIDTH),
        )
        for name, options in names
    ]
    return Stack(blocks, nn.LayerNorm(WIDTH))


def reversible() -> ReversibleBody:
    return ReversibleBody([(mixer("longformer", window=2), FeedForward(WIDTH, 16, "relu")) for _ in range(2)])


def example(context: bool) -> tuple[Tensor | None, ...]:
    x, other = torch.randn(2, 2, 6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    marks = torch.zeros(2, 6, dtype=torch.bool)
    marks[:, 1] = True
    return x, other if context else None, mask, marks, torch.arange(6).expand(2, -1) + 3


@pytest.mark.parametrize("make", [stack, reversible])
def test_a_body_compiles_and_exports_as_one_graph(make):
    torch.manual_seed(0)
    model, tensors = Model(make()).double().eval(), example(make is stack)
    expected = model(*tensors)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), expected)
    torch.testing.assert_close(torch.export.export(model, tensors).module()(*tensors), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_has_the_same_gradients(reentrant):
    torch.manual_seed(0)
    block = stack().double().blocks[0]
    x, context, mask, marks, positions = example(True)
    leaves = [x.requires_grad_(), *block.parameters()]
    inputs = BlockInputs(context, mask, mask, {"global_mask": marks}, positions)
    expected = torch.autograd.grad(block(x, inputs).square().sum(), leaves)
    checkpoint(block, x, inputs, use_reentrant=reentrant).square().sum().backward()
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


def test_every_block_receives_only_the_streams_that_its_mechanism_reads():
    seen = []
    body = stack().double()
    for block in body.blocks:
        block.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1]))
    x, context, mask, marks, _ = example(True)
    inputs = BlockInputs(context, mask, mask, {"global_mask": marks})
    body(x, inputs)
    assert [sorted(given.streams) for given in seen] == [["global_mask"], []]
    assert all(given.context is context and given.key_mask is mask for given in seen)
    assert inputs.streams == {"global_mask": marks}
