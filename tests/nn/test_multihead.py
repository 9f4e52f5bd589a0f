"""Projections, streams, positions and decoding around a mechanism."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import longspan
from longspan import config
from longspan.attention import build
from longspan.attention.base import Attention, Cost, Extras, Shape, Stream, Supports, masked_softmax
from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidInput, InvalidOption, UnknownName, Unsupported
from longspan.nn.biases import Alibi, RelativeBias
from longspan.nn.multihead import MultiHead
from longspan.nn.rotary import Rotary

WIDTH, HEADS, HEAD_DIM, BATCH, LENGTH = 12, 4, 6, 3, 11


def hidden(length: int = LENGTH, width: int = WIDTH, seed: int = 0) -> torch.Tensor:
    return torch.randn(BATCH, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(name: str = "softmax", *, causal: bool = False, **given) -> MultiHead:
    torch.manual_seed(1)
    mechanism = build(name, heads=HEADS, head_dim=HEAD_DIM, causal=causal)
    return MultiHead(WIDTH, mechanism, **given).double()


def test_equals_torch_with_the_same_weights():
    ours = make()
    theirs = nn.MultiheadAttention(HEADS * HEAD_DIM, HEADS, batch_first=True, dtype=torch.float64)
    ours = MultiHead(24, build("softmax", heads=HEADS, head_dim=HEAD_DIM)).double()
    with torch.no_grad():
        for part, name in zip(theirs.in_proj_weight.chunk(3), "qkv"):
            ours.project[name].weight.copy_(part)
        ours.out.weight.copy_(theirs.out_proj.weight)
    x, mask = hidden(width=24), torch.arange(LENGTH) < torch.tensor([[11], [7], [4]])
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, key_mask=mask), expected)


def test_equals_a_loop_over_heads():
    module, x = make(), hidden()
    outs = []
    for head in range(HEADS):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        q, k, v = (x @ module.project[n].weight[rows].T + module.project[n].bias[rows] for n in "qkv")
        outs.append((q @ k.mT / HEAD_DIM**0.5).softmax(-1) @ v)
    torch.testing.assert_close(module(x), module.out(torch.cat(outs, -1)))


@pytest.mark.parametrize("name", ["softmax", "window"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_queries_equal_repeated_keys_and_values(name, kv_heads):
    module = make(name, kv_heads=kv_heads)
    assert module.project["k"].out_features == kv_heads * HEAD_DIM
    full = make(name)
    with torch.no_grad():
        full.project["q"].load_state_dict(module.project["q"].state_dict())
        full.out.load_state_dict(module.out.state_dict())
        for part in "kv":
            for attribute in ("weight", "bias"):
                few = getattr(module.project[part], attribute).unflatten(0, (kv_heads, HEAD_DIM))
                many = few.repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)
                getattr(full.project[part], attribute).copy_(many)
    torch.testing.assert_close(module(hidden()), full(hidden()))


def test_cross_attention_reads_another_width_and_length_and_its_own_mask():
    module, x, context = make(context_width=7), hidden(), hidden(5, 7, seed=2)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    out = module(x, context, key_mask=mask)
    assert out.shape == x.shape
    torch.testing.assert_close(out[2], module.out.bias.expand_as(out[2]))  # nothing to read
    torch.testing.assert_close(out[1], module(x[1:2], context[1:2, :2])[0])
    prepared = module.prepare(context, mask)
    torch.testing.assert_close(module(x, prepared), out)
    rows = torch.tensor([1, 1, 0])
    torch.testing.assert_close(module(x[rows], prepared.select(rows)), out[rows])


def test_weights_are_the_map_that_is_applied():
    module, x = make("window", causal=True), hidden()
    weights = module.weights(x)
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    v = module.project["v"](x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    torch.testing.assert_close(module.out((weights @ v).transpose(1, 2).flatten(2)), module(x))


POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: Rotary(HEAD_DIM),
    "alibi": lambda: Alibi(HEADS),
    "t5": lambda: RelativeBias(HEADS),
}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", ["softmax", "window"])
def test_decoding_equals_the_parallel_pass_with_every_kind_of_position(name, position):
    module = make(name, causal=True, kv_heads=2, position=POSITIONS[position]())
    x, mask = hidden(), torch.arange(LENGTH) >= torch.tensor([[0], [3], [1]])  # padded on the left
    expected = module(x, key_mask=mask)
    for sizes in ([1] * LENGTH, [4, 1, 6], [LENGTH]):
        state, outs = module.start(BATCH), []
        for part, own in zip(x.split(sizes, 1), mask.split(sizes, 1)):
            out, state = module.extend(part, state, key_mask=own)
            outs.append(out)
        torch.testing.assert_close(torch.cat(outs, 1), expected)
        assert state.length == LENGTH and state.bytes == state.inner.bytes


def test_alibi_prefers_what_is_near():
    module = make(causal=True, position=Alibi(HEADS))
    x = torch.ones(1, LENGTH, WIDTH, dtype=torch.float64)  # all scores are equal but for the bias
    assert (module.weights(x)[0, :, -1].diff(dim=-1) > 0).all()


def test_positions_of_left_padded_rows_make_rotary_ignore_the_padding():
    module, x = make(causal=True, position=Rotary(HEAD_DIM)), hidden()
    padded = torch.cat([torch.full((BATCH, 4, WIDTH), 9.0, dtype=torch.float64), x], 1)
    mask = (torch.arange(LENGTH + 4) >= 4).expand(BATCH, -1)
    places = (mask.cumsum(1) - 1).clamp_min(0)
    torch.testing.assert_close(module(padded, key_mask=mask, positions=places)[:, 4:], module(x))


class Doubled(Attention):
    """Reads every kind of stream: scores from the hidden states, own global keys, and a mask."""

    name, paper, family, order, exponent = "doubled", "a test", (), "n²", 2.0
    supports = Supports()
    projects = ("v",)
    streams = (
        Stream(name="global_k", kind="heads", help="keys of their own", like="k"),
        Stream(name="hidden", kind="hidden", help="the hidden states"),
        Stream(name="chosen", kind="mask", help="tokens that count", required=False),
    )

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def define(self, q, k, extras: Extras):
        scores = extras.streams["global_k"] @ extras.streams["hidden"][:, None, :, : self.shape.head_dim].mT
        chosen = extras.streams.get("chosen")
        keep = torch.ones_like(scores, dtype=torch.bool) if chosen is None else chosen[:, None, None].expand_as(scores)
        return masked_softmax(scores, keep)

    def attend(self, q, k, v, extras):
        return self.define(q, k, extras) @ v

    def cost(self, queries, keys):
        return Cost(0, 0)


def test_streams_are_made_as_declared():
    module = MultiHead(WIDTH, Doubled(Shape(heads=HEADS, head_dim=HEAD_DIM))).double()
    assert set(module.project) == {"v"} and set(module.extra) == {"global_k"}
    torch.testing.assert_close(module.extra["global_k"].weight, module.project["v"].weight)  # a copy at the start
    assert module.extra["global_k"].weight.data_ptr() != module.project["v"].weight.data_ptr()
    x = hidden()
    v, keys = (
        linear(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        for linear in (module.project["v"], module.extra["global_k"])
    )
    chosen = torch.arange(LENGTH).expand(BATCH, -1) % 2 == 0
    weights = (keys @ x[:, None, ::2, :HEAD_DIM].mT).softmax(-1)
    expected = module.out((weights @ v[:, :, ::2]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, streams={"chosen": chosen}), expected)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: make(kv_heads=3), InvalidOption, ["kv_heads", "4", "3"]),
        (lambda: make()(hidden(width=5)), InvalidInput, ["width 12", "(3, 11, 5)"]),
        (lambda: make()(hidden(), hidden(width=5)), InvalidInput, ["context", "width 12", "5"]),
        (lambda: make(context_width=7)(hidden()), InvalidInput, ["without context", "width 7"]),
        (lambda: make("window")(hidden(), hidden()), Unsupported, ["window", "no cross-attention"]),
        (lambda: make("window").prepare(hidden()), Unsupported, ["window"]),
        (lambda: make(position=Rotary(HEAD_DIM))(hidden(), hidden()), Unsupported, ["rotary"]),
        (lambda: make().start(2), Unsupported, ["causal=False"]),
        (
            lambda: make()(hidden(), make().prepare(hidden()), key_mask=torch.ones(BATCH, LENGTH, dtype=torch.bool)),
            InvalidInput,
            ["prepare"],
        ),
    ],
)
def test_refusals_name_what_was_expected(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_what_comes_out_may_have_another_width():
    module = make(out_width=7)
    assert module(hidden()).shape == (BATCH, LENGTH, 7)
    assert module.out.weight.shape == (7, HEADS * HEAD_DIM)


@pytest.mark.parametrize(
    ("rows", "copies", "sources"),
    [
        ([0, 0, 0, 1, 1, 1], 3, 2),  # beams begin: nothing is copied
        ([1, 1, 0, 0], 2, 2),
        ([1, 1], 2, 1),
        ([0, 1, 0], 1, 3),
        ([0, 0, 1], 1, 3),  # not side by side as often: one source for each row
    ],
)
def test_rows_that_read_one_source_share_it(rows: list[int], copies: int, sources: int):
    mixer = MultiHead(16, build("softmax", heads=2, head_dim=8)).double()
    context, x = torch.randn(2, 5, 16).double(), torch.randn(len(rows), 3, 16).double()
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    prepared = mixer.prepare(context, mask).select(torch.tensor(rows))
    assert (prepared.copies, len(prepared.k)) == (copies, sources)
    expected = mixer(x, context[rows], key_mask=mask[rows])
    torch.testing.assert_close(mixer(x, prepared), expected, rtol=0, atol=1e-12)
    weights = mixer.weights(x, context[rows], key_mask=mask[rows])
    torch.testing.assert_close(mixer.weights(x, prepared), weights, rtol=0, atol=1e-12)


def test_sources_that_are_shared_are_selected_once_more():
    mixer = MultiHead(16, build("linear", heads=2, head_dim=8)).double()
    context, x = torch.randn(3, 5, 16).double(), torch.randn(4, 1, 16).double()
    prepared = mixer.prepare(context).select(torch.arange(3).repeat_interleave(2))
    same = prepared.select(torch.tensor([1, 0, 2, 3, 5, 5]))  # parents among the beams of one sentence
    assert same.k is prepared.k and same.copies == 2
    fewer = prepared.select(torch.tensor([4, 5, 1, 1]))  # sentences that are done are dropped
    torch.testing.assert_close(mixer(x, fewer), mixer(x, context[[2, 2, 0, 0]]), rtol=0, atol=1e-12)


def same_weights(*layers: MultiHead) -> bool:
    first, *rest = (layer.state_dict() for layer in layers)
    return all(first.keys() == other.keys() and all(torch.equal(first[n], other[n]) for n in first) for other in rest)


def test_a_name_a_config_and_a_built_mechanism_give_the_same_layer():
    def seeded(make_layer) -> MultiHead:
        torch.manual_seed(3)
        return make_layer().double()

    shape = {"heads": 3, "causal": True, "max_length": 32}
    layers = [
        seeded(lambda: longspan.MultiHead(12, attention="window", window=4, **shape)),
        seeded(lambda: MultiHead(12, "longspan.attention.mechanisms.window:WindowAttention", window=4, **shape)),
        seeded(lambda: MultiHead(12, AttentionConfig("window", window=4), **shape)),
        seeded(lambda: MultiHead(12, build("window", head_dim=4, window=4, **shape))),
    ]
    assert same_weights(*layers)
    for layer in layers:
        mechanism = layer.mechanism
        assert (mechanism.name, mechanism.causal, mechanism.options.window) == ("window", True, 4)
        assert (mechanism.shape.heads, mechanism.shape.head_dim, mechanism.shape.max_length) == (3, 4, 32)
        assert torch.equal(layer(hidden()), layers[0](hidden()))


def test_softmax_is_the_default_and_head_dim_and_dropout_can_be_chosen():
    layer = MultiHead(12, heads=4, head_dim=5, dropout=0.25)
    assert (layer.mechanism.name, layer.mechanism.dropout) == ("softmax", 0.25)
    assert (layer.mechanism.shape.head_dim, layer.out.in_features, layer.out.out_features) == (5, 20, 12)
    assert MultiHead(12, AttentionConfig("softmax", dropout=0.5), heads=4, dropout=0.25).mechanism.dropout == 0.5


def test_an_option_of_the_mechanism_may_be_called_width():
    assert MultiHead(12, "axial", heads=2, width=5, axis=1).mechanism.options.width == 5


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((12,), {}, "give the number of heads: MultiHead(12, 'softmax', heads=8)"),
        ((12, "window"), {"window": 4}, "give the number of heads: MultiHead(12, 'window', heads=8)"),
        ((12,), {"heads": 5}, "heads must divide the width: 12 is not a multiple of 5; or give head_dim"),
        ((12,), {"heads": 0}, "heads must divide the width: 12 is not a multiple of 0; or give head_dim"),
        (
            (12, 7),
            {"heads": 4},
            "attention must be a name, an AttentionConfig or a built mechanism, not 7",
        ),
        (
            (12, AttentionConfig("window")),
            {"heads": 4, "window": 4},
            "window: put options of window into its AttentionConfig",
        ),
        (
            (12, build("window", heads=4, head_dim=3)),
            {"heads": 4, "causal": True, "window": 4},
            "heads, causal, window: the mechanism given to MultiHead is already built; "
            "build window with this, or give its name as attention",
        ),
    ],
)
def test_what_the_constructor_refuses(arguments, options, error):
    with pytest.raises(InvalidOption) as raised:
        MultiHead(*arguments, **options)
    assert str(raised.value) == error


def test_unknown_options_and_names_are_refused_as_by_build():
    with pytest.raises(InvalidOption, match="widow"):
        MultiHead(12, "window", heads=4, widow=3)
    with pytest.raises(UnknownName, match="window"):
        MultiHead(12, "windw", heads=4)
