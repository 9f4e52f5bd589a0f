"""Transformer-XL: segments, memory, and decoding by the same rule."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build, load
from longspan.models.transformer_xl import TransformerXL
from longspan.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax

TINY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "init_std": 0.3}
ADAPTIVE = {"cutoffs": (4, 8), "divisor": 2}


def model(**options: Any) -> TransformerXL:
    return TransformerXL.build(**{**TINY, **options}).double().eval()


def ids(batch: int = 2, length: int = 23, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def streamed(own: TransformerXL, text: Tensor, pieces: list[int]) -> Tensor:
    state, seen = own.start(len(text)), []
    for piece in text.split(pieces, dim=1):
        logits, state = own.extend(piece, state)
        seen.append(logits)
    return torch.cat(seen, 1)


def segmented(own: TransformerXL, text: Tensor, size: int) -> Tensor:
    memory, seen = None, []
    for piece in text.split(size, dim=1):
        logits, memory = own(piece, memory)
        seen.append(logits)
    return torch.cat(seen, 1)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


# What is read


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("untie", [False, True])
def test_enough_memory_makes_one_causal_pass(norm_position: str, untie: bool):
    own = model(norm_position=norm_position, untie=untie, segment=4, memory=23)
    whole = model(norm_position=norm_position, untie=untie, segment=23, memory=0)
    whole.load_state_dict(own.state_dict())
    close(segmented(own, ids(), 4), whole(ids())[0])
    close(own(ids())[0], whole(ids())[0])


RULES = [
    {"segment": 4, "memory": 6},
    {"segment": 6, "memory": 4, "clamp": 3},
    {"segment": 5, "memory": 0},
    {"segment": 3, "memory": 100},
    {"segment": 4, "memory": 6, "same_length": True},
    {"segment": 7, "memory": 1, "same_length": True},
]


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_decoding_follows_the_rule_of_the_segments(rule: dict[str, Any], norm_position: str):
    own = model(norm_position=norm_position, **rule)
    whole = segmented(own, ids(), rule["segment"])
    close(own(ids())[0], whole)
    for pieces in ([23], [1] * 23, [3, 1, 9, 10]):
        close(streamed(own, ids(), pieces), whole)


def test_same_length_does_not_know_segments():
    """Segments of one token are decoding step by step, and every other cut gives the same result."""
    own = model(segment=1, memory=5, same_length=True)
    steps = streamed(own, ids(), [1] * 23)
    close(segmented(own, ids(), 1), steps)
    own.set_reach(segment=9)
    close(segmented(own, ids(), 9), steps)


def reads(own: TransformerXL, text: Tensor, at: int) -> list[int]:
    """Which tokens of a text change the logits at one position."""
    base, found = own(text)[0][0, at], []
    for j in range(text.shape[1]):
        other = text.clone()
        other[0, j] = (other[0, j] + 1) % 11
        if not torch.equal(own(other)[0][0, at], base):
            found.append(j)
    return found


def test_exactly_memory_keys_are_read_with_same_length():
    own = model(layers=1, segment=4, memory=6, same_length=True)
    assert reads(own, ids(batch=1), 15) == list(range(10, 16))
    assert reads(own, ids(batch=1), 2) == [0, 1, 2]


def test_a_segment_reads_memory_and_itself():
    own = model(layers=1, segment=4, memory=6)
    assert reads(own, ids(batch=1), 12) == list(range(6, 13))
    assert reads(own, ids(batch=1), 15) == list(range(6, 16))


def test_each_layer_reaches_one_segment_further():
    """With m = s, segment τ depends on the first token of segment τ - L, and on none before it."""
    own = model(layers=2, segment=3, memory=3)
    assert reads(own, ids(batch=1, length=15), 14) == list(range(6, 15))


def test_clamped_distances_share_one_code():
    """A text without distances above the clamp gives the same result."""
    own = model(segment=4, memory=4)
    before = own(ids(length=5))[0]
    own.set_reach(clamp=4)
    assert torch.equal(own(ids(length=5))[0], before)
    rows = own.layers[0].attention.distances(9, 4)
    assert torch.equal(rows[:, 4:], rows[:, 4:5].expand(-1, 5, -1))
    assert torch.equal(rows[:, :5], own.layers[0].attention.distances(5))


def test_distance_codes_are_sines_then_cosines():
    attention = model().layers[0].attention
    with torch.no_grad():
        attention.r.weight.copy_(torch.eye(16))
    rows = attention.distances(4).transpose(0, 1).flatten(1)
    frequency = 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    angles = torch.arange(4).double()[:, None] * frequency
    close(rows, torch.cat([angles.sin(), angles.cos()], 1))


# What is remembered, and what learns


def test_memory_starts_empty_and_holds_the_inputs_of_each_layer():
    own = model(segment=4, memory=6)
    assert own.begin(2).layers[0].memory.shape == (2, 0, 16)
    _, memory = own(ids(length=4))
    close(memory.layers[0].memory, own.embedding(ids(length=4)))
    _, memory = own(ids(length=23))
    assert [held.memory.shape for held in memory.layers] == [(2, 6, 16)] * 2
    close(memory.layers[0].memory, own.embedding(ids())[:, -6:])


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_no_gradient_goes_back_through_memory(norm_position: str):
    """For segments read one by one, and in one call."""
    own = model(norm_position=norm_position, segment=3, memory=6, tied=False)
    text = torch.tensor([[0, 1, 2, 3, 4, 5]])
    _, memory = own(text[:, :3])
    assert not any(held.memory.requires_grad for held in memory.layers)
    for logits in (own(text[:, 3:], memory)[0], own(text)[0][:, 3:]):
        own.zero_grad()
        logits.sum().backward()
        gradient = own.embedding.weight.grad
        assert (gradient[:3] == 0).all() and (gradient[3:6] != 0).any(1).all()


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("memory", [2, 6])
def test_one_call_learns_what_segments_learn(norm_position: str, memory: int):
    """Keys of memory train their projection (and the norm before it), whether projected once or twice."""
    own = model(norm_position=norm_position, segment=3, memory=memory)
    gradients = []
    for run in (lambda: own(ids(length=10))[0], lambda: segmented(own, ids(length=10), 3)):
        own.zero_grad()
        (run() * torch.linspace(-1, 1, 220).view(2, 10, 11)).sum().backward()
        gradients.append({name: weight.grad.clone() for name, weight in own.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=0, atol=1e-9, msg=name)


def test_a_row_forgets_at_the_border_of_documents():
    own = model(segment=4, memory=6)
    _, memory = own(ids(length=8))
    assert torch.equal(own.forget(memory, torch.tensor([False, False])).layers[0].memory, memory.layers[0].memory)
    after = own.forget(memory, torch.tensor([True, False]))
    text = ids(length=7, seed=1)
    logits = own(text, after)[0]
    close(logits[:1], own(text[:1])[0])
    close(logits[1:], own(text, memory)[0][1:])
    state, seen = own.start(2, memory=after), []
    for piece in text.split([2, 5], 1):
        new, state = own.extend(piece, state)
        seen.append(new)
    close(torch.cat(seen, 1), logits)


# Padding, states, sizes


@pytest.mark.parametrize("rule", [{"segment": 4, "memory": 5, "same_length": True}, {"segment": 4, "memory": 6}])
def test_left_padding_as_declared(rule: dict[str, Any]):
    """All rows have the same cuts, so left padding changes nothing only with same_length."""
    own = model(**rule)
    assert own.left_padding == rule.get("same_length", False)
    text = ids(batch=1, length=9)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), text], 1)
    mask = torch.arange(12)[None] >= 3
    out, _ = own.extend(padded, own.start(1), key_mask=mask)
    close(own(padded, key_mask=mask)[0][:, 3:], out[:, 3:])
    assert torch.allclose(out[:, 3:], own(text)[0], rtol=0, atol=1e-9) == own.left_padding


def test_right_padding_changes_nothing():
    own = model(segment=4, memory=6)
    text, mask = ids(), torch.ones(2, 23, dtype=torch.bool)
    mask[1, 9:] = False
    other = torch.where(mask, text, 5)
    close(own(other, key_mask=mask)[0][1, :9], own(text[1:, :9])[0][0])
    memory = own(other, key_mask=mask)[1]
    assert memory.layers[0].keep.tolist() == [[True] * 6, [False] * 6]


@pytest.mark.parametrize("rule", [{"segment": 4, "memory": 6}, {"segment": 4, "memory": 6, "same_length": True}])
def test_the_state_has_a_constant_size_and_is_immutable(rule: dict[str, Any]):
    own = model(**rule)
    _, state = own.extend(ids(length=40), own.start(2))
    rows = 5 if own.left_padding else 6
    assert state.length == 40 and state.bytes == 2 * 2 * 2 * rows * 16 * 8  # layers, k and v, batch, float64
    first, _ = own.extend(ids(length=3, seed=1), state)
    own.extend(ids(length=5, seed=2), state)
    assert torch.equal(own.extend(ids(length=3, seed=1), state)[0], first)
    swapped = state.select(torch.tensor([1, 0, 1]))
    close(own.extend(ids(length=3, seed=1)[[1, 0, 1]], swapped)[0], first[[1, 0, 1]])
    assert own.extend(ids(length=3), state, last=True)[0].shape == (2, 1, 11)


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ({"width": 512, "layers": 12, "heads": 8, "hidden": 2048}, 41_055_436),
        ({"width": 1024, "layers": 24, "heads": 8, "hidden": 3072}, 277_231_820),
    ],
)
def test_parameter_counts_of_the_paper(sizes: dict[str, int], parameters: int):
    """41M and 277M: five d × d matrices in each layer and no bias in attention."""
    with torch.device("meta"):
        own = build("transformer_xl", vocabulary=204, **sizes)
    assert sum(weight.numel() for weight in own.parameters()) == parameters
    width, hidden = sizes["width"], sizes["hidden"]
    layer = 5 * width**2 + 2 * width * hidden + hidden + width + 4 * width
    assert parameters == sizes["layers"] * layer + 204 * (width + 1) + 2 * width


def test_u_and_w_are_one_pair_or_one_for_each_layer():
    shared, own = model(), model(untie=True)
    assert shared.layers[0].attention.u is shared.layers[1].attention.u
    assert own.layers[0].attention.u is not own.layers[1].attention.u
    assert sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in shared.parameters()) == 2 * 16
    assert all((layer.attention.u != 0).all() for layer in [*shared.layers, *own.layers])


# Adaptive softmax


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("divisor", [1, 2])
def test_adaptive_logits_are_log_probabilities(tied: bool, divisor: int):
    own = model(cutoffs=(4, 8), divisor=divisor, tied=tied, segment=4, memory=6)
    logits = own(ids())[0]
    close(logits.exp().sum(-1), torch.ones(2, 23).double())
    targets = ids(seed=1)
    targets[0, :5] = -100
    x, _ = own.hidden(ids())
    close(own.loss(x, targets), cross_entropy(logits.flatten(0, 1), targets.flatten()))
    close(streamed(own, ids(), [5, 18]), logits)


def test_the_adaptive_softmax_is_torchs():
    torch.manual_seed(2)
    ours = AdaptiveSoftmax(11, 16, (4, 8), 2).double()
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 11, [4, 8], div_value=2.0, head_bias=True).double()
    with torch.no_grad():
        # Theirs has no projection of the head, and no biases in the bands.
        theirs.head.weight.copy_(torch.cat([ours.tables[0], ours.choice.weight]) @ ours.projections[0].T)
        theirs.head.bias.copy_(torch.cat([ours.biases[0], ours.choice.bias]))
        for band in (1, 2):
            theirs.tail[band - 1][0].weight.copy_(ours.projections[band].T)
            theirs.tail[band - 1][1].weight.copy_(ours.tables[band])
    x = torch.randn(5, 16).double()
    close(ours.log_probabilities(x), theirs.log_prob(x))
    close(ours.loss(x[None], ids(1, 5)), theirs(x, ids(1, 5)[0]).loss)


def test_an_adaptive_embedding_is_its_tables():
    own = AdaptiveEmbedding(11, 16, (4, 8), 2).double()
    rows = torch.cat([table @ projection.T for table, projection in zip(own.tables, own.projections)])
    close(own(ids()), rows[ids()] * 4)
    with pytest.raises(InvalidOption, match="cutoffs must rise from 1 to below the vocabulary 11"):
        AdaptiveEmbedding(11, 16, (8, 4))
    with pytest.raises(InvalidInput, match="got 11 in sample 0 at position 1"):
        own(torch.tensor([[0, 11]]))


def test_the_plain_loss_is_the_cross_entropy():
    for tied in (False, True):
        own = model(tied=tied)
        x, _ = own.hidden(ids())
        close(own.loss(x, ids(seed=1)), cross_entropy(own.logits(x).flatten(0, 1), ids(seed=1).flatten()))


# Folders and bad input


@pytest.mark.parametrize("options", [{"segment": 4, "memory": 6}, ADAPTIVE, {"untie": True, "tied": False}], ids=str)
def test_a_folder_stores_the_whole_model(tmp_path: Path, options: dict[str, Any]):
    own = model(**options)
    own.set_reach(segment=5)
    own.save(tmp_path)
    again = load(tmp_path)
    assert again.options == own.options and again.options.segment == 5
    assert torch.equal(again(ids())[0], own(ids())[0])
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in own.parameters())


def test_invalid_input_is_refused():
    own = model(segment=4, memory=6)
    _, memory = own(ids())
    with pytest.raises(InvalidInput, match="the memory has 2 batch rows, and the ids 3"):
        own(ids(batch=3), memory)
    with pytest.raises(InvalidInput, match="2 layers of width 16, and the model has 3 of 16"):
        model(layers=3)(ids(), memory)
    with pytest.raises(InvalidInput, match="rows must be boolean, one for each of the 2"):
        own.forget(memory, torch.tensor([1, 0]))
    with pytest.raises(InvalidInput, match="got 11 in sample 0 at position 0"):
        own(torch.tensor([[11]]))
    with pytest.raises(InvalidInput, match="key_mask must be"):
        own(ids(), key_mask=torch.ones(2, 22, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="at least one token"):
        own(ids()[:, :0])
    with pytest.raises(InvalidInput, match="at least one token"):
        own.extend(ids()[:, :0], own.start(2))
    with pytest.raises(InvalidInput, match="the state has batch 2"):
        own.extend(ids(batch=3), own.start(2))
    with pytest.raises(InvalidInput, match="reads no source"):
        own.start(1, source=ids())
    with pytest.raises(InvalidOption, match="give memory at least 1"):
        model(memory=0, same_length=True)
    with pytest.raises(InvalidOption, match="3 heads do not divide the width 16"):
        model(heads=3)
    with pytest.raises(InvalidOption, match=r"the width must be even .*, not 15"):
        model(width=15, heads=3)
    with pytest.raises(InvalidOption, match="segment must be at least 1"):
        own.set_reach(segment=0)


def test_a_shorter_memory_takes_what_it_keeps_of_a_longer_one():
    own = model(segment=4, memory=8)
    _, memory = own(ids())
    own.set_reach(memory=3)
    _, own_memory = own(ids())
    assert torch.equal(own_memory.layers[0].memory, memory.layers[0].memory[:, -3:])
    assert own(ids(), memory)[0].shape == (2, 23, 11)
    assert own.start(2, memory=memory).layers[0].k.value.shape[2] == 3
