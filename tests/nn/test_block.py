"""Blocks: the order of norms, cross-attention, decoding."""

import pytest
import torch
from torch import nn

from longspan.attention import build
from longspan.errors import InvalidInput
from longspan.nn.block import Block
from longspan.nn.feedforward import FeedForward
from longspan.nn.inputs import BlockInputs
from longspan.nn.multihead import MultiHead
from longspan.nn.residual import Residual

WIDTH, HEADS = 16, 4


def mixer(name: str = "softmax", causal: bool = False) -> MultiHead:
    return MultiHead(WIDTH, build(name, heads=HEADS, head_dim=WIDTH // HEADS, causal=causal))


def block(*, norm_position: str = "post", causal: bool = False, cross: bool = False, name: str = "softmax") -> Block:
    torch.manual_seed(0)
    return Block(
        mixer(name, causal),
        FeedForward(WIDTH, 32, "relu"),
        cross=mixer() if cross else None,
        residual=lambda: Residual(WIDTH, norm_position=norm_position),
    ).double()


def test_a_post_norm_encoder_block_equals_torch():
    ours, theirs = block(), nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True).double()
    with torch.no_grad():
        attention = theirs.self_attn
        for weight, bias, name in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), "qkv"):
            ours.mixer.project[name].weight.copy_(weight)
            ours.mixer.project[name].bias.copy_(bias)
        ours.mixer.out.load_state_dict(attention.out_proj.state_dict())
        inner, outer = (m for m in ours.feedforward.modules() if isinstance(m, nn.Linear))
        inner.load_state_dict(theirs.linear1.state_dict())
        outer.load_state_dict(theirs.linear2.state_dict())
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    torch.testing.assert_close(ours(x, BlockInputs(key_mask=mask)), theirs(x, src_key_padding_mask=~mask))


def test_a_pre_norm_block_is_the_identity_when_its_outputs_are_zero():
    module = block(norm_position="pre", cross=True, causal=True)
    outer = [part for part in module.feedforward.modules() if isinstance(part, nn.Linear)][-1]
    for linear in (module.mixer.out, module.cross.out, outer):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    assert torch.equal(module(x, BlockInputs(context=torch.randn(2, 4, WIDTH, dtype=torch.float64))), x)


@pytest.mark.parametrize("norm_position", ["pre", "post", "none"])
@pytest.mark.parametrize("name", ["softmax", "window"])
def test_decoding_with_another_sequence_equals_the_parallel_pass(name, norm_position):
    module = block(norm_position=norm_position, causal=True, cross=True, name=name)
    x, context = (torch.randn(2, n, WIDTH, dtype=torch.float64) for n in (9, 5))
    context_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    inputs = BlockInputs(context=context, context_mask=context_mask)
    expected = module(x, inputs)
    state, outs = module.start(2, inputs), []
    for part in x.split([3, 1, 5], 1):
        out, state = module.extend(part, state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), expected)
    rows = torch.tensor([1, 0])
    swapped, _ = module.extend(x[rows, :1], module.start(2, inputs).select(rows))
    torch.testing.assert_close(swapped, expected[rows, :1])


def test_context_is_required_or_refused():
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="give context"):
        block(cross=True)(x)
    with pytest.raises(InvalidInput, match="no cross-attention"):
        block()(x, BlockInputs(context=x))
