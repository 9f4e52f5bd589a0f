"""Every mechanism in every kind of case, at a small size; what it cannot do is said."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from longspan.attention import find, names
from longspan.errors import InvalidOption, LongspanError, Unsupported
from longspan.measure.case import FUSED, NAIVE, Case
from longspan.measure.flops import count_flops, count_work
from longspan.measure.subject import ready, subject

LENGTH = 256  # what etc has room for its global tokens in
SMALL = Case(mechanism=FUSED, length=LENGTH, heads=2, head_dim=8)


@pytest.mark.parametrize("name", [NAIVE, FUSED, *names()])
@pytest.mark.parametrize("kind", ["forward", "training", "decode"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_mechanism_runs_or_is_unsupported(name: str, kind: str, causal: bool):
    case = replace(SMALL, mechanism=name, kind=kind, causal=causal)
    dense = name in (NAIVE, FUSED)
    supports = None if dense else find(name).supports
    if supports is None:
        able = True
    elif kind == "decode":
        able = supports.causal and supports.streaming
    else:
        able = supports.causal if causal else supports.bidirectional
    if not able:
        with pytest.raises(Unsupported, match=name):
            ready(case)
        return
    made = ready(case)
    for _ in range(2):
        made.call()
    assert (made.state is not None) == (kind == "decode")
    whole = 2.0 if dense else subject(replace(case, kind="forward", causal=causal or kind == "decode")).module.exponent
    assert made.exponent == whole - (kind == "decode")


@pytest.mark.parametrize("name", [NAIVE, FUSED, *names()])
def test_padding_and_other_keys_run_or_are_refused(name: str):
    for change in ({"padding": True}, {"keys": 300}, {"padding": True, "causal": True}):
        case = replace(SMALL, mechanism=name, **change)
        try:
            ready(case).call()
        except LongspanError as error:
            assert name not in (NAIVE, FUSED) and str(error)
    if name in (NAIVE, FUSED):
        with pytest.raises(Unsupported, match="as many queries as keys"):
            ready(replace(SMALL, mechanism=name, causal=True, keys=300)).call()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_naive_and_fused_compute_the_same(causal: bool, padding: bool):
    """Otherwise a ratio of the two would compare different things."""
    found = []
    for name in (NAIVE, FUSED):
        made = subject(replace(SMALL, mechanism=name, causal=causal, padding=padding))
        found.append(made.run(*made.inputs))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


def test_a_training_pass_leaves_no_gradients_behind():
    made = subject(replace(SMALL, mechanism="linformer"))
    made.backward()
    assert made.learned and all(leaf.grad is None for leaf in (*made.inputs, *made.learned))


def test_decoding_continues_and_restarts_when_its_room_is_full():
    made = ready(replace(SMALL, mechanism="softmax", kind="decode", length=16))
    decoding = made.call.__self__
    assert made.state == decoding.read.bytes
    for step in range(2 * decoding.room):
        made.call()
        assert decoding.state.k.value.shape[2] == 16 + step % decoding.room + 1
    assert decoding.read.k.value.shape[2] == 16  # what was read first is still good


def test_the_state_of_dense_attention_is_its_keys_and_values():
    for name in (NAIVE, FUSED, "softmax"):
        made = ready(replace(SMALL, mechanism=name, kind="decode"))
        assert made.state == 2 * 2 * LENGTH * 8 * 4
        for _ in range(LENGTH // 8 + 20):
            made.call()  # past its room


def test_decoding_with_keys_and_unknown_kinds_are_refused():
    with pytest.raises(Unsupported, match="its own text"):
        ready(replace(SMALL, kind="decode", keys=4))
    with pytest.raises(InvalidOption, match="forward, training or decode, not 'backward'"):
        ready(replace(SMALL, kind="backward"))


def test_the_work_of_the_fused_kernel_is_counted_with_its_backward_pass_and_half_when_causal():
    q, k, v = (torch.randn(1, 2, 10, 8, requires_grad=True) for _ in range(3))
    pairs = 2 * 10 * 10
    for causal, share in ((False, 1.0), (True, 0.55)):  # 55 of 100 pairs

        def run(causal: bool = causal) -> None:
            scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

        assert count_work(run) == pytest.approx(share * (4 + 10) * pairs * 8)
        assert count_flops(lambda: scaled_dot_product_attention(q, k, v, is_causal=True)) == 4 * pairs * 8


def test_naive_and_fused_attention_have_the_same_flops():
    for kind, products in (("forward", 2), ("training", 6)):  # its backward pass does not make the scores again
        made = ready(replace(SMALL, mechanism=NAIVE, kind=kind))
        assert count_work(made.call) == products * 2 * 2 * LENGTH**2 * 8
