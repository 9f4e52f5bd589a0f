"""Memory-compressed attention against slots that are computed one by one."""

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import Attention, build
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported

BATCH, HEADS, HEAD_DIM = 2, 3, 4
WIDTH = HEADS * HEAD_DIM
DOUBLE = torch.float64
RULES = [
    {"inclusive": False, "first_slot": True},
    {"inclusive": False, "first_slot": False},
    {"inclusive": True, "first_slot": True},
    {"inclusive": True, "first_slot": False},
]


def make(*, causal: bool = True, dtype: torch.dtype = DOUBLE, dropout: float = 0.0, **options) -> Attention:
    torch.manual_seed(3)
    built = build("memory_compressed", heads=HEADS, head_dim=HEAD_DIM, causal=causal, dropout=dropout, **options)
    return built.to(dtype)


def qkv(length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, HEAD_DIM, dtype=dtype) for _ in range(3)]


def slots(weight: Tensor, bias: Tensor, x: Tensor, stride: int) -> Tensor:
    """Slot j: the sum over offsets t of kernel[:, t] times the channels at position stride·j + t. x is one sequence."""
    channels = x.transpose(0, 1).flatten(1)  # length, width
    found = []
    for j in range(len(channels) // stride):
        total = bias.clone()
        for t in range(stride):
            total = total + weight[:, t] @ channels[stride * j + t]
        found.append(total.view(HEADS, HEAD_DIM))
    return torch.stack(found, 1) if found else x[:, :0]


def literal(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Row by row, by the rule of the paper and its release; causal, without padding."""
    options, stride, out = attention.options, attention.options.stride, torch.zeros_like(q)
    for b in range(q.shape[0]):
        keys = slots(attention.compress_keys.weight, attention.compress_keys.bias, k[b], stride)
        values = slots(attention.compress_values.weight, attention.compress_values.bias, v[b], stride)
        for i in range(q.shape[2]):
            seen = [j for j in range(keys.shape[1]) if stride * (j + 1) - options.inclusive <= i]
            own_k, own_v = keys[:, seen], values[:, seen]
            if options.first_slot:
                own_k, own_v = torch.cat([k[b, :, :1], own_k], 1), torch.cat([v[b, :, :1], own_v], 1)
            if own_k.shape[1]:
                scores = torch.einsum("hd,hjd->hj", q[b, :, i], own_k) / HEAD_DIM**0.5
                out[b, :, i] = torch.einsum("hj,hjd->hd", scores.softmax(-1), own_v)
    return out


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 15, 16, 17])  # every remainder of 3
def test_equals_slots_computed_one_by_one(length: int, stride: int, rule: dict):
    attention, tensors = make(stride=stride, **rule), qkv(length)
    expected = literal(attention, *tensors)
    torch.testing.assert_close(attention(*tensors), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(attention.reference(*tensors), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("length", [2, 200, 601])
def test_the_fast_path_over_several_strips(agree, length: int, rule: dict):
    attention = make(stride=3, **rule)
    agree(attention.reference, attention, *qkv(length))


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_the_jacobian_reaches_exactly_the_finished_slots(stride: int, inclusive: bool, first: bool):
    """Rows stride - 1, stride and stride + 1 are where an off-by-one would show."""
    attention, length = make(stride=stride, inclusive=inclusive, first_slot=first), 10
    q, k, v = qkv(length, batch=1)
    jacobian = torch.autograd.functional.jacobian(lambda v: attention(q, k, v), v)
    support = (jacobian[0, :, :, :, 0] != 0).any(5).any(3).any(2).any(0)  # rows, positions
    for i in range(length):
        finished = (i + inclusive) // stride * stride
        expected = {j for j in range(length) if j < finished or (first and j == 0)}
        assert set(support[i].nonzero().flatten().tolist()) == expected, i


def test_stride_1_with_identity_kernels_is_full_causal_attention(agree):
    attention = make(stride=1, inclusive=True, first_slot=False)
    with torch.no_grad():
        for part in (attention.compress_keys, attention.compress_values):
            part.weight.copy_(torch.eye(WIDTH)[:, None])
            part.bias.zero_()
    agree(build("softmax", heads=HEADS, head_dim=HEAD_DIM, causal=True), attention, *qkv(23))


@pytest.mark.parametrize("causal", [False, True])
def test_kernels_of_one_over_the_stride_are_mean_pooling(dense, agree, causal: bool):
    attention, length = make(stride=3, first_slot=False, causal=causal), 12
    with torch.no_grad():
        for part in (attention.compress_keys, attention.compress_values):
            part.weight.copy_(torch.eye(WIDTH, dtype=DOUBLE)[:, None].expand(-1, 3, -1) / 3)
            part.bias.zero_()
    keep = torch.tensor([[not causal or 3 * (j + 1) <= i for j in range(4)] for i in range(length)])

    def pooled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, *(x.unflatten(2, (4, 3)).mean(3) for x in (k, v)), keep, HEAD_DIM**-0.5)

    agree(pooled, attention, *qkv(length))


def test_the_kernel_is_that_of_a_convolution_over_all_channels():
    attention, (_, k, _) = make(stride=3), qkv(12)
    conv = nn.Conv1d(WIDTH, WIDTH, 3, stride=3, dtype=DOUBLE)
    with torch.no_grad():
        attention.compress_keys.weight.copy_(conv.weight.transpose(1, 2))
        attention.compress_keys.bias.copy_(conv.bias)
    expected = conv(k.transpose(1, 2).flatten(2).mT).mT.unflatten(2, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(attention.compress_keys(k), expected)


@pytest.mark.parametrize("stride", [1, 3, 4])
def test_parameters_are_two_dense_convolutions(stride: int):
    attention = make(stride=stride)
    assert sum(p.numel() for p in attention.parameters()) == 2 * (WIDTH * WIDTH * stride + WIDTH)
    assert not list(make(layer="local").parameters())


# Bidirectional: the tail counts


@pytest.mark.parametrize("length", [1, 2, 10, 11, 12])
def test_every_position_is_read(length: int):
    attention = make(causal=False, stride=3)
    q, k, v = qkv(length, batch=1)
    jacobian = torch.autograd.functional.jacobian(lambda v: attention(q, k, v), v)
    assert bool((jacobian[0, :, :, :, 0] != 0).any(5).any(3).any(2).any(0).all())
    assert attention.oracle(q, k).shape == (1, HEADS, length, -(-length // 3))


@pytest.mark.parametrize("causal", [False, True])
def test_a_slot_is_read_if_any_of_its_positions_may_be(causal: bool):
    attention, (q, k, v) = make(causal=causal, stride=3, first_slot=False), qkv(12)
    keep = torch.tensor([[0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1]] * BATCH, dtype=torch.bool)
    weights = attention.oracle(q, k, key_mask=keep)
    assert bool((weights[:, :, -1] != 0).all(0).all(0).eq(torch.tensor([True, False, True, not causal])).all())
    zeroed = [x * keep[:, None, :, None] for x in (k, v)]
    kept = torch.tensor([[1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1]] * BATCH, dtype=torch.bool)
    torch.testing.assert_close(attention(q, k, v, key_mask=keep), attention(q, *zeroed, key_mask=kept))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [4, 5, 6, 7])
def test_neither_content_nor_amount_of_padding_matters(length: int, causal: bool):
    attention, tensors = make(causal=causal, stride=3), qkv(length)
    expected = attention(*tensors)
    for more in range(1, 8):
        longer = [torch.cat([x, torch.full_like(y, 1e4)], 2) for x, y in zip(tensors, qkv(more))]
        keep = (torch.arange(length + more) < length).expand(BATCH, -1)
        torch.testing.assert_close(attention(*longer, key_mask=keep)[:, :, :length], expected, atol=1e-12, rtol=0)


def test_position_0_may_be_padding():
    attention, (q, k, v) = make(stride=3), qkv(9)
    keep = torch.ones(BATCH, 9, dtype=torch.bool)
    keep[:, 0] = False
    out = attention(q, k, v, key_mask=keep)
    assert bool((out[:, :, :3] == 0).all()) and bool((out[:, :, 3:] != 0).all())


# The local layer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "block"), [(1, 4), (4, 4), (11, 4), (30, 7), (5, 100)])
def test_local_reads_its_own_block_only(dense, agree, length: int, block: int, causal: bool):
    """Not the previous block, and no full attention under two blocks, as released code has them."""
    attention = make(layer="local", block=block, causal=causal)
    keep = [[i // block == j // block and (j <= i or not causal) for j in range(length)] for i in range(length)]
    tensors = qkv(length)
    agree(lambda q, k, v: dense(q, k, v, torch.tensor(keep), HEAD_DIM**-0.5), attention, *tensors)
    torch.testing.assert_close(attention.weights(*tensors[:2]), attention.oracle(*tensors[:2]), atol=1e-12, rtol=0)


def test_layers_declare_their_order_and_abilities():
    memory, local = make(), make(layer="local")
    assert (memory.exponent, local.exponent) == (2.0, 1.0)
    assert (memory.order, local.order) == ("n²/stride", "n·block")
    assert not memory.supports.map and local.supports.map
    with pytest.raises(Unsupported, match="memory_compressed transforms its values"):
        memory.weights(*qkv(5)[:2])


# Cost


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("length", [1, 3, 50, 301])
def test_the_declared_cost_equals_the_counted_one(length: int, rule: dict, causal: bool):
    attention = make(causal=causal, dtype=torch.float32, **rule)
    tensors = [x.requires_grad_() for x in qkv(length, 1, torch.float32)]
    run = lambda: attention(*tensors)  # noqa: E731
    known = [*tensors, *attention.parameters()]
    assert (count_flops(run), count_kept(run, known)) == attention.cost(length, length)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_no_tensor_of_the_scores(dropout: float):
    """With dropout too, which takes the plain way, in pieces."""
    length, attention = 2048, make(dtype=torch.float32, stride=2, dropout=dropout)
    tensors = [x.requires_grad_() for x in qkv(length, 1, torch.float32)]
    with LargestTensor() as seen:
        attention(*tensors).sum().backward()
    assert seen.elements < HEADS * length * length // 7


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options", [{"stride": 3}, {"stride": 300, "first_slot": False}, {"layer": "local", "block": 5}], ids=str
)
def test_dropout_in_training_only(options: dict, causal: bool):
    attention, tensors = make(dropout=0.5, causal=causal, **options), qkv(310)
    trained = attention.train()(*tensors)
    evaluated = attention.eval()(*tensors)
    torch.testing.assert_close(evaluated, attention.reference(*tensors), atol=1e-12, rtol=0)
    assert not torch.allclose(trained, evaluated)


@pytest.mark.parametrize("causal", [False, True])
def test_tiny_dropout_equals_the_definition(agree, causal: bool):
    """The way that dropout takes, in pieces of the queries, with nothing dropped."""
    attention = make(dropout=1e-300, causal=causal, first_slot=False).train()
    keep = torch.rand(BATCH, 600) < 0.6
    run = lambda call: lambda q, k, v: call(q, k, v, key_mask=keep)  # noqa: E731
    agree(run(attention.reference), run(attention), *qkv(600))


# Decoding


def stream(attention: Attention, tensors: list[Tensor], chunks: list[int], keep: Tensor | None = None):
    state, outs, begin = attention.start(tensors[0].shape[0]), [], 0
    for count in chunks:
        own = None if keep is None else keep[:, begin : begin + count]
        out, state = attention.extend(*(x[:, :, begin : begin + count] for x in tensors), state, key_mask=own)
        outs.append(out)
        begin += count
    return torch.cat(outs, 2), state


FORMS = [{"stride": 3, **rule} for rule in RULES] + [{"stride": 1}, {"stride": 30, "first_slot": False}]
FORMS += [{"layer": "local", "block": 4}, {"layer": "local", "block": 1}]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("chunks", [[1] * 17, [17], [5, 1, 8, 3], [4, 4, 9]], ids=str)
def test_decoding_equals_the_parallel_pass(chunks: list[int], options: dict, masked: bool):
    attention, tensors = make(**options), qkv(17)
    keep = torch.rand(BATCH, 17) < 0.5 if masked else None
    out, _ = stream(attention, tensors, chunks, keep)
    torch.testing.assert_close(out, attention(*tensors, key_mask=keep), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_a_mask_given_only_at_a_later_step(options: dict):
    attention, tensors = make(**options), qkv(20)
    keep = torch.ones(BATCH, 20, dtype=torch.bool)
    keep[:, 10:14] = torch.tensor([[True, False, False, False], [False, False, False, True]])
    state, outs = attention.start(BATCH), []
    for begin, end, mask in ((0, 10, None), (10, 14, keep[:, 10:14]), (14, 20, None)):
        out, state = attention.extend(*(x[:, :, begin:end] for x in tensors), state, key_mask=mask)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), attention(*tensors, key_mask=keep), atol=1e-12, rtol=1e-10)


def test_the_state_holds_slots_and_less_than_a_stride_of_positions():
    attention = make(stride=4)
    state = attention.start(BATCH)
    assert state.bytes == 0
    for seen in range(1, 40):
        _, state = attention.extend(*qkv(1), state)
        assert (len(state.k), len(state.pending.k)) == (1 + seen // 4, seen % 4)
        assert state.bytes == 2 * (1 + seen // 4 + seen % 4) * BATCH * WIDTH * 8


@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_the_local_state_is_cleared_at_each_border(chunk: int):
    attention, seen = make(layer="local", block=5), 0
    state = attention.start(BATCH)
    for _ in range(12):
        _, state = attention.extend(*qkv(chunk), state)
        seen += chunk
        assert state.bytes == 2 * (seen % 5) * BATCH * WIDTH * 8


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_another_batch_or_type_is_refused(options: dict):
    attention = make(**options)
    _, state = attention.extend(*qkv(2), attention.start(BATCH))
    with pytest.raises(InvalidInput, match="the state has batch 2 and the new tokens 3"):
        attention.extend(*qkv(2, batch=3), state)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "option stride must be at least 1, not 0"),
        ({"stride": 2.5}, "option stride must be int, not 2.5 (float)"),
        ({"block": 0}, "option block must be at least 1, not 0"),
        ({"inclusive": 1}, "option inclusive must be bool, not 1 (int)"),
        ({"layer": "dense"}, "option layer must be one of memory, local, not 'dense'"),
        ({"strid": 3}, "memory_compressed has no option 'strid': did you mean 'stride'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        make(**options)
    assert str(raised.value) == message


def test_a_stride_over_the_length_reads_position_0():
    attention, (q, k, v) = make(stride=100), qkv(7)
    torch.testing.assert_close(attention(q, k, v), v[:, :, :1].expand_as(v))


@pytest.mark.parametrize("causal", [False, True])
def test_values_of_another_width_are_refused(causal: bool):
    q, k, v = qkv(6)
    for call in (make(causal=causal), make(causal=causal).reference):
        with pytest.raises(InvalidInput, match="v must be as wide as value_dim 4 to be compressed, not 3"):
            call(q, k, v[..., :3])


def test_a_form_that_reads_the_future_does_not_decode():
    with pytest.raises(Unsupported, match="memory_compressed was built with causal=False"):
        make(causal=False).start(BATCH)
