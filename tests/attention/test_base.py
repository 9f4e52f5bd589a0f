"""Bad input is refused in one line that names what was expected and what came."""

import re

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, Cost, Shape, Stream, Supports, build
from longspan.attention.base import Extras, masked_softmax, readable, share_heads
from longspan.attention.registry import find, names
from longspan.errors import InvalidInput, InvalidOption, LongspanError, Unsupported

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 5, 8


class Tiny(Attention):
    """Reads its own position only, and declares one stream of each kind."""

    name = "tiny"
    paper = "nobody 2024"
    survey_class = ("FP",)
    order = "n"
    exponent = 1.0
    supports = Supports(key_mask=False)
    streams = (
        Stream(name="global_q", kind="heads", help="queries of the global rows"),
        Stream(name="source", kind="hidden", help="the hidden states", required=False),
        Stream(name="is_global", kind="mask", help="which tokens are global", required=False),
        Stream(name="segment", kind="ids", help="which segment a token is of", required=False),
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        self.seen = extras
        return v

    def define(self, q: Tensor, k: Tensor, extras: Extras) -> Tensor:
        return torch.eye(q.shape[2]).expand(*q.shape[:2], -1, -1)

    def cost(self, queries: int, keys: int) -> Cost:
        return Cost(0, 0)


class CausalOnly(Tiny):
    name = "causal_only"
    supports = Supports(causal=True, bidirectional=False)
    streams = ()


def softmax(**options) -> Attention:
    return build("softmax", heads=HEADS, head_dim=WIDTH, **options)


def tiny() -> Tiny:
    return Tiny(Shape(heads=HEADS, head_dim=WIDTH))


def heads(batch: int = BATCH, heads: int = HEADS, length: int = LENGTH, width: int = WIDTH, **options) -> Tensor:
    return torch.randn(batch, heads, length, width, **options)


def refusal(kind: type[LongspanError], call, *args, **kwargs) -> str:
    with pytest.raises(kind) as raised:
        call(*args, **kwargs)
    text = str(raised.value)
    assert "\n" not in text
    return text


# Shapes, types, devices of q, k, v

GOOD = "(batch, heads 4, length, head_dim 8)"
SHAPES = {
    "q of three dimensions": (
        lambda: (heads()[0], heads(), heads()),
        "q has the leading dimensions () and k (2,); they must be equal",
    ),
    "q of five dimensions": (
        lambda: (heads()[None], heads(), heads()),
        "q has the leading dimensions (1, 2) and k (2,); they must be equal",
    ),
    "q of two dimensions": (lambda: (heads()[0, 0], heads(), heads()), f"q must be {GOOD}, not (5, 8)"),
    "q without dimensions": (lambda: (torch.tensor(1.0), heads(), heads()), f"q must be {GOOD}, not ()"),
    "q with other heads": (lambda: (heads(heads=3), heads(), heads()), f"q must be {GOOD}, not (2, 3, 5, 8)"),
    "q with another width": (lambda: (heads(width=6), heads(), heads()), f"q must be {GOOD}, not (2, 4, 5, 6)"),
    "k of three dimensions": (lambda: (heads(), heads()[0], heads()), f"k must be {GOOD}, not (4, 5, 8)"),
    "k with another width": (lambda: (heads(), heads(width=9), heads()), f"k must be {GOOD}, not (2, 4, 5, 9)"),
    "k with heads that do not divide": (
        lambda: (heads(), heads(heads=3), heads(heads=3)),
        "k has 3 heads, which do not divide the 4 heads of q",
    ),
    "k without heads": (lambda: (heads(), heads(heads=0), heads()), f"k must be {GOOD}, not (2, 0, 5, 8)"),
    "v with other heads than k": (
        lambda: (heads(), heads(heads=2), heads()),
        "v must be (batch, heads 2, length, width), not (2, 4, 5, 8)",
    ),
    "v of three dimensions": (
        lambda: (heads(), heads(), heads()[0]),
        "v must be (batch, heads 4, length, width), not (4, 5, 8)",
    ),
    "v of another length": (
        lambda: (heads(), heads(), heads(length=4)),
        "k has length 5 and v 4; each key needs one value",
    ),
    "k of another batch": (lambda: (heads(), heads(batch=3), heads()), "q has batch 2 and k 3; they must be equal"),
    "v of another batch": (lambda: (heads(), heads(), heads(batch=1)), "q has batch 2 and v 1; they must be equal"),
    "no queries": (
        lambda: (heads(length=0), heads(), heads()),
        "there must be at least one query and one key, not 0 and 5",
    ),
    "no keys": (
        lambda: (heads(), heads(length=0), heads(length=0)),
        "there must be at least one query and one key, not 5 and 0",
    ),
    "whole numbers": (
        lambda: (heads().long(), heads(), heads()),
        "q must be of a floating-point type, not torch.int64",
    ),
    "whole numbers as keys": (
        lambda: (heads(), heads().int(), heads()),
        "k must be of a floating-point type, not torch.int32",
    ),
    "truth values as values": (
        lambda: (heads(), heads(), heads() > 0),
        "v must be of a floating-point type, not torch.bool",
    ),
    "keys of another type": (
        lambda: (heads(), heads().double(), heads()),
        "q is torch.float32 and k torch.float64; they must be of one type",
    ),
    "values of another type": (
        lambda: (heads(), heads(), heads().half()),
        "q is torch.float32 and v torch.float16; they must be of one type",
    ),
    "keys elsewhere": (
        lambda: (heads(), heads(device="meta"), heads()),
        "q is on cpu and k on meta; they must be on one device",
    ),
    "values elsewhere": (
        lambda: (heads(), heads(), heads(device="meta")),
        "q is on cpu and v on meta; they must be on one device",
    ),
}


@pytest.mark.parametrize(("make", "message"), list(SHAPES.values()), ids=list(SHAPES))
def test_bad_tensors(make, message: str):
    q, k, v = make()
    attention = softmax()
    assert refusal(InvalidInput, attention, q, k, v) == message
    assert refusal(InvalidInput, attention.reference, q, k, v) == message
    causal = softmax(causal=True)
    assert refusal(InvalidInput, causal.extend, q, k, v, causal.start(BATCH)) == message


@pytest.mark.parametrize("name", ["k of another batch", "k with another width", "keys elsewhere", "no queries"])
def test_the_oracle_and_the_weights_check_too(name: str):
    make, message = SHAPES[name]
    q, k, _ = make()
    assert refusal(InvalidInput, softmax().oracle, q, k) == message
    text = refusal(InvalidInput, softmax().weights, q, k)
    assert text.split(" ")[0] == message.split(" ")[0]


def test_grouped_heads_are_refused_if_unsupported():
    softmax()(heads(), heads(heads=2), heads(heads=2))
    other = build("synthesizer", heads=HEADS, head_dim=WIDTH, max_length=5)
    able = ", ".join(name for name in names() if find(name).supports.grouped)
    assert refusal(Unsupported, other, heads(), heads(heads=2), heads(heads=2)) == (
        f"synthesizer needs a head of keys and values for each of the {HEADS} query heads, not 2: its scores come from "
        f"tables of each head, not from shared keys; repeat them for it; without that, these can: {able}"
    )


def test_weights_of_keys_are_for_as_many_key_heads_as_it_was_built_with():
    linear = build("gated_linear", heads=HEADS, key_heads=2, head_dim=WIDTH, causal=True)
    hidden = {"hidden": torch.zeros(BATCH, LENGTH, HEADS * WIDTH)}
    assert linear.supports.grouped and linear(heads(), heads(heads=2), heads(heads=2), streams=hidden).shape[1] == HEADS
    message = f"gated_linear was built with weights for 2 key heads, and k has {HEADS}; build it with key_heads={HEADS}"
    assert refusal(InvalidInput, linear, heads(), heads(), heads(), streams=hidden) == message
    with pytest.raises(InvalidOption, match=f"key_heads must divide the {HEADS} heads; {HEADS + 1} does not"):
        build("softmax", heads=HEADS, key_heads=HEADS + 1, head_dim=WIDTH)


# Masks

MASKS = {
    "floats": (
        lambda: torch.ones(BATCH, LENGTH),
        "key_mask must be boolean, True where it may be read, not torch.float32; try key_mask.bool()",
    ),
    "whole numbers": (
        lambda: torch.ones(BATCH, LENGTH, dtype=torch.long),
        "key_mask must be boolean, True where it may be read, not torch.int64; try key_mask.bool()",
    ),
    "too long": (
        lambda: torch.ones(BATCH, LENGTH + 1, dtype=torch.bool),
        "key_mask must be (batch 2, length 5), not (2, 6)",
    ),
    "another batch": (
        lambda: torch.ones(3, LENGTH, dtype=torch.bool),
        "key_mask of shape (3, 5) does not broadcast over the batch (2,)",
    ),
    "no dimension": (lambda: torch.tensor(True), "key_mask must be (batch 2, length 5), not ()"),
    "a square": (
        lambda: torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool),
        "key_mask of shape (2, 5, 5) does not broadcast over the batch (2,)",
    ),
    "elsewhere": (
        lambda: torch.ones(BATCH, LENGTH, dtype=torch.bool, device="meta"),
        "key_mask is on meta and q on cpu; they must be on one device",
    ),
}


@pytest.mark.parametrize(("make", "message"), list(MASKS.values()), ids=list(MASKS))
def test_bad_masks(make, message: str):
    assert refusal(InvalidInput, softmax(), heads(), heads(), heads(), key_mask=make()) == message


def test_a_mask_has_the_length_of_the_keys():
    keep = torch.ones(BATCH, 7, dtype=torch.bool)
    softmax()(heads(), heads(length=7), heads(length=7), key_mask=keep)
    text = refusal(InvalidInput, softmax(), heads(), heads(length=7), heads(length=7), key_mask=keep[:, :LENGTH])
    assert text == "key_mask must be (batch 2, length 7), not (2, 5)"


def test_a_mask_is_refused_if_unsupported():
    text = refusal(
        Unsupported,
        tiny(),
        heads(),
        heads(),
        heads(),
        streams={"global_q": heads()},
        key_mask=torch.ones(BATCH, LENGTH, dtype=torch.bool),
    )
    assert text.startswith("tiny cannot mask keys; these can: ") and "softmax" in text and "window" in text


# Biases


@pytest.mark.parametrize("shape", [(HEADS, 8), (3, 9), (9,), (1, HEADS, 9), (HEADS, LENGTH, LENGTH)], ids=str)
def test_bad_bias_shapes(shape: tuple[int, ...]):
    text = refusal(InvalidInput, softmax(), heads(), heads(), heads(), bias=torch.zeros(shape))
    assert text == f"bias must be (heads 4, an odd number of offsets), not {shape}; the middle offset is 0"


@pytest.mark.parametrize("name", ["softmax", "window"])
@pytest.mark.parametrize("wrong", [torch.int64, torch.bool])
def test_a_bias_must_be_floating_point(name: str, wrong: torch.dtype):
    attention = build(name, heads=HEADS, head_dim=WIDTH)
    text = refusal(InvalidInput, attention, heads(), heads(), heads(), bias=torch.zeros(HEADS, 9, dtype=wrong))
    assert "bias" in text and str(wrong) in text


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_a_bias_on_another_device_is_refused(name: str):
    attention = build(name, heads=HEADS, head_dim=WIDTH)
    text = refusal(InvalidInput, attention, heads(), heads(), heads(), bias=torch.zeros(HEADS, 9, device="meta"))
    assert "bias" in text and "meta" in text and "cpu" in text


def test_a_bias_is_refused_if_unsupported():
    text = refusal(
        Unsupported, tiny(), heads(), heads(), heads(), streams={"global_q": heads()}, bias=torch.zeros(HEADS, 9)
    )
    assert text.startswith("tiny takes no bias on its scores; these can: ") and "softmax" in text


# Lengths


def test_different_lengths_are_refused_without_cross_attention():
    long = heads(length=7)
    softmax()(heads(), long, long)
    assert refusal(Unsupported, softmax(causal=True), heads(), long, long) == (
        "softmax in its causal form needs as many queries as keys, not 5 and 7"
    )
    window = build("window", heads=HEADS, head_dim=WIDTH)
    assert refusal(Unsupported, window, heads(), long, long) == "window needs as many queries as keys, not 5 and 7"


# Streams


def test_streams_reach_the_mechanism():
    attention = tiny()
    given = {
        "global_q": heads(),
        "source": torch.randn(BATCH, 9, 32),
        "is_global": torch.zeros(BATCH, LENGTH, dtype=torch.bool),
        "segment": torch.zeros(BATCH, LENGTH, dtype=torch.int64),
    }
    q, k, v = heads(), heads(), heads()
    assert torch.equal(attention(q, k, v, streams=given), v)
    assert all(attention.seen.streams[name] is tensor for name, tensor in given.items())
    torch.testing.assert_close(attention.reference(q, k, v, streams=given), v)
    attention(q, k, v, streams={"global_q": given["global_q"]})  # the others may be left out


STREAMS = {
    "an unknown one": (
        {"globl_q": heads},
        "tiny reads no stream 'globl_q'; it reads: global_q, source, is_global, segment",
    ),
    "heads of three dimensions": (
        {"global_q": lambda: heads()[0]},
        f"global_q must be {GOOD}, not (4, 5, 8)",
    ),
    "heads of another width": (
        {"global_q": lambda: heads(width=3)},
        f"global_q must be {GOOD}, not (2, 4, 5, 3)",
    ),
    "heads of whole numbers": (
        {"global_q": lambda: heads().long()},
        "global_q must be of a floating-point type, not torch.int64",
    ),
    "a hidden state of two dimensions": (
        {"global_q": heads, "source": lambda: torch.randn(BATCH, 9)},
        "source must be (batch 2, length, width), not (2, 9)",
    ),
    "a hidden state of another batch": (
        {"global_q": heads, "source": lambda: torch.randn(3, 9, 4)},
        "source must be (batch 2, length, width), not (3, 9, 4)",
    ),
    "heads of another length": (
        {"global_q": lambda: heads(length=4)},
        "q has length 5 and global_q 4; they must be equal",
    ),
    "ids of floats": (
        {"global_q": heads, "segment": lambda: torch.zeros(BATCH, LENGTH)},
        "segment must be of integers (int64), not torch.float32; try segment.long()",
    ),
    "ids of another length": (
        {"global_q": heads, "segment": lambda: torch.zeros(BATCH, 3, dtype=torch.int64)},
        "segment must be (batch 2, length 5), not (2, 3)",
    ),
    "a mask of floats": (
        {"global_q": heads, "is_global": lambda: torch.zeros(BATCH, LENGTH)},
        "is_global must be boolean, True where it may be read, not torch.float32; try is_global.bool()",
    ),
    "a mask of another length": (
        {"global_q": heads, "is_global": lambda: torch.zeros(BATCH, 3, dtype=torch.bool)},
        "is_global must be (batch 2, length 5), not (2, 3)",
    ),
}


@pytest.mark.parametrize(("given", "message"), list(STREAMS.values()), ids=list(STREAMS))
def test_bad_streams(given: dict, message: str):
    streams = {name: make() for name, make in given.items()}
    assert refusal(InvalidInput, tiny(), heads(), heads(), heads(), streams=streams) == message


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"global_q": lambda: heads(batch=3)}, ("global_q", "batch", "3")),
        ({"global_q": lambda: heads().double()}, ("global_q", "float64", "float32")),
        ({"global_q": lambda: heads(device="meta")}, ("global_q", "meta", "cpu")),
        ({"global_q": heads, "source": lambda: torch.ones(BATCH, 9, 4, dtype=torch.long)}, ("source", "int64")),
        ({"global_q": heads, "source": lambda: torch.ones(BATCH, 9, 4, device="meta")}, ("source", "meta", "cpu")),
    ],
    ids=["heads batch", "heads type", "heads device", "hidden type", "hidden device"],
)
def test_streams_must_fit_the_queries(given: dict, named: tuple[str, ...]):
    streams = {name: make() for name, make in given.items()}
    text = refusal(InvalidInput, tiny(), heads(), heads(), heads(), streams=streams)
    assert all(word in text for word in named), text


@pytest.mark.parametrize("given", [None, {}, {"source": torch.zeros(BATCH, 3, 3)}], ids=["none", "empty", "another"])
def test_a_missing_required_stream_is_refused(given: dict | None):
    text = refusal(InvalidInput, tiny(), heads(), heads(), heads(), streams=given)
    assert text == "tiny needs the stream 'global_q': queries of the global rows"


def test_an_unknown_stream_is_refused():
    text = refusal(InvalidInput, softmax(), heads(), heads(), heads(), streams={"global_q": heads()})
    assert text == "softmax reads no stream 'global_q'; it reads: none"
    softmax()(heads(), heads(), heads(), streams={})


# What a mechanism cannot do


def test_causal_is_refused_if_unsupported():
    text = refusal(Unsupported, Tiny, Shape(heads=HEADS, head_dim=WIDTH), causal=True)
    assert text.startswith("tiny has no causal form; these can: ") and "softmax" in text and "window" in text


def test_bidirectional_is_refused_if_unsupported():
    text = refusal(Unsupported, CausalOnly, Shape(heads=HEADS, head_dim=WIDTH))
    assert text == "causal_only is causal only; build it with causal=True"
    CausalOnly(Shape(heads=HEADS, head_dim=WIDTH), causal=True)


def test_dropout_is_refused_if_unsupported():
    text = refusal(Unsupported, Tiny, Shape(heads=HEADS, head_dim=WIDTH), dropout=0.1)
    assert text == "tiny has no attention weights to drop; use dropout on its output instead"


def test_decoding_is_refused_if_unsupported():
    attention = tiny()
    for call in (
        lambda: attention.start(BATCH),
        lambda: attention.extend(heads(), heads(), heads(), None),
        lambda: attention.extend_heads(heads(), heads(), heads(), None, Extras()),
    ):
        text = refusal(Unsupported, call)
        assert text.startswith("tiny cannot decode step by step; these can: ") and "softmax" in text


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_decoding_is_refused_without_causal(name: str):
    attention = build(name, heads=HEADS, head_dim=WIDTH)
    message = f"{name} was built with causal=False; only causal=True decodes step by step"
    assert refusal(Unsupported, attention.start, BATCH) == message
    state = build(name, heads=HEADS, head_dim=WIDTH, causal=True).start(BATCH)
    assert refusal(Unsupported, attention.extend, heads(), heads(), heads(), state) == message


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_decoding_with_the_state_of_another_batch_or_type(name: str):
    attention = build(name, heads=HEADS, head_dim=WIDTH, causal=True)
    x = heads(length=1)
    _, state = attention.extend(x, x, x, attention.start(BATCH))
    other = heads(batch=3, length=1)
    text = refusal(InvalidInput, attention.extend, other, other, other, state)
    assert "batch" in text and "3" in text and "2" in text
    text = refusal(InvalidInput, attention.extend, other, other, other, attention.start(BATCH))
    assert "batch" in text and "3" in text and "2" in text
    wide = x.double()
    text = refusal(InvalidInput, attention.extend, wide, wide, wide, state)
    assert "float64" in text and "float32" in text


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 7, float("nan")])
def test_dropout_out_of_range(dropout: float):
    text = refusal(InvalidOption, softmax, dropout=dropout)
    assert text == f"dropout must be at least 0 and below 1, not {dropout!r}"


def test_a_mechanism_must_implement_all_abstract_methods():
    class Half(Attention):
        name = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half(Shape(heads=1, head_dim=1))


def test_refusals_suggest_only_mechanisms_with_the_ability():
    """Every name in 'these can' is registered."""
    text = refusal(Unsupported, Tiny, Shape(heads=HEADS, head_dim=WIDTH), causal=True)
    for name in re.search(r"these can: (.*)$", text).group(1).split(", "):
        build(name, heads=HEADS, head_dim=WIDTH, causal=True, max_length=256)


# The small pieces that every mechanism uses


def test_shared_heads_repeat_in_groups():
    x = torch.arange(2.0)[None, :, None, None].expand(1, 2, 3, 1)
    assert share_heads(x, 6)[0, :, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert share_heads(x, 2) is x


def test_masked_softmax_of_a_row_with_nothing_to_read():
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[True, False, True], [False, False, False]])
    weights = masked_softmax(scores, keep)
    assert weights[1].tolist() == [0, 0, 0] and weights[0, 1] == 0
    torch.testing.assert_close(weights[0, [0, 2]], scores[0, [0, 2]].softmax(-1))
    (weights * torch.randn(2, 3)).sum().backward()
    assert scores.grad.isfinite().all() and scores.grad[1].tolist() == [0, 0, 0] and scores.grad[0, 1] == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_readable_by_loops(causal: bool, masked: bool):
    padding = torch.tensor([[True, False, True, True], [False, True, True, False]])
    keep = readable(4, 4, causal, padding if masked else None, torch.device("cpu"))
    for b in range(2):
        for i in range(4):
            for j in range(4):
                expected = (not causal or j <= i) and (not masked or bool(padding[b, j]))
                assert bool(keep.expand(2, 1, 4, 4)[b, 0, i, j]) == expected


@pytest.mark.parametrize("keys", [1, 3, WIDTH, WIDTH + 1, 3 * WIDTH])
def test_weights_of_any_number_of_keys(keys: int):
    """They are read off the fast path in columns as wide as a head."""
    attention = softmax()
    q, k = heads(), heads(length=keys)
    torch.testing.assert_close(attention.weights(q, k), attention.oracle(q, k))
    grouped = heads(heads=2, length=keys)
    torch.testing.assert_close(attention.weights(q, grouped), attention.oracle(q, grouped))
    assert not attention.weights(q.requires_grad_(), k).requires_grad
