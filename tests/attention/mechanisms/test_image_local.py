"""The Image Transformer's local attention against its literal sets, in one dimension and two."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Attention, build
from longspan.attention.layouts import blocks_to_raster, raster_to_blocks
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64

LINE = {"query_block": 5, "memory": 7}
IMAGE = {"query_block": (2, 3), "memory": (1, 2), "width": 8}
FIXED = {"query_block": (2, 3), "memory": (3, 1), "width": 7, "height": 5}


def make(causal: bool = True, heads: int = HEADS, **options) -> Attention:
    return build("image_local", heads=heads, head_dim=WIDTH, causal=causal, **options)


def qkv(length: int, batch: int = BATCH, heads: int = HEADS, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, heads, length, WIDTH, dtype=dtype) for _ in range(3)]


def literal_line(length: int, block: int, memory: int, causal: bool) -> Tensor:
    """A_i = {j : a·l_q - l_m <= j <= i} with a = floor(i / l_q); if not causal, up to l_m after the block."""
    keep = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        first = i // block * block
        for j in range(length):
            keep[i, j] = first - memory <= j <= i if causal else first - memory <= j < first + block + memory
    return keep


def literal_image(
    length: int, block: tuple[int, int], flange: tuple[int, int], width: int, height: int | None, causal: bool
) -> Tensor:
    """A_p = {p' : r0 - h_m <= r' < r0 + h_q, c0 - w_m <= c' < c0 + w_q + w_m, rank(p') <= rank(p)}"""
    rows = length + block[0] if height is None else height
    ranks: dict[tuple[int, int], int] = {}
    for r0 in range(0, rows, block[0]):
        for c0 in range(0, width, block[1]):
            for r in range(r0, min(r0 + block[0], rows)):
                for c in range(c0, min(c0 + block[1], width)):
                    ranks[r, c] = len(ranks)
    keep = torch.zeros(length, length, dtype=torch.bool)
    for (r, c), rank in ranks.items():
        r0, c0 = r // block[0] * block[0], c // block[1] * block[1]
        below = 0 if causal else flange[0]
        for other_r in range(r0 - flange[0], r0 + block[0] + below):
            for other_c in range(c0 - flange[1], c0 + block[1] + flange[1]):
                other = ranks.get((other_r, other_c), length)
                if rank < length and other < length and (other <= rank or not causal):
                    keep[rank, other] = True
    return keep


def literal(length: int, options: dict, causal: bool) -> Tensor:
    block, memory = options["query_block"], options["memory"]
    if isinstance(block, int):
        return literal_line(length, block, memory, causal)
    return literal_image(length, block, memory, options["width"], options.get("height"), causal)


SETTINGS = [
    (1, LINE),
    (4, LINE),
    (23, LINE),
    (40, LINE),
    (30, {"query_block": 4, "memory": 0}),
    (30, {"query_block": 1, "memory": 3}),
    (1, IMAGE),
    (7, IMAGE),
    (48, IMAGE),
    (61, IMAGE),
    (40, {"query_block": (2, 4), "memory": (2, 4), "width": 8}),
    (40, {"query_block": (3, 2), "memory": (0, 0), "width": 5}),
    (35, FIXED),
    (42, {"query_block": (4, 4), "memory": (2, 2), "width": 6, "height": 7}),
]
GIVEN = pytest.mark.parametrize(("length", "options"), SETTINGS, ids=str)


@GIVEN
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_literal_sets(dense, agree, length: int, options: dict, causal: bool):
    attention = make(causal, **options)
    keep = literal(length, options, causal)
    tensors = qkv(length)
    agree(lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5), attention, *tensors)
    weights = attention.oracle(*tensors[:2])
    assert torch.equal(weights > 0, keep.expand_as(weights))
    torch.testing.assert_close(attention.weights(*tensors[:2]), weights, atol=1e-12, rtol=0)


@GIVEN
@pytest.mark.parametrize("causal", [False, True])
def test_padding(dense, agree, length: int, options: dict, causal: bool):
    attention = make(causal, **options)
    padding = torch.rand(BATCH, length) < 0.6
    padding[1, : length // 2] = False
    keep = literal(length, options, causal) & padding[:, None, None, :]
    agree(
        lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5),
        lambda q, k, v: attention(q, k, v, key_mask=padding),
        *qkv(length),
    )


@pytest.mark.parametrize("length", [1, 9, 23])
@pytest.mark.parametrize("block", [1, 4, 30])
def test_a_memory_over_everything_is_full_causal_attention(agree, length: int, block: int):
    full = build("softmax", heads=HEADS, head_dim=WIDTH, causal=True)
    for memory in (length, length + 5):
        agree(full, make(query_block=block, memory=memory), *qkv(length))


@pytest.mark.parametrize("causal", [False, True])
def test_a_flange_over_everything_is_full_attention_in_that_order(agree, causal: bool):
    """If causal, everything earlier is read; what is to the right in the same row of blocks comes later."""
    full = build("softmax", heads=HEADS, head_dim=WIDTH, causal=causal)
    agree(full, make(causal, query_block=(2, 3), memory=(9, 9), width=8, height=5), *qkv(40))


@pytest.mark.parametrize(("length", "options"), [(23, LINE), (31, IMAGE), (35, FIXED)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_jacobian_is_0_where_forbidden_and_not_where_allowed(length: int, options: dict, causal: bool):
    attention = make(causal, heads=1, **options)
    (x,) = qkv(length, batch=1, heads=1)[:1]
    jacobian = torch.autograd.functional.jacobian(lambda x: attention(x, x, x), x)
    support = (jacobian[0, 0, :, :, 0, 0] != 0).any(dim=3).any(dim=1)
    assert torch.equal(support, literal(length, options, causal))


@pytest.mark.parametrize(("length", "options"), [(23, LINE), (35, FIXED)], ids=str)
def test_what_several_layers_reach(length: int, options: dict):
    """A stack with residuals reads what the boolean product of its masks allows: all earlier ranks, and no later."""
    attention, layers = make(heads=1, **options), 3
    (x,) = qkv(length, batch=1, heads=1)[:1]

    def stack(x: Tensor) -> Tensor:
        for _ in range(layers):
            x = x + attention(x, x, x)
        return x

    support = (torch.autograd.functional.jacobian(stack, x)[0, 0, :, :, 0, 0] != 0).any(dim=3).any(dim=1)
    keep = literal(length, options, True).double()
    assert torch.equal(support, torch.linalg.matrix_power(keep, layers) > 0)
    assert not support.triu(1).any()


def test_pixels_above_right_are_read_and_those_to_the_right_in_the_same_row_are_not():
    """With blocks of 2 × 2 in an image of 4 × 4, block (1, 0) reads block (0, 1) but block (0, 0) does not."""
    keep = make(query_block=(2, 2), memory=(2, 2), width=4).oracle(*qkv(16)[:2])[0, 0] > 0
    order = raster_to_blocks(4, 4, (2, 2)).tolist()
    rank = {place: index for index, place in enumerate(order)}
    below, top_right, top_left = rank[2 * 4 + 0], rank[0 * 4 + 3], rank[0 * 4 + 0]
    assert bool(keep[below, top_right]) and bool(keep[below, top_left])
    assert not bool(keep[top_left, rank[0 * 4 + 2]])  # the block on its right comes later


@pytest.mark.parametrize(("height", "width"), [(5, 7), (6, 9), (4, 8)])
def test_block_raster_order_of_an_image_is_invertible(height: int, width: int):
    """A model reads an image in raster order: attention in generation order, seen through both permutations."""
    block, flange = (2, 3), (1, 1)
    attention = make(False, query_block=block, memory=flange, width=width, height=height)
    forth, back = raster_to_blocks(height, width, block), blocks_to_raster(height, width, block)
    q, k, v = qkv(height * width)
    out = attention(*(x[:, :, forth] for x in (q, k, v)))[:, :, back]
    for r, c in ((0, 0), (height - 1, width - 1), (2, 3), (3, 2)):
        r0, c0 = r // 2 * 2, c // 3 * 3
        near = [
            row * width + column
            for row in range(max(0, r0 - 1), min(height, r0 + 3))
            for column in range(max(0, c0 - 1), min(width, c0 + 4))
        ]
        weights = (q[:, :, r * width + c, None] @ k[:, :, near].mT / WIDTH**0.5).softmax(-1)
        torch.testing.assert_close(out[:, :, r * width + c], (weights @ v[:, :, near])[:, :, 0])


@st.composite
def any_options(draw) -> dict:
    if draw(st.booleans()):
        return {"query_block": draw(st.integers(1, 12)), "memory": draw(st.integers(0, 20))}
    pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
    memory = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    return {"query_block": draw(pairs), "memory": memory, "width": draw(st.integers(1, 9))}


@settings(max_examples=25)
@given(length=st.integers(1, 70), options=any_options(), causal=st.booleans())
def test_any_sizes(length: int, options: dict, causal: bool):
    torch.manual_seed(length)
    attention = make(causal, **options)
    tensors = qkv(length)
    torch.testing.assert_close(attention(*tensors), attention.reference(*tensors), atol=1e-10, rtol=1e-10)
    assert count_flops(lambda: attention(*tensors)) == 2 * attention.cost(length, length).flops
    leaves = [x[:1].clone().requires_grad_() for x in tensors]
    assert count_kept(lambda: attention(*leaves), leaves) == attention.cost(length, length).floats


@pytest.mark.parametrize("options", [{}, {"query_block": (8, 8), "memory": (8, 8), "width": 128}], ids=str)
def test_no_tensor_grows_with_the_square_at_16k(options: dict):
    """With the paper's block sizes."""
    length = 16384
    attention = build("image_local", heads=1, head_dim=8, causal=True, **options)
    leaves = [torch.randn(1, 1, length, 8).requires_grad_() for _ in range(3)]
    with LargestTensor() as seen:
        attention(*leaves).sum().backward()
    assert 0 < seen.elements < length * length // 8, seen.maker


def test_dropout_in_training_only():
    for options, length in ((LINE, 20), (IMAGE, 31), (FIXED, 35)):
        attention = make(dropout=0.5, **options)
        tensors = qkv(length)
        trained, evaluated = attention.train()(*tensors), attention.eval()(*tensors)
        torch.testing.assert_close(evaluated, attention.reference(*tensors), atol=1e-12, rtol=0)
        assert not torch.allclose(trained, evaluated)


# Decoding


def stream(attention: Attention, tensors: list[Tensor], sizes: list[int], keep: Tensor | None = None):
    state, outs, begin = attention.start(tensors[0].shape[0]), [], 0
    for size in sizes:
        here = slice(begin, begin + size)
        mask = None if keep is None else keep[:, here]
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, key_mask=mask)
        outs.append(out)
        begin += size
    return torch.cat(outs, 2), state


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("length", "options"), [(38, LINE), (61, IMAGE), (35, FIXED)], ids=str)
def test_decoding_equals_the_parallel_pass(length: int, options: dict, masked: bool):
    attention, tensors = make(**options), qkv(length)
    keep = torch.rand(BATCH, length) < 0.6 if masked else None
    expected = attention(*tensors, key_mask=keep)
    for sizes in ([1] * length, [length], [5, 1, 20, length - 26], [length - 1, 1], [9, length - 9]):
        out, _ = stream(attention, tensors, sizes, keep)
        torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("length", "options"), [(28, LINE), (35, FIXED)], ids=str)
def test_gradients_through_decoding(agree, length: int, options: dict):
    attention = make(**options)
    agree(attention, lambda *tensors: stream(attention, list(tensors), [4, 13, 1, length - 18])[0], *qkv(length))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("options", "most"),
    [
        (LINE, 5 + 7),
        ({"query_block": 5, "memory": 0}, 5),
        (IMAGE, 2 * 2 * 8),  # two rows of blocks
        ({"query_block": (2, 3), "memory": (3, 1), "width": 4}, 3 * 2 * 4),
        ({"query_block": (2, 2), "memory": (0, 1), "width": 4}, 2 * 4),
    ],
    ids=str,
)
def test_the_state_stops_growing(options: dict, most: int, masked: bool):
    attention = make(**options)
    state = attention.start(BATCH)
    assert state.bytes == 0
    sizes = []
    for _ in range(80):
        keep = torch.ones(BATCH, 1, dtype=torch.bool) if masked else None
        _, state = attention.extend(*qkv(1), state, key_mask=keep)
        sizes.append(state.bytes // (BATCH * (2 * HEADS * WIDTH * DOUBLE.itemsize + masked)))
        assert state.k.value.untyped_storage().nbytes() <= 2 * (most + 17) * BATCH * HEADS * WIDTH * DOUBLE.itemsize
    assert max(sizes) == max(sizes[:60]) == most - 1  # the one that comes next makes it full


def test_a_mask_given_only_at_a_later_step():
    for options in (LINE, IMAGE):
        attention, tensors = make(**options), qkv(40)
        keep = torch.ones(BATCH, 40, dtype=torch.bool)
        keep[:, 22:25] = False
        state, outs = attention.start(BATCH), []
        for begin, end, mask in ((0, 22, None), (22, 25, keep[:, 22:25]), (25, 40, None)):
            out, state = attention.extend(*(x[:, :, begin:end] for x in tensors), state, key_mask=mask)
            outs.append(out)
        torch.testing.assert_close(torch.cat(outs, 2), attention(*tensors, key_mask=keep), atol=1e-10, rtol=1e-10)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_block": 0}, "option query_block must be at least 1, not 0"),
        ({"query_block": (2, 0), "memory": (1, 1)}, "option query_block must be at least 1, not (2, 0)"),
        ({"memory": -1}, "option memory must be at least 0, not -1"),
        ({"width": 0}, "option width must be at least 1, not 0"),
        ({"query_block": "8"}, "option query_block must be int or a tuple of int, not '8' (str)"),
        ({"width": 8}, "option width goes with a query_block of two numbers (local 2D), not 256"),
        ({"height": 8}, "option height goes with a query_block of two numbers (local 2D), not 256"),
        (
            {"query_block": (2, 3), "memory": (1, 1)},
            "option width must be given for local 2D: the positions of a row of the image",
        ),
        (
            {"query_block": (2, 3), "memory": 4, "width": 8},
            "option memory must be two numbers for local 2D, not 4; query_block and memory are one number each for "
            "local 1D",
        ),
        (
            {"query_block": (2, 3, 4), "memory": (1, 1), "width": 8},
            "option query_block must be two numbers for local 2D, not (2, 3, 4); query_block and memory are one number "
            "each for local 1D",
        ),
        ({"memry": 3}, "image_local has no option 'memry': did you mean 'memory'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        make(**options)
    assert str(raised.value) == message


def test_an_image_of_another_size_is_refused():
    attention = make(**FIXED)
    message = "image_local was built for an image of 5 × 7, which is 35 positions, not 34"
    for call in (attention, attention.reference):
        with pytest.raises(InvalidInput, match=message):
            call(*qkv(34))
    with pytest.raises(InvalidInput, match="not 36"):
        attention(*qkv(36))


def test_decoding_ends_with_the_image():
    attention = make(**FIXED)
    _, state = stream(attention, qkv(35), [34, 1])
    with pytest.raises(InvalidInput, match="these tokens reach to 36; start a new image"):
        attention.extend(*qkv(1), state)


def test_a_form_that_reads_the_future_does_not_decode():
    with pytest.raises(Unsupported, match="image_local was built with causal=False"):
        make(False, **LINE).start(BATCH)


# One-sided blocks, and blocks in a ring


@pytest.mark.parametrize("memory_after", [0, 3, 9])
def test_memory_after_a_block_may_differ_from_memory_before_it(memory_after: int):
    attention = make(causal=False, **LINE, memory_after=memory_after)
    for length in (4, 5, 23):
        q, k, v = qkv(length)
        torch.testing.assert_close(attention(q, k, v), attention.reference(q, k, v), rtol=0, atol=1e-12)
        seen = (attention.weights(q, k)[0, 0] > 0).nonzero()
        for i, j in seen.tolist():
            assert i // 5 * 5 - 7 <= j < i // 5 * 5 + 5 + memory_after


@pytest.mark.parametrize(
    "options", [{"memory_after": 0}, {"memory_after": 4}, {"memory": 8, "memory_after": 0}, {"memory": 0}], ids=str
)
def test_blocks_in_a_ring_are_their_definition(options: dict, agree):
    attention = make(causal=False, **{"query_block": 4, "memory": 4, "ring": True, **options})
    for length in (3, 4, 7, 8, 22):
        q, k, v = qkv(length)
        for keep in (None, torch.rand(BATCH, length) < 0.7):
            agree(
                lambda q, k, v, keep=keep: attention(q, k, v, key_mask=keep),
                lambda q, k, v, keep=keep: attention.reference(q, k, v, key_mask=keep),
                q,
                k,
                v,
            )
    assert attention.cost(22, 22).flops == count_flops(lambda: attention(*qkv(22, batch=1)))


def test_the_first_block_of_a_ring_reads_the_last():
    attention = make(causal=False, query_block=4, memory=4, memory_after=0, ring=True)
    q, k, _ = qkv(14)
    reads = attention.weights(q, k)[0, 0, 1].nonzero().flatten().tolist()
    assert reads == [0, 1, 2, 3, 12, 13]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": True, **LINE, "memory_after": 2}, "ring and memory_after are for causal=False"),
        ({"causal": True, "query_block": 4, "memory": 4, "ring": True}, "ring and memory_after are for causal=False"),
        ({"causal": False, **LINE, "ring": True}, "a ring has whole blocks of 5"),
        ({"causal": False, **IMAGE, "ring": True}, "option ring is for local 1D"),
        ({"causal": False, **IMAGE, "memory_after": 2}, "option memory_after is for local 1D"),
    ],
    ids=str,
)
def test_invalid_rings_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption, match=message):
        make(**options)
