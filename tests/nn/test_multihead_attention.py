"""The drop-in for torch.nn.MultiheadAttention: the same outputs, weights, gradients and names, and clear refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead_attention import MultiheadAttention

WIDTH, HEADS, BATCH, LENGTH = 12, 3, 2, 7
DOUBLE = {"dtype": torch.float64}


def pair(**options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """Torch's layer and ours with its weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **options, **DOUBLE).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases start at 0, which would hide a mistake
            parameter.normal_()
    ours = MultiheadAttention(WIDTH, HEADS, **options, **DOUBLE).eval()
    assert {name: tuple(x.shape) for name, x in ours.state_dict().items()} == {
        name: tuple(x.shape) for name, x in theirs.state_dict().items()
    }
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(options: dict[str, Any], keys: int = LENGTH) -> list[Tensor]:
    widths = (WIDTH, options.get("kdim") or WIDTH, options.get("vdim") or WIDTH)
    lengths = (LENGTH, keys, keys)
    shapes = [(BATCH, n, w) if options.get("batch_first") else (n, BATCH, w) for n, w in zip(lengths, widths)]
    return [torch.randn(shape, **DOUBLE) for shape in shapes]


CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
PADDING = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
PADDING[1, 5:] = True
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": torch.zeros(BATCH, LENGTH, **DOUBLE).masked_fill(PADDING, -torch.inf)},
    "numbers on keys": {"key_padding_mask": torch.linspace(-1, 1, BATCH * LENGTH, **DOUBLE).view(BATCH, LENGTH)},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "causal numbers": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(LENGTH, **DOUBLE)},
    "any mask": {"attn_mask": torch.eye(LENGTH, dtype=torch.bool).roll(1, 0)},
    "a mask for each head": {"attn_mask": torch.randn(BATCH * HEADS, LENGTH, LENGTH, **DOUBLE)},
    "padding and causal": {"key_padding_mask": PADDING, "attn_mask": CAUSAL},
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other widths": {"kdim": 5, "vdim": 4, "batch_first": True},
    "further keys": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_softmax_gives_what_torch_gives(form: str, masks: str, average: bool):
    theirs, ours = pair(**FORMS[form])
    results = []
    tensors = inputs(FORMS[form])
    for layer in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in tensors]
        out, weights = layer(*leaves, **MASKS[masks], average_attn_weights=average)
        gradients = torch.autograd.grad(out.square().sum(), [*leaves, *layer.parameters()], allow_unused=True)
        results.append((out, weights, *gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


def test_cross_attention_and_no_batch():
    theirs, ours = pair(batch_first=True)
    q, k, v = inputs({"batch_first": True}, keys=4)
    for one, other in zip(theirs(q, k, v), ours(q, k, v), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(theirs(q[0], k[0], v[0]), ours(q[0], k[0], v[0]), strict=True):
        torch.testing.assert_close(one, other)
    assert ours(q, k, v, need_weights=False)[1] is None


def test_half_of_a_state_dict_is_refused_as_torch_does():
    _, ours = pair()
    state = ours.state_dict()
    del state["out_proj.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*out_proj\.bias"):
        ours.load_state_dict(state)


@pytest.mark.parametrize("name", ["window", "linear", "performer", "longformer", "nystrom", "bigbird"])
def test_outputs_of_other_mechanisms_equal_their_maps_times_values(name: str):
    """The output is the map that `need_weights` gives, applied to the projected values."""
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, attention=name, **DOUBLE).eval()
    x, *_ = inputs({"batch_first": True})
    out, weights = layer(x, x, x, key_padding_mask=PADDING, average_attn_weights=False)
    values = layer._heads(x, x, x)[2]
    torch.testing.assert_close(out, layer.out_proj((weights @ values).transpose(1, 2).flatten(2)))
    torch.testing.assert_close(layer(x, x, x, key_padding_mask=PADDING, need_weights=False)[0], out)


def test_a_causal_mechanism_takes_the_causal_mask():
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, attention="window", causal=True, window=3, **DOUBLE)
    x, *_ = inputs({"batch_first": True})
    plain, _ = layer(x, x, x)
    for mask in ({"attn_mask": CAUSAL}, {"attn_mask": CAUSAL, "is_causal": True}, MASKS["causal numbers"]):
        assert torch.equal(layer(x, x, x, **mask)[0], plain)
    with pytest.raises(Unsupported, match="window cannot apply this attn_mask"):
        layer(x, x, x, attn_mask=torch.eye(LENGTH, dtype=torch.bool))
    with pytest.raises(Unsupported, match="build it with causal=True"):
        MultiheadAttention(WIDTH, HEADS, attention="linear", **DOUBLE)(x, x, x, attn_mask=torch.zeros(2, 2).bool())


@pytest.mark.parametrize("masks", ["none", "padding", "causal"])
def test_inside_an_encoder_layer_of_torch(masks: str):
    """In evaluation torch takes a fused path around its own layer; it must not go around ours."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True, **DOUBLE).eval()
    x, *_ = inputs({"batch_first": True})
    arguments = {
        "src_key_padding_mask": MASKS[masks].get("key_padding_mask"),
        "src_mask": MASKS[masks].get("attn_mask"),
    }
    expected = block(x, **arguments)
    ours = MultiheadAttention(WIDTH, HEADS, batch_first=True, **DOUBLE).eval()
    ours.load_state_dict(block.self_attn.state_dict())
    calls = []
    ours.mechanism.register_forward_hook(lambda *_: calls.append(1))
    block.self_attn = ours
    with torch.no_grad():
        torch.testing.assert_close(block(x, **arguments), expected)
    assert bool(calls) == (masks != "causal")  # an arbitrary mask goes through torch's function


def test_invalid_combinations_are_refused():
    with pytest.raises(InvalidOption, match="12 is not a multiple of 5"):
        MultiheadAttention(12, 5)
    with pytest.raises(Unsupported, match=r"reformer needs more than .*; use longspan\.MultiHead"):
        MultiheadAttention(WIDTH, HEADS, attention="reformer")
    with pytest.raises(Unsupported, match="only softmax without causal=True supports"):
        MultiheadAttention(WIDTH, HEADS, attention="window", add_zero_attn=True)
    x, *_ = inputs({})
    with pytest.raises(InvalidInput, match="give attn_mask as well"):
        MultiheadAttention(WIDTH, HEADS, **DOUBLE)(x, x, x, is_causal=True)
    with pytest.raises(InvalidInput, match=r"\(length, batch, width\)"):
        MultiheadAttention(WIDTH, HEADS)(x[None], x[None], x[None])
