"""First tokens at positions of the cache: `window` with sinks and sink_positions="cache" under rotary positions.

The truth here is the cache itself: at each step a list of unrotated keys, rotated by their index in the list, the query
by its own (Xiao et al. 2023, section 3.2).
"""

import pytest
import torch
from torch import Tensor

from longspan.attention import build
from longspan.decode import generate
from longspan.errors import InvalidOption, Unsupported
from longspan.models import build as build_model
from longspan.nn.multihead import MultiHead
from longspan.nn.rotary import Rotary
from longspan.nn.rotary_scaling import RotaryScaling

DOUBLE = torch.float64
HEADS, GROUPS, DIM, WIDTH = 4, 2, 6, 24


def layer(sinks: int = 3, window: int = 4, *, position: str = "cache", rotary: Rotary | None = None) -> MultiHead:
    options = {"sinks": sinks, "sink_positions": position} if sinks else {}
    rotary = rotary or Rotary(DIM)
    built = MultiHead(
        WIDTH, "window", heads=HEADS, kv_heads=GROUPS, causal=True, position=rotary, window=window, **options
    )
    return built.double().eval()


def step_by_step(multihead: MultiHead, x: Tensor, sinks: int, window: int) -> Tensor:
    """One text (1, length, width) through a list of keys and values that drops those between sinks and window."""
    names = ("q", "k", "v")
    q, k, v = (multihead.project[name](x)[0].unflatten(-1, (-1, DIM)).transpose(0, 1) for name in names)
    k, v = (part.repeat_interleave(HEADS // GROUPS, 0) for part in (k, v))
    cache, rows = [], []
    for i in range(x.shape[1]):
        cache.append(i)
        if len(cache) > sinks + window + 1:
            del cache[sinks]
        rotate = multihead.position
        keys = rotate(k[None, :, cache])[0]  # by their index in the cache
        query = rotate(q[None, :, i : i + 1], start=len(cache) - 1)[0]
        weights = (query @ keys.mT / DIM**0.5).softmax(-1)
        rows.append(weights @ v[:, cache])
    return multihead.out(torch.cat(rows, 1).transpose(0, 1).flatten(1))[None]


@pytest.mark.parametrize("sinks,window", [(3, 4), (1, 1), (5, 2), (4, 30)])
def test_the_parallel_form_is_the_cache_step_by_step(sinks: int, window: int):
    multihead = layer(sinks, window)
    x = torch.randn(1, 40, WIDTH, dtype=DOUBLE)
    torch.testing.assert_close(multihead(x), step_by_step(multihead, x, sinks, window))
    original = layer(sinks, window, position="original")
    original.load_state_dict(multihead.state_dict())
    full = sinks + window + 1  # until then nothing has left the cache
    torch.testing.assert_close(multihead(x)[:, :full], original(x)[:, :full])
    if full < 40:
        assert (multihead(x) - original(x))[:, full:].abs().amax() > 1e-3


def test_until_the_cache_is_full_it_is_full_attention():
    for position in ("cache", "original"):
        multihead = layer(3, 4, position=position)
        full = MultiHead(WIDTH, "softmax", heads=HEADS, kv_heads=GROUPS, causal=True, position=Rotary(DIM)).double()
        full.load_state_dict(multihead.state_dict())
        x = torch.randn(2, 8, WIDTH, dtype=DOUBLE)
        torch.testing.assert_close(multihead(x), full(x))


def test_a_longer_middle_changes_no_weight():
    """The window and the first tokens read the same whether 10 or 1,010 tokens were dropped between them."""
    multihead = layer(3, 4)
    first, dropped, last = (torch.randn(1, n, WIDTH, dtype=DOUBLE) for n in (3, 1010, 5))
    near, far = (multihead.weights(torch.cat([first, dropped[:, :n], last], 1))[:, :, -1] for n in (10, 1010))
    for columns in (slice(0, 3), slice(-5, None)):
        torch.testing.assert_close(near[..., columns], far[..., columns])
    assert float(far[..., 3:-5].abs().max()) == 0
    original = layer(3, 4, position="original")
    original.load_state_dict(multihead.state_dict())
    weights = (original.weights(torch.cat([first, dropped[:, :n], last], 1))[:, :, -1, :3] for n in (10, 1010))
    assert not torch.allclose(*weights, atol=1e-3)


@pytest.mark.parametrize("scaling", [None, RotaryScaling(kind="yarn", factor=2.0, original_length=16)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_decoding_over_many_evictions_is_the_parallel_form(grad: bool, scaling: RotaryScaling | None):
    multihead = layer(3, 4, rotary=Rotary(DIM, scaling=scaling))
    x = torch.randn(2, 60, WIDTH, dtype=DOUBLE)
    whole = multihead(x)
    for chunks in ([1] * 60, [20, 1, 1, 30, 8], [60]):
        state, parts, begin = multihead.start(2), [], 0
        with torch.set_grad_enabled(grad):
            for count in chunks:
                part, state = multihead.extend(x[:, begin : begin + count], state)
                parts.append(part)
                begin += count
        torch.testing.assert_close(torch.cat(parts, 1), whole)
    original = layer(3, 4, position="original")
    state_of_original = original.start(2)
    _, state_of_original = original.extend(x, state_of_original)
    assert state.bytes == state_of_original.bytes  # keys are kept as they are, rotated where they were read


def test_longrope_rotates_the_queries_of_first_tokens_as_all_others():
    scaling = RotaryScaling(kind="longrope", factor=4.0, original_length=16, short=(1.0,) * 3, long=(1.5, 2.0, 4.0))
    rotary = Rotary(DIM, scaling=scaling)
    x = torch.randn(2, HEADS, 30, DIM, dtype=DOUBLE)
    torch.testing.assert_close(rotary(x, limit=6)[:, :, :7], rotary(x)[:, :, :7])
    places = torch.arange(30).expand(2, -1)
    torch.testing.assert_close(rotary(x, positions=places, limit=6), rotary(x, limit=6))
    last = x[:, :, 29:].expand(-1, -1, 30, -1)
    torch.testing.assert_close(rotary(x, limit=6)[:, :, 29], rotary(last)[:, :, 6])


def test_left_padding_changes_nothing():
    multihead = layer(3, 4)
    text, pads = torch.randn(1, 30, WIDTH, dtype=DOUBLE), torch.randn(1, 7, WIDTH, dtype=DOUBLE)
    padded, mask = torch.cat([pads, text], 1), torch.ones(1, 37, dtype=torch.bool)
    mask[:, :7] = False
    places = (mask.cumsum(1) - 1).clamp_min(0)
    torch.testing.assert_close(multihead(padded, key_mask=mask, positions=places)[:, 7:], multihead(text))
    state, parts = multihead.start(1), []
    for begin, end in ((0, 9), (9, 10), (10, 37)):
        here = slice(begin, end)
        part, state = multihead.extend(padded[:, here], state, key_mask=mask[:, here], positions=places[:, here])
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1)[:, 7:], multihead(text))


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_gradients_of_all_queries_are_the_definitions(agree, softcap: float | None):
    attention = build(
        "window", heads=3, head_dim=4, causal=True, window=4, sinks=3, sink_positions="cache", softcap=softcap
    ).double()
    heads = [torch.randn(2, 3, 45, 4, dtype=DOUBLE) for _ in range(4)]
    for mask in (None, torch.rand(2, 45) > 0.3):
        agree(
            lambda q, k, v, other, mask=mask: attention.reference(q, k, v, key_mask=mask, streams={"sink_q": other}),
            lambda q, k, v, other, mask=mask: attention(q, k, v, key_mask=mask, streams={"sink_q": other}),
            *heads,
        )


def test_second_derivatives_and_large_scores(agree):
    attention = build("window", heads=1, head_dim=2, causal=True, window=2, sinks=2, sink_positions="cache").double()
    heads = [torch.randn(1, 1, 9, 2, dtype=DOUBLE, requires_grad=True) for _ in range(4)]
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, other: attention(q, k, v, streams={"sink_q": other}), heads, atol=1e-6
    )
    q, k, v, other = ((300 * x if i in (0, 1, 3) else x).detach().float() for i, x in enumerate(heads))

    def exact(*heads: Tensor) -> Tensor:
        q, k, v, other = (x.double() for x in heads)
        return attention.reference(q, k, v, streams={"sink_q": other}).float()

    agree(exact, lambda q, k, v, other: attention(q, k, v, streams={"sink_q": other}), q, k, v, other, tolerance=2e-2)


def test_without_rotary_positions_both_are_the_same():
    x = torch.randn(2, 30, WIDTH, dtype=DOUBLE)
    layers = [
        MultiHead(WIDTH, "window", heads=4, causal=True, window=4, sinks=2, sink_positions=positions).double()
        for positions in ("original", "cache")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    assert torch.equal(layers[0](x), layers[1](x))


def test_a_model_decodes_as_it_reads():
    attention = {"name": "window", "window": 4, "sinks": 2, "sink_positions": "cache"}
    sizes = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64, "kv_heads": 1}
    model = build_model("decoder", **sizes, position="rotary", attention=attention).double().eval()
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8], [3, 1]]
    for prompt, text in zip(prompts, generate(model, prompts, max_new=20).tokens):
        with torch.no_grad():
            assert model(torch.tensor([prompt + text]))[0, len(prompt) - 1 : -1].argmax(-1).tolist() == text


def test_an_exported_program_reads_any_length():
    options = {"window": 2, "sinks": 1, "sink_positions": "cache"}
    multihead = MultiHead(8, "window", heads=1, causal=True, position=Rotary(8), **options).double().eval()
    length = torch.export.Dim("length", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(
            multihead,
            (torch.randn(1, 23, 8, dtype=DOUBLE),),
            dynamic_shapes=({1: length},),
            prefer_deferred_runtime_asserts_over_guards=True,
        ).module()
        for n in (3, 40):
            x = torch.randn(1, n, 8, dtype=DOUBLE)
            torch.testing.assert_close(program(x), multihead(x))


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidOption, match="option sink_positions is about sinks; give sinks=4, or leave it out"):
        build("window", heads=2, head_dim=4, causal=True, sink_positions="cache")
    with pytest.raises(InvalidOption, match="option sink_positions must be one of original, cache, not 'first'"):
        build("window", heads=2, head_dim=4, causal=True, sinks=2, sink_positions="first")
    with pytest.raises(Unsupported, match="rotary positions of a grid have none; give sink_positions original"):
        MultiHead(8, "window", heads=1, causal=True, sinks=2, sink_positions="cache", position=Rotary(8, axes=(4, 4)))
