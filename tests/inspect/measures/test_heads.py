"""Head statistics, distances of heads, rollout and flow, on maps that are known by hand."""

import math

import pytest
import torch
from tests.inspect.measures.small import subject

from longspan.errors import InvalidInput
from longspan.inspect.measures.clusters import jensen_shannon, mds, measure_clusters, off_diagonal, smoothed
from longspan.inspect.measures.heads import head_statistics, measure_heads, uniform_entropy
from longspan.inspect.measures.rollout import flow, measure_rollout, rollout, uniform_maps, without
from longspan.tasks.metrics import pearson


def test_heads_that_are_known_by_hand():
    n = 8
    shift = torch.diag(torch.ones(n - 1), 1)
    maps = torch.stack([torch.eye(n), shift, shift.T, torch.full((n, n), 1 / n)])[None]
    found = head_statistics(maps, {"[SEP]": torch.arange(n) == 3})
    assert found["self"].tolist() == [[1, 0, 0, 1 / n]]
    assert found["next"].tolist() == [[0, (n - 1) / n, 0, (n - 1) / n**2]]
    assert found["previous"].tolist() == [[0, 0, (n - 1) / n, (n - 1) / n**2]]
    assert found["[SEP]"].tolist() == [[1 / n] * 4]
    assert found["entropy"][0].tolist() == pytest.approx([0, 0, 0, math.log(n)])
    assert uniform_entropy(n, n, causal=False) == math.log(n)
    causal = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    assert uniform_entropy(n, n, causal=True) == pytest.approx(float(head_statistics(causal[None, None])["entropy"]))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
def test_the_report_of_a_model(kind: str):
    asked = subject(kind)
    found = measure_heads(asked)
    names = ["encoder", "decoder", "cross"] if kind == "transformer" else [kind]
    assert list(found.values["groups"]) == names
    for name in names:
        group = found.values["groups"][name]
        assert set(group["text"]) == set(group["shuffled"]) == set(group["untrained"])
        assert ("previous" in group["text"]) == (name != "cross" or asked.passages.ids is asked.passages.targets)
        if name == "decoder":
            assert max(max(row) for row in group["text"]["next"]) == 0
    assert (asked.passages.ids.shape, asked.long.ids.shape) == ((4, 24), (1, 96))


def test_shuffling_keeps_the_tokens_and_what_is_around_them():
    asked = subject("encoder")
    mixed = asked.shuffled(asked.passages).ids
    assert torch.equal(mixed.sort(1).values, asked.passages.ids.sort(1).values)
    assert not torch.equal(mixed, asked.passages.ids)
    assert asked.before and torch.equal(mixed[:, 0], asked.passages.ids[:, 0])


def test_jensen_shannon():
    maps = torch.zeros(2, 1, 4, dtype=torch.float64)
    maps[0, 0, 0] = maps[1, 0, 3] = 1
    assert jensen_shannon(maps).tolist() == [[0, pytest.approx(0.693147, abs=1e-6)], [pytest.approx(math.log(2)), 0]]
    assert float(jensen_shannon(smoothed(maps))[0, 1]) == pytest.approx(0.690477, abs=1e-6)


def test_planted_clusters_are_seen_in_the_plane():
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(3, 1, 6, 12, generator=generator)
    maps = (centres + 0.5 * torch.randn(3, 5, 6, 12, generator=generator)).softmax(-1).flatten(0, 1)
    distances = jensen_shannon(smoothed(maps))
    points = mds(distances)
    assert pearson(off_diagonal(torch.cdist(points, points)), off_diagonal(distances)) > 0.9
    found = measure_clusters(subject("encoder"))
    assert len(found.values["points"]) == 4 and 0 < found.values["split_half"] <= 1


MAPS = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.5, 0.5]]], dtype=torch.float64)


def test_rollout_and_flow_of_two_layers():
    torch.testing.assert_close(rollout(MAPS)[-1], torch.tensor([[0.65, 0.35], [0.3875, 0.6125]]).double())
    torch.testing.assert_close(rollout(MAPS, 0.0)[-1], torch.tensor([[0.5, 0.5], [0.65, 0.35]]).double())
    assert flow(MAPS).flatten().tolist() == pytest.approx([0.8, 0.45, 0.45, 0.8])
    eye = torch.eye(5).expand(3, 5, 5)
    assert torch.equal(rollout(eye)[-1], torch.eye(5)) and torch.equal(flow(eye), torch.eye(5).double())
    assert float(without(MAPS, torch.tensor([True, False])).max()) == 1.0


def test_flow_equals_a_library():
    import networkx

    maps = torch.randn(3, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    graph = networkx.DiGraph()
    for layer, weights in enumerate(maps):
        capacity = 0.5 * weights + 0.5 * torch.eye(7)
        for i in range(7):
            for j in range(7):
                graph.add_edge((layer + 1, i), (layer, j), capacity=float(capacity[i, j]))
    wanted = [[networkx.maximum_flow_value(graph, (3, i), (0, j)) for j in range(7)] for i in (0, 6)]
    torch.testing.assert_close(flow(maps, [0, 6]), torch.tensor(wanted).double())


def test_long_flows_are_refused():
    with pytest.raises(InvalidInput, match="flow of 60 targets over 60 tokens: at most 50 tokens, or give targets"):
        flow(uniform_maps(2, 60, causal=False))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_rollout_of_a_model(kind: str):
    found = measure_rollout(subject(kind)).values
    assert found["row_sum_error"] < 1e-6
    one = found["one_token"]
    assert one["target"] == (0 if kind == "encoder" else len(one["tokens"]) - 1)
    assert all(row[name] == pytest.approx(1) for name, row in one["rank_correlation"].items())
    if kind == "decoder":
        assert found["uniform_first"] > 2 / found["tokens"]  # uniform causal maps favour the first token by themselves
