"""Dense softmax attention and its six alignment scores."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, softplus

from longspan.attention import Attention, build
from longspan.audit.counting import LargestTensor
from longspan.errors import InvalidInput, InvalidOption

SCORES = ("scaled_dot", "dot", "general", "additive", "location", "cosine")
BATCH, HEADS, WIDTH = 2, 4, 6
DOUBLE = torch.float64


def make(score: str = "scaled_dot", *, heads: int = HEADS, **options) -> Attention:
    """In float64, with parameters other than the initial ones."""
    limit = {"max_length": 40} if score == "location" else {}
    attention = build("softmax", heads=heads, head_dim=WIDTH, score=score, **limit, **options).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    return attention


def qkv(queries: int, keys: int | None = None, *, heads: int = HEADS, key_heads: int | None = None) -> list[Tensor]:
    keys, key_heads = keys or queries, key_heads or heads
    shapes = [(heads, queries), (key_heads, keys), (key_heads, keys)]
    return [torch.randn(BATCH, *shape, WIDTH, dtype=DOUBLE) for shape in shapes]


def slow_scores(attention: Attention, q: Tensor, k: Tensor) -> Tensor:
    """Each score as its paper writes it, one number at a time: q (queries, width), k (keys, width), head 0."""
    score = attention.options.score

    def compare(s: Tensor, h: Tensor, j: int) -> Tensor:
        if score == "cosine":
            return softplus(attention.strength[0]) * (s @ h) / (s.norm() * h.norm())
        if score == "additive":
            return attention.direction[0] @ torch.tanh(attention.change_query[0] @ s + attention.change_key[0] @ h)
        if score == "location":
            return attention.places[0, j] @ s
        if score == "general":
            return s @ attention.change[0] @ h
        return s @ h / WIDTH**0.5 if score == "scaled_dot" else s @ h

    return torch.stack([torch.stack([compare(s, h, j) for j, h in enumerate(k)]) for s in q])


def naive(attention: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Head by head, sequence by sequence (only for one head)."""
    outs = []
    for batch in range(q.shape[0]):
        scores = slow_scores(attention, q[batch, 0], k[batch, 0])
        outs.append(scores.masked_fill(~keep[batch], float("-inf")).softmax(-1) @ v[batch, 0])
    return torch.stack(outs)[:, None]


# The six scores


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_each_score_equals_its_formula(agree, score: str, causal: bool):
    attention = make(score, heads=1, causal=causal)
    q, k, v = qkv(5, heads=1)
    keep = torch.ones(BATCH, 5, 5, dtype=torch.bool)
    keep = keep.tril() if causal else keep
    agree(lambda *x: naive(attention, *x, keep), attention, q, k, v)
    expected = torch.stack([slow_scores(attention, q[b, 0], k[b, 0]) for b in range(BATCH)])
    expected = expected.masked_fill(~keep, float("-inf")).softmax(-1)[:, None]
    torch.testing.assert_close(attention.oracle(q, k), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("score", SCORES)
def test_the_parameters_get_the_gradient_of_the_definition(score: str):
    attention = make(score)
    q, k, v = qkv(7)
    towards = torch.randn(BATCH, HEADS, 7, WIDTH, dtype=DOUBLE)
    parameters = list(attention.parameters())
    assert bool(parameters) == (score not in ("dot", "scaled_dot"))
    if parameters:
        fast = torch.autograd.grad((attention(q, k, v) * towards).sum(), parameters)
        slow = torch.autograd.grad((attention.reference(q, k, v) * towards).sum(), parameters)
        for a, b in zip(fast, slow, strict=True):
            assert bool((a != 0).any())
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


FORMS: dict[str, Callable[[], dict[str, Tensor]]] = {
    "plain": dict,
    "padded": lambda: {"key_mask": torch.rand(BATCH, 9) < 0.6},
    "biased": lambda: {"bias": torch.randn(HEADS, 17, dtype=DOUBLE)},
    "both": lambda: {"key_mask": torch.rand(BATCH, 9) < 0.6, "bias": torch.randn(HEADS, 21, dtype=DOUBLE)},
}


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_the_fast_path_equals_the_definition(agree, score: str, causal: bool, form: str, key_heads: int):
    attention, side = make(score, causal=causal), FORMS[form]()
    agree(lambda *x: attention.reference(*x, **side), lambda *x: attention(*x, **side), *qkv(9, key_heads=key_heads))


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(("queries", "keys"), [(3, 9), (1, 9), (14, 9)])
@pytest.mark.parametrize("score", SCORES)
def test_another_number_of_keys_than_of_queries(agree, score: str, queries: int, keys: int, form: str):
    attention, side = make(score), FORMS[form]()
    if "bias" in side:
        side["bias"] = torch.randn(HEADS, 2 * max(queries, keys) - 1, dtype=DOUBLE)
    agree(lambda *x: attention.reference(*x, **side), lambda *x: attention(*x, **side), *qkv(queries, keys))


@pytest.mark.parametrize("score", SCORES)
def test_a_bias_table_that_is_too_short_is_refused(score: str):
    attention = make(score)
    q, k, v = qkv(9)
    with pytest.raises(InvalidInput, match="bias reaches 7 positions to each side, and 8 are read"):
        attention(q, k, v, bias=torch.zeros(HEADS, 15, dtype=DOUBLE))
    with pytest.raises(InvalidInput, match="bias reaches 10"):
        attention(*qkv(14, 9), bias=torch.zeros(HEADS, 21, dtype=DOUBLE))


@pytest.mark.parametrize("score", SCORES)
def test_a_learned_bias_gets_its_gradient(agree, score: str):
    attention, bias = make(score, causal=True), torch.randn(HEADS, 17, dtype=DOUBLE)
    q, k, v = qkv(9)
    agree(lambda b: attention.reference(q, k, v, bias=b), lambda b: attention(q, k, v, bias=b), bias)


def test_additive_split_equals_the_concatenated_form():
    attention = make("additive")
    q, k, _ = qkv(4, 5)
    whole = torch.cat([attention.change_query, attention.change_key], -1)  # W_a of [s; h]
    pairs = torch.cat([q[:, :, :, None].expand(-1, -1, -1, 5, -1), k[:, :, None].expand(-1, -1, 4, -1, -1)], -1)
    scores = torch.einsum("hd,hde,bhije->bhijd", torch.ones_like(attention.direction), whole, pairs).tanh()
    scores = torch.einsum("hd,bhijd->bhij", attention.direction, scores)
    torch.testing.assert_close(attention.weights(q, k), scores.softmax(-1), atol=1e-12, rtol=0)


def test_dot_equals_general_with_the_identity_and_unscaled_scaled_dot():
    q, k, _ = qkv(4, 5)
    general = make("general")
    with torch.no_grad():
        general.change.copy_(torch.eye(WIDTH, dtype=DOUBLE).expand_as(general.change))
    dot = make("dot").weights(q, k)
    torch.testing.assert_close(general.weights(q, k), dot, atol=1e-12, rtol=0)
    torch.testing.assert_close(make("scaled_dot").weights(q * WIDTH**0.5, k), dot, atol=1e-12, rtol=0)
    torch.testing.assert_close(make("scaled_dot", scale=1.0).weights(q, k), dot, atol=1e-12, rtol=0)


@pytest.mark.parametrize("score", SCORES)
def test_only_location_ignores_the_keys(score: str):
    attention = make(score)
    q, k, _ = qkv(4, 5)
    before, after = attention.weights(q, k), attention.weights(q, torch.randn_like(k))
    assert torch.equal(before, after) == (score == "location")


@pytest.mark.parametrize("score", SCORES)
def test_padding_gets_no_weight_at_all_and_rows_sum_to_one(score: str):
    attention = make(score)
    q, k, _ = qkv(4, 9)
    keep = torch.arange(9) < torch.tensor([[9], [5]])
    for weights in (attention.weights(q, k, key_mask=keep), attention.oracle(q, k, key_mask=keep)):
        assert bool((weights[1, :, :, 5:] == 0).all())
        assert bool((weights[:, :, :, :5] > 0).all())
        torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, 4, dtype=DOUBLE))


def test_cosine_starts_as_the_bare_formula():
    attention = build("softmax", heads=2, head_dim=WIDTH, score="cosine")
    torch.testing.assert_close(softplus(attention.strength), torch.ones(2))
    q = torch.randn(1, 2, 30, WIDTH)
    weights = attention.weights(q, torch.randn(1, 2, 30, WIDTH))
    assert float((weights.amax(-1) / weights.amin(-1)).max()) <= 2.718282**2 + 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE])
def test_a_zero_vector_has_cosine_0(dtype: torch.dtype):
    attention = build("softmax", heads=2, head_dim=WIDTH, score="cosine").to(dtype)
    q, k, v = (torch.randn(1, 2, 5, WIDTH, dtype=dtype) for _ in range(3))
    q[:, :, 1] = 0
    k[:, :, 3] = 0
    for x in (q, k, v):
        x.requires_grad_()
    out = attention(q, k, v)
    assert bool(out.isfinite().all())
    uniform = v.detach().double().mean(2)
    torch.testing.assert_close(out[:, :, 1].double(), uniform, atol=2e-2 if dtype.itemsize == 2 else 1e-6, rtol=0)
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert bool(gradient.isfinite().all())


# Location


def test_location_needs_a_limit():
    with pytest.raises(InvalidOption, match=r"location.*max_length"):
        build("softmax", heads=2, head_dim=WIDTH, score="location")


def test_location_refuses_more_keys_than_its_limit():
    attention = build("softmax", heads=HEADS, head_dim=WIDTH, score="location", max_length=5).double()
    attention(*qkv(7, 5))
    with pytest.raises(InvalidInput, match="max_length 5 and cannot read 6 keys"):
        attention(*qkv(3, 6))
    decoder = build("softmax", heads=HEADS, head_dim=WIDTH, score="location", max_length=5, causal=True).double()
    _, state = decoder.extend(*qkv(5), decoder.start(BATCH))
    with pytest.raises(InvalidInput, match="max_length 5 and cannot read 6 keys"):
        decoder.extend(*qkv(1), state)


def test_location_is_cut_before_the_softmax():
    """The weights of a short sentence sum to 1 with any max_length."""
    attention = make("location")
    q, k, _ = qkv(3, 4)
    torch.testing.assert_close(attention.weights(q, k).sum(-1), torch.ones(BATCH, HEADS, 3, dtype=DOUBLE))


# The core


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_one_key_head_for_all(agree, score: str, padded: bool):
    attention, side = make(score), FORMS["padded" if padded else "plain"]()
    agree(lambda *x: attention.reference(*x, **side), lambda *x: attention(*x, **side), *qkv(9, key_heads=1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value_width", [WIDTH, 3, 11])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 8), (8, 3)])
def test_equals_torch_with_random_masks_and_other_widths(
    agree, queries: int, keys: int, value_width: int, masked: bool
):
    q, k, _ = qkv(queries, keys)
    v = torch.randn(BATCH, HEADS, keys, value_width, dtype=DOUBLE)
    keep = torch.rand(BATCH, keys) < 0.6 if masked else None
    if keep is not None:
        keep[:, 0] = True
    attend = None if keep is None else keep[:, None, None, :]
    agree(
        lambda *x: scaled_dot_product_attention(*x, attn_mask=attend),
        lambda *x: make()(*x, key_mask=keep),
        q,
        k,
        v,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_torch_in_lower_precision(dtype: torch.dtype):
    attention = build("softmax", heads=HEADS, head_dim=WIDTH)
    q, k, v = (x.to(dtype) for x in qkv(7))
    keep = torch.arange(7) < torch.tensor([[7], [4]])
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    expected = scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
    torch.testing.assert_close(attention(q, k, v, key_mask=keep), expected, atol=tolerance, rtol=tolerance)


def test_golden_values():
    """Two keys, scores 0 and log 3 before the scale of 1/2: weights 1/(1 + √3) and √3/(1 + √3)."""
    attention = build("softmax", heads=1, head_dim=4).double()
    q = torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]], dtype=DOUBLE)
    k = torch.zeros(1, 1, 2, 4, dtype=DOUBLE)
    k[0, 0, 1, 0] = torch.tensor(3.0, dtype=DOUBLE).log()
    v = torch.tensor([[[[1.0, 0, 0, 0], [0, 1.0, 0, 0]]]], dtype=DOUBLE)
    expected = torch.tensor([1 / (1 + 3**0.5), 3**0.5 / (1 + 3**0.5), 0, 0], dtype=DOUBLE)
    torch.testing.assert_close(attention(q, k, v)[0, 0, 0], expected)
    torch.testing.assert_close(attention.weights(q, k)[0, 0, 0], expected[:2])


def test_the_scale_keeps_the_variance_of_the_scores():
    q, k = (torch.randn(1, 1, 300, 512) for _ in range(2))
    scores = q @ k.mT
    assert float(scores.var()) > 400
    scaled = scores * build("softmax", heads=1, head_dim=512)._scale
    assert 0.9 < float(scaled.var()) < 1.1
    # The weights carry the scale: their logarithms vary as the scaled scores do.
    logs = build("softmax", heads=1, head_dim=512).oracle(q, k).log()
    assert 0.9 < float((logs - logs.mean(-1, keepdim=True)).var()) < 1.1


def test_the_scale_is_that_of_the_keys_not_of_the_values():
    q, k, _ = qkv(4)
    v = torch.randn(BATCH, HEADS, 4, 2, dtype=DOUBLE)
    expected = (q @ k.mT / WIDTH**0.5).softmax(-1) @ v
    torch.testing.assert_close(make()(q, k, v), expected)


@pytest.mark.parametrize("form", list(FORMS))
def test_a_given_scale_replaces_the_default(agree, form: str):
    attention, side = make(scale=0.3, causal=True), FORMS[form]()
    agree(lambda *x: attention.reference(*x, **side), lambda *x: attention(*x, **side), *qkv(9))
    q, k, _ = qkv(9)
    expected = (q @ k.mT * 0.3).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), float("-inf")).softmax(-1)
    torch.testing.assert_close(attention.weights(q, k), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("score", [score for score in SCORES if score != "scaled_dot"])
def test_a_scale_goes_with_scaled_dot_only(score: str):
    with pytest.raises(InvalidOption, match=f"scale needs score scaled_dot, not {score}"):
        build("softmax", heads=2, head_dim=4, score=score, scale=0.5, max_length=8)


@pytest.mark.parametrize("score", [score for score in SCORES if score != "location"])
def test_without_positions_a_permutation_of_the_input_permutes_the_output(score: str):
    attention = make(score)
    (x,) = qkv(8)[:1]
    order = torch.randperm(8)
    torch.testing.assert_close(
        attention(x[:, :, order], x[:, :, order], x[:, :, order]), attention(x, x, x)[:, :, order], atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("causal", [False, True])
def test_heads_and_sequences_do_not_mix(score: str, causal: bool):
    attention = make(score, causal=causal)
    tensors = qkv(6)
    out = attention(*tensors)
    changed = [x.clone() for x in tensors]
    for x in changed:
        x[0, 1] += 1.0
    after = attention(*changed)
    same = torch.ones(BATCH, HEADS, dtype=torch.bool)
    same[0, 1] = False
    assert torch.equal(after[same], out[same])
    assert not torch.equal(after[0, 1], out[0, 1])


@pytest.mark.parametrize("form", ["padded", "both"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_a_row_with_nothing_to_read_is_0_with_gradient_0(score: str, causal: bool, form: str):
    attention, side = make(score, causal=causal), FORMS[form]()
    side["key_mask"] = torch.ones(BATCH, 9, dtype=torch.bool)
    side["key_mask"][1] = False
    leaves = [x.requires_grad_() for x in qkv(9)]
    out = attention(*leaves, **side)
    assert bool((out[1] == 0).all()) and bool((out[0] != 0).any())
    parameters = list(attention.parameters())
    for gradient in torch.autograd.grad(out.sum(), leaves, retain_graph=True, materialize_grads=True):
        assert bool((gradient[1] == 0).all()) and bool(gradient.isfinite().all())
    if parameters:
        assert all(bool((x == 0).all()) for x in torch.autograd.grad(out[1].sum(), parameters))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("score", SCORES)
def test_a_row_with_nothing_to_read_in_lower_precision(score: str, dtype: torch.dtype):
    attention = make(score, causal=True).to(dtype)
    keep = torch.arange(9) >= torch.tensor([[9], [3]])  # nothing at all; left padding
    leaves = [x.to(dtype).requires_grad_() for x in qkv(9)]
    out = attention(*leaves, key_mask=keep)
    assert bool((out[0] == 0).all()) and bool((out[1, :, :3] == 0).all()) and bool(out.isfinite().all())
    assert bool((out[1, :, 3:] != 0).any(-1).all())
    for gradient in torch.autograd.grad(out.sum(), leaves, materialize_grads=True):
        assert bool((gradient[0] == 0).all()) and bool(gradient.isfinite().all())


@pytest.mark.parametrize("score", SCORES)
def test_the_weights_are_those_before_dropout(score: str):
    attention = make(score, dropout=0.5).train()
    q, k, v = qkv(7)
    weights = attention.weights(q, k)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, 7, dtype=DOUBLE))
    torch.testing.assert_close(weights, attention.oracle(q, k), atol=1e-12, rtol=0)
    assert attention.training
    assert not torch.equal(attention(q, k, v), attention(q, k, v))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_dropout_in_training_only(score: str, padded: bool):
    attention = make(score, dropout=0.5)
    keep = torch.arange(7) < torch.tensor([[7], [5]]) if padded else None
    q, k, v = qkv(7)
    trained = attention.train()(q, k, v, key_mask=keep)
    evaluated = attention.eval()(q, k, v, key_mask=keep)
    torch.testing.assert_close(evaluated, attention.reference(q, k, v, key_mask=keep), atol=1e-12, rtol=0)
    assert not torch.allclose(trained, evaluated)


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("score", [score for score in SCORES if score != "location"])
def test_a_padded_batch_equals_each_sequence_alone(agree, score: str, side: str):
    """Causal as well: with left padding the first rows read nothing, and the others as if it were not there."""
    attention = make(score, causal=True)
    real = slice(3, 8) if side == "left" else slice(0, 5)
    keep = torch.zeros(BATCH, 8, dtype=torch.bool)
    keep[:, real] = True
    tensors = qkv(8)
    agree(
        lambda *x: attention(*(y[:, :, real] for y in x)),
        lambda *x: attention(*x, key_mask=keep)[:, :, real],
        *tensors,
    )
    if side == "left":
        assert bool((attention(*tensors, key_mask=keep)[:, :, :3] == 0).all())


@pytest.mark.parametrize("score", SCORES)
def test_the_content_of_padding_changes_nothing(score: str):
    attention = make(score)
    q, k, v = qkv(4, 8)
    keep = torch.arange(8) < torch.tensor([[6], [3]])
    before = attention(q, k, v, key_mask=keep)
    hidden = ~keep[:, None, :, None]
    k, v = (torch.where(hidden, torch.full_like(x, 1e4), x) for x in (k, v))
    assert torch.equal(attention(q, k, v, key_mask=keep), before)


# Decoding


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1], [9]], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_decoding_equals_the_parallel_pass(score: str, chunks: list[int], form: str, key_heads: int):
    attention, side = make(score, causal=True), FORMS[form]()
    tensors = qkv(9, key_heads=key_heads)
    expected = attention(*tensors, **side)
    state, outs, begin = attention.start(BATCH), [], 0
    for count in chunks:
        here = slice(begin, begin + count)
        part = dict(side)
        if "key_mask" in side:
            part["key_mask"] = side["key_mask"][:, here]
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, **part)
        outs.append(out)
        begin += count
    torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_decoding_keeps_the_gradient(agree, score: str):
    attention = make(score, causal=True)

    def decoded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, outs = attention.start(BATCH), []
        for here in (slice(0, 2), slice(2, 3), slice(3, 6)):
            out, state = attention.extend(q[:, :, here], k[:, :, here], v[:, :, here], state)
            outs.append(out)
        return torch.cat(outs, 2)

    agree(attention, decoded, *qkv(6))


@pytest.mark.parametrize("score", SCORES)
def test_a_mask_given_only_at_a_later_step(score: str):
    """The first chunk has no mask, the second has one, the third has none again."""
    attention = make(score, causal=True)
    tensors = qkv(9)
    keep = torch.ones(BATCH, 9, dtype=torch.bool)
    keep[:, 3:6] = torch.tensor([[True, False, True], [False, False, True]])
    state, outs = attention.start(BATCH), []
    for begin, mask in ((0, None), (3, keep[:, 3:6]), (6, None)):
        out, state = attention.extend(*(x[:, :, begin : begin + 3] for x in tensors), state, key_mask=mask)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), attention(*tensors, key_mask=keep), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_beams_are_reordered_by_selecting_the_state(score: str):
    attention = make(score, causal=True)
    prompt, step = qkv(5), qkv(1)
    order = torch.tensor([1, 1])
    _, state = attention.extend(*prompt, attention.start(BATCH))
    out, _ = attention.extend(*(x[order] for x in step), state.select(order))
    expected, _ = attention.extend(*step, state)
    torch.testing.assert_close(out, expected[order], atol=1e-12, rtol=0)


# Strides and size


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("score", SCORES)
def test_inputs_may_be_any_view(score: str, form: str):
    attention, side = make(score), FORMS[form]()
    tensors = qkv(9)
    expected = attention(*tensors, **side)
    transposed = [x.mT.contiguous().mT for x in tensors]
    torch.testing.assert_close(attention(*transposed, **side), expected, atol=1e-10, rtol=1e-10)


def test_additive_never_stores_all_pairs():
    """128 × 128 pairs of width 6 would be 98304 numbers a head; a piece has 32 rows."""
    attention = build("softmax", heads=1, head_dim=WIDTH, score="additive")
    q, k, v = (torch.randn(1, 1, 128, WIDTH).requires_grad_() for _ in range(3))
    with LargestTensor() as seen:
        attention(q, k, v).sum().backward()
    assert seen.elements <= 32 * 128 * WIDTH


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 65])
def test_any_length(score: str, length: int):
    attention = build("softmax", heads=HEADS, head_dim=WIDTH, score=score, causal=True, max_length=65).double()
    tensors = qkv(length)
    torch.testing.assert_close(attention(*tensors), attention.reference(*tensors), atol=1e-10, rtol=1e-10)
