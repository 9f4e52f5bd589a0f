"""Kept first tokens, learned sinks, scales and soft caps of `window` and `softmax`, against hand counts."""

import math

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.attention.kernels import multi_source_softmax
from longspan.attention.mechanisms.window import SinkWindowState
from longspan.decode import generate
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build as build_model
from longspan.nn.multihead import MultiHead

DOUBLE = torch.float64


def one_feature(name: str, **options) -> Attention:
    return build(name, heads=1, head_dim=1, causal=True, **options).double()


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)[None, None, :, None]


# q = 1 and keys ln 1 … ln 3: the weights are shares of 1, 2, 3, 1, 2, 3
Q, K, V = column(*[1.0] * 6), column(*(math.log(x) for x in (1, 2, 3, 1, 2, 3))), column(1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    "options,expected",
    [
        ({}, [1, 5 / 3, 13 / 5, 13 / 4, 14 / 3, 28 / 5]),
        ({"sinks": 1}, [1, 5 / 3, 14 / 6, 14 / 5, 15 / 4, 29 / 6]),
        ({"sinks": 2}, [1, 5 / 3, 14 / 6, 18 / 7, 19 / 6, 33 / 8]),
        ({"learned_sink": True}, [1 / 2, 5 / 4, 13 / 6, 13 / 5, 14 / 4, 28 / 6]),
        ({"sinks": 1, "learned_sink": True}, [1 / 2, 5 / 4, 14 / 7, 14 / 6, 15 / 5, 29 / 7]),
    ],
    ids=str,
)
def test_hand_counts(options: dict, expected: list[float]):
    attention = one_feature("window", window=1, **options)
    if attention.sink_logits is not None:
        attention.sink_logits.data.zero_()  # one more share of 1
    torch.testing.assert_close(attention(Q, K, V).flatten(), torch.tensor(expected, dtype=DOUBLE))
    torch.testing.assert_close(attention.reference(Q, K, V).flatten(), torch.tensor(expected, dtype=DOUBLE))
    rows = attention.weights(Q, K).sum(-1)
    assert bool((rows < 0.9).all()) if "learned_sink" in options else torch.allclose(rows, torch.ones_like(rows))


def heads(length: int, batch: int = 2, count: int = 3) -> list[Tensor]:
    return [torch.randn(batch, count, length, 4, dtype=DOUBLE) for _ in range(3)]


def test_first_tokens_are_read_once_and_are_the_first_real_ones():
    attention = build("window", heads=3, head_dim=4, causal=True, window=3, sinks=4).double()
    plain = build("window", heads=3, head_dim=4, causal=True, window=3).double()
    full = build("softmax", heads=3, head_dim=4, causal=True).double()
    q, k, v = heads(30)
    torch.testing.assert_close(attention(q, k, v)[:, :, :8], full(q, k, v)[:, :, :8])  # sinks + window + 1
    read = attention.oracle(q, k) > 0
    assert read[0, 0, 20].nonzero().flatten().tolist() == [0, 1, 2, 3, 17, 18, 19, 20]
    # Padding on the left moves them, in each row by itself.
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[0, :5] = False
    mask[1, 2] = False
    read = attention.weights(q, k, key_mask=mask) > 0
    assert read[0, 0, 20].nonzero().flatten().tolist() == [5, 6, 7, 8, 17, 18, 19, 20]
    assert read[1, 0, 20].nonzero().flatten().tolist() == [0, 1, 3, 4, 17, 18, 19, 20]
    alone = attention(q[:1, :, 5:], k[:1, :, 5:], v[:1, :, 5:])
    torch.testing.assert_close(attention(q, k, v, key_mask=mask)[:1, :, 5:], alone)
    assert not torch.allclose(attention(q, k, v), plain(q, k, v))


def test_the_state_keeps_the_window_and_the_first_tokens_and_no_more():
    attention = build("window", heads=3, head_dim=4, causal=True, window=3, sinks=4).double()
    q, k, v = heads(40)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0, :5] = False  # its first tokens come later, over several steps
    for key_mask in (None, mask):
        whole, state, parts, sizes = attention(q, k, v, key_mask=key_mask), attention.start(2), [], []
        for i in range(40):
            new = [x[:, :, i : i + 1] for x in (q, k, v)]
            out, state = attention.extend(*new, state, key_mask=None if key_mask is None else key_mask[:, i : i + 1])
            parts.append(out)
            sizes.append(state.bytes)
        torch.testing.assert_close(torch.cat(parts, 2), whole)
        assert isinstance(state, SinkWindowState) and sizes[-1] == sizes[20]
        rows = 2 * 3 * (3 + 4) * 4 * 8 * 2  # batch, heads, rows, width, bytes, keys and values
        assert sizes[-1] == rows + 2 * 4 * 8 + (0 if key_mask is None else 2 * 3)  # positions, and the mask
    picked = state.select(torch.tensor([1, 1, 0]))
    assert picked.first.at.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [5, 6, 7, 8]]


@pytest.mark.parametrize("name,options", [("softmax", {}), ("window", {"window": 4})])
def test_a_learned_sink_is_a_key_without_a_value(name: str, options: dict):
    attention = build(name, heads=3, head_dim=4, causal=True, learned_sink=True, **options).double()
    assert attention.sink_logits.std() < 0.1 and attention.sink_logits.shape == (3,)
    plain = build(name, heads=3, head_dim=4, causal=True, **options).double()
    q, k, v = heads(20)
    attention.sink_logits.data.fill_(-1e4)
    torch.testing.assert_close(attention(q, k, v), plain(q, k, v))
    attention(q, k, v).sum().backward()
    assert attention.sink_logits.grad.abs().max() == 0
    attention.sink_logits.data.normal_()
    attention.sink_logits.grad = None
    # A row with nothing to read stays 0, and gives the sink no gradient.
    mask = torch.zeros(2, 20, dtype=torch.bool)
    out = attention(q, k, v, key_mask=mask)
    out.sum().backward()
    assert out.abs().max() == 0 and attention.sink_logits.grad.abs().max() == 0


def test_grouped_queries_read_a_learned_sink_step_by_step():
    """Decoding does not repeat the key heads."""
    attention = build("softmax", heads=4, head_dim=4, causal=True, learned_sink=True).double()
    attention.sink_logits.data.normal_()
    q, k, v = (torch.randn(2, count, 9, 4, dtype=DOUBLE) for count in (4, 2, 2))
    whole, state = attention(q, k, v), attention.start(2)
    torch.testing.assert_close(whole, attention.reference(q, k, v))
    parts = []
    for i in range(9):
        out, state = attention.extend(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1], state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 2), whole)
    assert state.k.value.shape[1] == 2


COMBINED = [
    ("softmax", {"scale": 0.4, "softcap": 1.5}),
    ("softmax", {"softcap": 1.5, "learned_sink": True}),
    ("window", {"window": 4, "sinks": 3}),
    ("window", {"window": 4, "learned_sink": True}),
    ("window", {"window": 4, "sinks": 3, "softcap": 1.5, "learned_sink": True}),
    ("window", {"window": 3, "dilation": 2, "softcap": 1.5, "learned_sink": True}),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name,options", COMBINED, ids=str)
def test_the_fast_path_and_decoding_are_the_definition(name: str, options: dict, masked: bool):
    attention = build(name, heads=3, head_dim=4, causal=True, **options).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    for length in (1, 3, 45):
        q, k, v = (x.requires_grad_() for x in heads(length))
        mask = torch.rand(2, length) > 0.3 if masked else None
        inputs = [q, k, v, *attention.parameters()]
        out, expected = attention(q, k, v, key_mask=mask), attention.reference(q, k, v, key_mask=mask)
        torch.testing.assert_close(out, expected)
        slopes = [torch.autograd.grad(x.square().sum(), inputs) for x in (out, expected)]
        for own, other in zip(*slopes):
            torch.testing.assert_close(own, other)
        state, parts = attention.start(2), []
        with torch.no_grad():
            for begin, end in ((0, length // 2), (length // 2, length // 2 + 1), (length // 2 + 1, length)):
                if end > begin:
                    new = [x[:, :, begin:end] for x in (q, k, v)]
                    key_mask = None if mask is None else mask[:, begin:end]
                    part, state = attention.extend(*new, state, key_mask=key_mask)
                    parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 2), out.detach())


@pytest.mark.parametrize("options", [{"softcap": 1.5, "scale": 0.7}, {"softcap": 1.5, "learned_sink": True}], ids=str)
@pytest.mark.parametrize("name", ["softmax", "window"])
def test_many_scores_go_in_chunks(monkeypatch: pytest.MonkeyPatch, name: str, options: dict):
    attention = build(name, heads=3, head_dim=4, causal=True, **options, **({"window": 9} if name == "window" else {}))
    attention = attention.double()
    q, k, v = (x.requires_grad_() for x in heads(70))
    expected = attention(q, k, v)
    slopes = torch.autograd.grad(expected.square().sum(), [q, k, v, *attention.parameters()])
    monkeypatch.setattr(multi_source_softmax, "FEW", 0)
    monkeypatch.setattr(multi_source_softmax.query_chunks, "PIECE", 3 * 2 * 70 * 16)
    out = attention(q, k, v)
    torch.testing.assert_close(out, expected)
    for own, other in zip(torch.autograd.grad(out.square().sum(), [q, k, v, *attention.parameters()]), slopes):
        torch.testing.assert_close(own, other)


def test_a_soft_cap_bounds_scores():
    attention = build("softmax", heads=1, head_dim=4, softcap=0.01).double()
    q, k, _ = (100 * x for x in heads(12, count=1))
    assert attention.weights(q, k).max() < math.exp(0.02) / 12
    wide = build("softmax", heads=1, head_dim=4, softcap=1e9).double()
    torch.testing.assert_close(
        wide.weights(q / 100, k / 100), build("softmax", heads=1, head_dim=4).weights(q / 100, k / 100)
    )


@pytest.mark.parametrize(
    "name,options,said",
    [
        ("window", {"sinks": 2, "causal": False}, "option sinks keeps the first tokens of a causal window"),
        ("window", {"sinks": 2, "dilation": 2}, "option sinks needs a window without gaps"),
        ("window", {"sinks": -1}, "option sinks must be at least 0"),
        ("window", {"softcap": 0.0}, "option softcap must be above 0"),
        ("softmax", {"softcap": 2.0, "score": "cosine"}, "option softcap needs score scaled_dot, not cosine"),
        ("softmax", {"learned_sink": True, "score": "additive"}, "option learned_sink needs score scaled_dot"),
        ("longformer", {"sinks": 2}, "longformer has no option 'sinks'"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, options: dict, said: str):
    with pytest.raises(InvalidOption, match=said):
        build(name, **{"heads": 2, "head_dim": 4, "causal": True, **options})


def test_biases_do_not_go_with_caps_and_first_tokens():
    for name, options in (("window", {"sinks": 2}), ("window", {"softcap": 2.0}), ("softmax", {"softcap": 2.0})):
        attention = build(name, heads=3, head_dim=4, causal=True, **options).double()
        with pytest.raises((InvalidInput, Unsupported), match="takes no bias"):
            attention(*heads(5), bias=torch.zeros(3, 9, dtype=DOUBLE))


def test_a_model_with_first_tokens_decodes_as_it_reads():
    attention = {"name": "window", "window": 4, "sinks": 2, "learned_sink": True}
    sizes = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64, "kv_heads": 1}
    model = build_model("decoder", **sizes, position="rotary", attention=attention).double().eval()
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8], [3, 1]]
    texts = generate(model, prompts, max_new=12).tokens
    assert model.left_padding
    for prompt, text in zip(prompts, texts):
        ids = torch.tensor([prompt + text])
        with torch.no_grad():
            assert model(ids)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == text
    layer = MultiHead(16, "window", heads=2, causal=True, window=4, sinks=2).double()
    x = torch.randn(1, 20, 16, dtype=DOUBLE)
    torch.testing.assert_close(layer.weights(x).sum(-1), torch.ones(1, 2, 20, dtype=DOUBLE))
