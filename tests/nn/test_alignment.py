"""The six alignment scores, global and in Luong's windows."""

import pytest
import torch
from torch import Tensor

from longspan.attention import build
from longspan.attention.mechanisms.softmax import SCORES
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.alignment import Alignment


def random_alignment(query_width: int = 6, key_width: int = 6, **options) -> Alignment:
    made = Alignment(query_width, key_width, max_length=12, **options).double()
    for parameter in made.parameters():
        if parameter.dim():
            torch.nn.init.normal_(parameter)
    return made


def inputs(queries: int = 4, keys: int = 9, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    real = torch.ones(2, keys, dtype=torch.bool)
    real[1, keys - 3 :] = False
    return torch.randn(2, queries, 6).double(), torch.randn(2, keys, width).double(), real


@pytest.mark.parametrize("score", SCORES)
def test_the_scores_are_those_of_softmax_attention(score: str):
    own = random_alignment(score=score)
    other = build("softmax", heads=1, head_dim=6, max_length=12, score=score).double()
    state = own.state_dict()
    names = {"change": "change.weight", "change_query": "change_query.weight", "change_key": "change_key.weight"}
    other.load_state_dict(
        {name: state[names.get(name, name)].reshape(t.shape) for name, t in other.state_dict().items()}
    )
    query, values, real = inputs()
    context, weights = own(query, own.prepare(values, real))
    q, k = query[:, None], values[:, None]
    torch.testing.assert_close(weights, other.oracle(q, k, key_mask=real)[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(context, other(q, k, k, key_mask=real)[:, 0], rtol=0, atol=1e-12)


def test_additive_is_the_concatenated_form():
    own = random_alignment(6, 8, score="additive", width=5)
    query, values, _ = inputs(width=8)
    joined = torch.cat([own.change_query.weight, own.change_key.weight], 1)  # W_a on [s; h]
    pairs = torch.cat([query[:, :, None].expand(-1, -1, 9, -1), values[:, None].expand(-1, 4, -1, -1)], -1)
    expected = torch.tanh(pairs @ joined.T) @ own.direction
    torch.testing.assert_close(own.scores(query, own.prepare(values)), expected, rtol=0, atol=1e-12)


def test_many_queries_equal_single_queries(agree):
    own = random_alignment(score="additive")
    query, values, real = inputs(queries=37)

    def together(q: Tensor, v: Tensor) -> Tensor:
        return own(q, own.prepare(v, real))[0]

    def apart(q: Tensor, v: Tensor) -> Tensor:
        memory = own.prepare(v, real)
        return torch.cat([own(one, memory)[0] for one in q.split(1, 1)], 1)

    agree(together, apart, query, values)


def test_dot_equals_general_with_the_identity_and_scaled_dot_times_its_scale():
    query, values, real = inputs()
    general = random_alignment(score="general")
    general.change.weight.data.copy_(torch.eye(6))
    dot, scaled = random_alignment(score="dot"), random_alignment(score="scaled_dot")
    expected = dot(query, dot.prepare(values, real))[1]
    torch.testing.assert_close(general(query, general.prepare(values, real))[1], expected, rtol=0, atol=1e-12)
    again = scaled(query * 6**0.5, scaled.prepare(values, real))[1]
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_only_location_does_not_read_the_keys(score: str):
    own = random_alignment(score=score)
    query, values, real = inputs()
    noise = torch.randn_like(values)
    same = torch.equal(*(own(query, own.prepare(keys, real))[1] for keys in (values, noise)))
    assert same == (score == "location")


@pytest.mark.parametrize("score", SCORES)
def test_padding_gets_nothing_and_rows_sum_to_one(score: str):
    own = random_alignment(score=score)
    query, values, real = inputs()
    _, weights = own(query, own.prepare(values, real))
    assert (weights[1, :, 6:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4).double())
    alone = own(query[1:], own.prepare(values[1:, :6]))[0]
    torch.testing.assert_close(own(query, own.prepare(values, real))[0][1:], alone, rtol=0, atol=1e-12)
    shifted = torch.cat([values[1:, 6:], values[1:, :6]], 1)  # the padding on the left
    left = own.prepare(shifted, torch.arange(9)[None] >= 3)
    torch.testing.assert_close(own(query[1:], left)[0], alone, rtol=0, atol=1e-12)


def test_a_row_without_a_token_reads_nothing():
    own = random_alignment(score="general")
    query, values, _ = inputs()
    query.requires_grad_()
    context, weights = own(query, own.prepare(values, torch.tensor([[True] * 9, [False] * 9])))
    assert (context[1] == 0).all() and (weights[1] == 0).all()
    context.sum().backward()
    assert query.grad.isfinite().all() and (query.grad[1] == 0).all()


@torch.no_grad()
def test_a_bare_cosine_is_almost_flat_and_zero_is_no_error():
    own = Alignment(6, 6, score="cosine").double()
    values = torch.stack([torch.ones(6), -torch.ones(6), torch.zeros(6)])[None].double()
    _, weights = own(torch.ones(1, 1, 6).double(), own.prepare(values))
    assert weights[0, 0, 0] / weights[0, 0, 1] == pytest.approx(torch.e**2, rel=1e-6)
    assert weights[0, 0, 0] / weights[0, 0, 2] == pytest.approx(torch.e, rel=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_a_window_as_wide_as_the_source_is_global(score: str):
    near, wide = random_alignment(score=score, reach="local_m", radius=9), random_alignment(score=score)
    wide.load_state_dict(near.state_dict())
    query, values, real = inputs()
    time = torch.arange(4).expand(2, 4)
    assert torch.equal(near(query, near.prepare(values, real), time)[1], wide(query, wide.prepare(values, real))[1])


def test_local_m_reads_around_its_own_position():
    own = random_alignment(score="general", reach="local_m", radius=2)
    query, values, real = inputs()
    time = torch.tensor([[0, 4, 8, 11], [0, 4, 8, 11]])
    _, weights = own(query, own.prepare(values, real), time)
    read = [row.nonzero().flatten().tolist() for row in weights.flatten(0, 1)]
    assert read == [[0, 1, 2], [2, 3, 4, 5, 6], [6, 7, 8], [], [0, 1, 2], [2, 3, 4, 5], [], []]
    torch.testing.assert_close(weights.sum(-1), torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0]]).double())
    inside = own.scores(query, own.prepare(values))[0, 1, 2:7].softmax(-1)  # the softmax is taken inside the window
    torch.testing.assert_close(weights[0, 1, 2:7], inside)
    with pytest.raises(InvalidInput, match="needs the position of each query: give time"):
        own(query, own.prepare(values, real))


@torch.no_grad()
def test_local_p_by_the_papers_formula():
    own = random_alignment(score="general", reach="local_p", radius=2)
    query, values, real = inputs()
    memory = own.prepare(values, real)
    _, weights = own(query, memory)
    lengths, scores = [9, 6], own.scores(query, memory)
    for row in range(2):
        for t in range(4):
            p = lengths[row] * torch.sigmoid(own.place.weight[0] @ torch.tanh(own.place_hidden.weight @ query[row, t]))
            window = [i for i in range(1, lengths[row] + 1) if abs(i - int(p)) <= 2]
            expected = torch.zeros(9).double()
            part = torch.tensor([scores[row, t, i - 1] for i in window]).softmax(0)
            for share, i in zip(part, window):
                expected[i - 1] = share * torch.exp(-((i - p) ** 2) / (2 * 1.0**2))
            torch.testing.assert_close(weights[row, t], expected, rtol=0, atol=1e-12)
    assert (weights.sum(-1) < 1).all()
    # S is the row's own length and not the padded one.
    alone = own(query[1:], own.prepare(values[1:, :6]))[1]
    torch.testing.assert_close(weights[1:, :, :6], alone, rtol=0, atol=1e-12)


def test_local_p_renormalised():
    own = random_alignment(score="general", reach="local_p", radius=4)
    query, values, real = inputs()
    plain = own(query, own.prepare(values, real))[1]
    own.renormalise = True
    weights = own(query, own.prepare(values, real))[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4).double())
    torch.testing.assert_close(weights, plain / plain.sum(-1, keepdim=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gaussian", [True, False])
def test_the_predicted_position_learns_through_the_gaussian_alone(gaussian: bool):
    own = random_alignment(score="general", reach="local_p", radius=4, gaussian=gaussian)
    query, values, real = inputs()
    own(query, own.prepare(values, real))[0].square().sum().backward()
    moved = own.place_hidden.weight.grad is not None and (own.place_hidden.weight.grad != 0).any()
    assert bool(moved) == gaussian
    assert (own.change.weight.grad != 0).any()


@pytest.mark.parametrize("reach", ["local_m", "local_p"])
def test_a_source_shorter_than_the_window(reach: str):
    own = random_alignment(score="general", reach=reach, radius=10)
    _, weights = own(
        torch.randn(2, 2, 6).double(), own.prepare(torch.randn(2, 3, 6).double()), torch.zeros(2, 2).long()
    )
    assert weights.shape == (2, 2, 3) and (weights > 0).all()


@torch.no_grad()
def test_the_released_centre_stays_inside_the_sentence():
    query, values, real = inputs()
    for centre, low, high in (("paper", 0.0, 9.0), ("released", 1.0, 9.0)):
        own = random_alignment(score="general", reach="local_p", centre=centre)
        own.place.weight.data.mul_(1e6)  # the sigmoid at its ends
        place = own.predict(query, own.prepare(values, real))[0]
        assert {float(p) for p in place.round(decimals=3)} <= {low, high}


def test_invalid_input_is_refused():
    with pytest.raises(
        InvalidOption,
        match=r"not 6 \(decoder\) and 8 \(encoder\); use general",
    ):
        Alignment(6, 8, score="dot")
    with pytest.raises(InvalidOption, match="score must be one of"):
        Alignment(6, 6, score="cos")
    with pytest.raises(InvalidOption, match="give max_length, the longest source"):
        Alignment(6, 6, score="location")
    own = Alignment(6, 6, score="location", max_length=8)
    with pytest.raises(InvalidInput, match="built for sources of at most 8 tokens, one has 9"):
        own.prepare(torch.zeros(2, 9, 6))
    own.prepare(torch.zeros(2, 9, 6), torch.arange(9).expand(2, 9) < 8)  # padding takes no place
