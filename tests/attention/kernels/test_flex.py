"""FlexAttention in eager mode: its masks and its outputs equal the definitions."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from longspan import models
from longspan.attention import build
from longspan.attention.kernels import flex
from longspan.errors import InvalidInput
from longspan.nn.multihead import MultiHead

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

CASES = [
    ("window", {"window": 3}, False),
    ("window", {"window": 2, "dilation": (1, 3)}, True),
    ("longformer", {"window": 4}, False),
    ("sparse", {"stride": 5}, True),
    ("sparse", {"stride": 5, "heads_pattern": "split"}, True),
    ("sparse", {"pattern": "fixed", "stride": 6, "summary": 2}, True),
    ("sparse", {"pattern": "fixed", "stride": 6, "summary": 2, "heads_pattern": "distant"}, True),
    ("image_local", {"query_block": 4, "memory": 6}, True),
    ("image_local", {"query_block": 4, "memory": 6, "memory_after": 2}, False),
    ("image_local", {"query_block": (2, 3), "memory": (1, 2), "width": 7}, True),
    ("image_local", {"query_block": (2, 3), "memory": (1, 2), "width": 7}, False),
    ("axial", {"width": 5}, True),
    ("axial", {"width": 5, "axis": 0}, False),
    ("axial", {"axes": (2, 5, 4), "axis": 1}, True),
    ("bigbird", {"block": 3, "random": 1}, False),
    ("bigbird", {"block": 3, "form": "etc", "global_tokens": 4, "random": 2}, False),
]
LENGTH, HEADS, WIDTH = 40, 2, 4


def made(name, options, causal):
    torch.manual_seed(0)
    mechanism = build(name, heads=HEADS, head_dim=WIDTH, causal=causal, **options)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, 31:] = False
    keep[1, 4] = False
    return mechanism, q, k, v, keep


def through(mechanism, q, k, v, keep, bias=None):
    extras = mechanism._check(q, k, v, keep, bias, None)
    return flex.through(flex_attention, mechanism, q, k, v, extras)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "options", "causal"), CASES)
def test_masks_and_outputs_equal_the_definition(name, options, causal, masked):
    mechanism, q, k, v, keep = made(name, options, causal)
    keep = keep if masked else None
    read = flex.reads(mechanism, LENGTH, keep, q.device)
    places = torch.meshgrid(*(torch.arange(size) for size in (2, HEADS, LENGTH, LENGTH)), indexing="ij")
    assert torch.equal(read(*places), (mechanism.oracle(q, k, key_mask=keep) > 0).expand(2, -1, -1, -1))
    found = through(mechanism, q, k, v, keep)
    assert torch.allclose(found, mechanism(q, k, v, key_mask=keep), atol=1e-12)


def test_a_row_with_nothing_to_read_is_zero():
    mechanism, q, k, v, _ = made("window", {"window": 2}, True)
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[:, :5] = False
    assert torch.equal(through(mechanism, q, k, v, keep)[:, :, :3], torch.zeros(2, HEADS, 3, WIDTH, dtype=q.dtype))


def test_unsupported_calls_use_the_mechanism():
    mechanism, q, k, v, _ = made("window", {"window": 3}, False)
    bias = torch.randn(HEADS, 2 * LENGTH - 1, dtype=torch.float64)
    assert through(mechanism, q, k, v, None, bias=bias) is None
    assert through(build("window", heads=HEADS, head_dim=WIDTH, window=3, dropout=0.5), q, k, v, None) is None
    assert through(build("bigbird", heads=HEADS, head_dim=WIDTH, block=3, plan="hugging_face"), q, k, v, None) is None
    ring = build("image_local", heads=HEADS, head_dim=WIDTH, query_block=4, memory=4, ring=True)
    assert through(ring, q, k, v, None) is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("axial", {"axes": (4, 5)}),
        ("image_local", {"query_block": (2, 2), "memory": (1, 1), "width": 4, "height": 5}),
    ],
)
def test_a_text_that_does_not_fit_the_grid_is_refused(name, options):
    mechanism, q, k, v, _ = made(name, options, False)
    with pytest.raises(InvalidInput, match=r"built for .* 20 positions, not 40"):
        through(mechanism, q, k, v, None)


def test_longformer_without_global_tokens_has_no_streams_in_a_layer():
    """A regression: projections that were always computed prevented the use of FlexAttention."""
    mixer, seen = MultiHead(HEADS * WIDTH, build("longformer", heads=HEADS, head_dim=WIDTH, window=3)), []
    mixer.mechanism.other_way = lambda mechanism, q, k, v, extras: seen.append(dict(extras.streams))
    mixer(torch.randn(2, 9, HEADS * WIDTH))
    assert seen == [{}]


def test_masks_are_cached_by_length_and_recomputed_for_other_weights(monkeypatch):
    made = []
    make = flex._mask
    monkeypatch.setattr(flex, "_mask", lambda *given: made.append(given) or make(*given))
    mechanism = build("bigbird", heads=HEADS, head_dim=WIDTH, block=2, random=1).double()
    q, k, v = torch.randn(3, 2, HEADS, 24, WIDTH, dtype=torch.float64)
    one = through(mechanism, q, k, v, None)
    assert torch.equal(through(mechanism, q, k, v, None), one) and len(made) == 1
    keep = torch.ones(2, 24, dtype=torch.bool)
    assert torch.equal(through(mechanism, q, k, v, keep), one) and len(made) == 2  # padding is of one batch
    mechanism.load_state_dict({"seed": mechanism.seed + 1})
    assert not torch.equal(through(mechanism, q, k, v, None), one) and len(made) == 3
    through(mechanism, q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], None)
    assert len(made) == 4


def test_a_whole_model_can_be_switched_on_and_off(monkeypatch):
    torch.manual_seed(0)
    model = models.build(
        "decoder", vocabulary=11, layers=4, width=8, heads=2, attention=["window", "softmax", "sparse", "linear"]
    ).eval()
    ids = torch.randint(11, (2, 30))
    used = []

    def eager(mechanism, *given):
        used.append(mechanism.name)
        return flex.through(flex_attention, mechanism, *given)

    with torch.no_grad():
        expected = model(ids)
        assert flex.use(model) == ["window", "sparse"]
        assert torch.equal(model(ids), expected)  # on a CPU nothing changes
        monkeypatch.setattr(flex, "attend", eager)  # what `use` sets, as if this were CUDA
        flex.use(model)
        assert torch.allclose(model(ids), expected, atol=1e-5) and used == ["window", "sparse"]
    assert flex.use(model, False) == ["window", "sparse"]
    assert all(getattr(each, "other_way", None) is None for each in model.modules())
