"""Attention rollout and attention flow (Abnar & Zuidema 2020): how much of each input reaches a position."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.inspect.measures.findings import Finding, Grid, HeatMap, Line, LineChart
from longspan.inspect.measures.subject import Passages, Subject, captured_embeddings
from longspan.models.base import CausalModel, EncoderDecoder, TextStates
from longspan.tasks.metrics import spearman

FLOW_TOKENS = 50  # n² maximum flows in a graph of n·layers nodes: not for long texts
TINY = 1e-9


def with_residual(weights: Tensor, share: float = 0.5) -> Tensor:
    """The map of a layer with its skip connection: `share` of the identity, rows summing to 1 (section 3)."""
    rows = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
    return (1 - share) * rows + share * torch.eye(weights.shape[-1], dtype=weights.dtype)


def rollout(maps: Tensor, residual: float = 0.5) -> Tensor:
    """(layers, n, n) maps, bottom up, to (layers, n, n): row i of layer l is what state i holds of the inputs.

    The map of the first layer is the right-most factor.
    """
    result = [with_residual(maps[0], residual)]
    for layer in maps[1:]:
        result.append(with_residual(layer, residual) @ result[-1])
    return torch.stack(result)


def without(maps: Tensor, hidden: Tensor) -> Tensor:
    """The maps of the other tokens alone, with rows that sum to 1 again."""
    kept = maps[..., ~hidden, :][..., ~hidden]
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-30)


def flow(maps: Tensor, targets: Sequence[int] | None = None, residual: float = 0.5) -> Tensor:
    """The maximum flow from each target at the top to each input, (targets, n), not normalised.

    Each layer is an edge from position i to j of capacity as in rollout; the flow of each pair is on its own.
    """
    layers, n = len(maps), maps.shape[-1]
    targets = range(n) if targets is None else targets
    if n > FLOW_TOKENS and len(targets) * n > FLOW_TOKENS**2:
        raise InvalidInput(
            f"flow of {len(targets)} targets over {n} tokens: at most {FLOW_TOKENS} tokens, or give targets"
        )
    capacities = [with_residual(layer.double(), residual).tolist() for layer in maps]
    flows = []
    for target in targets:
        flows.append([_max_flow(capacities, layers, n, target, source) for source in range(n)])
    return torch.tensor(flows, dtype=torch.float64)


def _max_flow(capacities: list[list[list[float]]], layers: int, n: int, top: int, bottom: int) -> float:
    """Dinic's algorithm on the layered graph; node (l, i) is l·n + i, the top is layer `layers`."""
    heads: list[list[int]] = [[] for _ in range((layers + 1) * n)]
    ends: list[int] = []
    room: list[float] = []
    for layer, rows in enumerate(capacities):
        for i in range(n) if layer + 1 < layers else (top,):
            for j in range(n) if layer else (bottom,):
                if rows[i][j] > TINY:
                    a, b = (layer + 1) * n + i, layer * n + j
                    heads[a].append(len(ends))
                    heads[b].append(len(ends) + 1)
                    ends += [b, a]
                    room += [rows[i][j], 0.0]
    source, sink, total = layers * n + top, bottom, 0.0
    while True:
        level = {source: 0}
        queue = deque([source])
        while queue and sink not in level:
            node = queue.popleft()
            for edge in heads[node]:
                if room[edge] > TINY and ends[edge] not in level:
                    level[ends[edge]] = level[node] + 1
                    queue.append(ends[edge])
        if sink not in level:
            return total
        total += _blocking(heads, ends, room, level, source, sink)


def _blocking(
    heads: list[list[int]], ends: list[int], room: list[float], level: dict[int, int], source: int, sink: int
) -> float:
    """Fills shortest paths until none is left, and returns what flowed."""
    next_edge = dict.fromkeys(level, 0)
    total, path, node = 0.0, list[int](), source
    while True:
        if node == sink:
            pushed = min(room[used] for used in path)
            total += pushed
            for used in path:
                room[used] -= pushed
                room[used ^ 1] += pushed
            full = next(index for index, used in enumerate(path) if room[used] <= TINY)
            node, path = ends[path[full] ^ 1], path[:full]
            continue
        edge = _open_edge(heads[node], ends, room, level, next_edge, node)
        if edge is not None:
            path.append(edge)
            node = ends[edge]
        elif path:
            node = ends[path.pop() ^ 1]
            next_edge[node] += 1
        else:
            return total


def _open_edge(
    edges: list[int], ends: list[int], room: list[float], level: dict[int, int], next_edge: dict[int, int], node: int
) -> int | None:
    """The next edge of a node that leads one level down and is not full."""
    while next_edge[node] < len(edges):
        edge = edges[next_edge[node]]
        if room[edge] > TINY and level.get(ends[edge]) == level[node] + 1:
            return edge
        next_edge[node] += 1
    return None


def uniform_maps(layers: int, n: int, causal: bool) -> Tensor:
    """Maps of heads that read everything they may equally."""
    one = torch.ones(n, n).tril() if causal else torch.ones(n, n)
    return (one / one.sum(-1, keepdim=True)).expand(layers, n, n)


def measure_rollout(subject: Subject) -> Finding:
    """Rollout of a passage, with and without special tokens; for one token, flow, gradient and blanking beside it."""
    group = subject.groups[0]
    passage = subject.passages.row(0)
    maps = subject.maps(passage)[group.name].mean(1)
    n, ids = maps.shape[-1], passage.ids[0]
    special = subject.special(ids)
    rolled = rollout(maps)[-1]
    uniform = rollout(uniform_maps(len(maps), n, group.causal))[-1]
    hidden = torch.zeros(n, dtype=torch.bool)
    for mask in special.values():
        hidden |= mask.cpu()
    received = rolled.mean(0)
    figures: list[Any] = [
        LineChart(
            f"{group.name}: mean contribution of each position to all others, after the last layer",
            "position",
            "contribution",
            [
                Line("rollout", list(enumerate(received.tolist()))),
                Line("uniform maps", list(enumerate(uniform.mean(0).tolist())), control=True),
            ],
            log_up=True,
        )
    ]
    values: dict[str, Any] = {
        "group": group.name,
        "tokens": n,
        "row_sum_error": float((rolled.sum(-1) - 1).abs().max()),
        "diagonal": float(rolled.diagonal().mean()),
        "uniform_diagonal": float(uniform.diagonal().mean()),
        "received": received.tolist(),
        "uniform_received": uniform.mean(0).tolist(),
        "special": {name: float(rolled[:, mask.cpu()].sum(-1).mean()) for name, mask in special.items()},
        "first": float(received[0]),
        "uniform_first": float(uniform[:, 0].mean()),
    }
    if bool(hidden.any()) and int(hidden.sum()) < n:
        clean = rollout(without(maps, hidden))[-1]
        places = (~hidden).nonzero()[:, 0].tolist()
        values["special_removed"] = {"diagonal": float(clean.diagonal().mean()), "received": clean.mean(0).tolist()}
        figures[0] = LineChart(
            figures[0].title,
            "position",
            "contribution",
            [*figures[0].lines, Line("special tokens removed", list(zip(places, clean.mean(0).tolist())))],
            log_up=True,
        )
    figures += _one_token(subject, values)
    first = values["first"]
    return Finding(
        "rollout",
        "Rollout and flow",
        f"Rollout credits position 0 with {first:.0%} of what reaches the average token, where uniform maps would give "
        f"{values['uniform_first']:.0%}; a token keeps {values['diagonal']:.1%} of itself.",
        "Uniform maps of the same form"
        + (" (causal ones favour early tokens by themselves)" if group.causal else "")
        + ", and the same with special tokens removed and rows scaled to sum to 1 (marked). For one token, rankings by "
        "attention stand beside the gradient and the effect of blanking each input.",
        figures,
        values,
    )


def _one_token(subject: Subject, values: dict[str, Any]) -> list[Any]:
    """For one token of a short text: raw attention, rollout and flow against gradient and blanking."""
    group, model = subject.groups[0], subject.model
    if isinstance(model, EncoderDecoder) or not isinstance(model, TextStates):
        values["one_token"] = {"skipped": "gradient and blanking of one token are for encoders and decoders alone"}
        return []
    short = subject.passages.row(0).first(FLOW_TOKENS - 18)
    maps = subject.maps(short)[group.name].mean(1)
    n = maps.shape[-1]
    target = n - 1 if isinstance(model, CausalModel) else 0
    scores = {
        "attention, last layer": maps[-1][target],
        "attention, mean of layers": maps.mean(0)[target],
        "rollout": rollout(maps)[-1][target],
        "flow": flow(maps, [target])[0].float(),
        "gradient": input_gradient(subject, short, target),
        "blanking": blanking(subject, short, target),
    }
    names = list(scores)
    table = [[spearman(scores[a].tolist(), scores[b].tolist()) for b in names] for a in names]
    values["one_token"] = {
        "target": target,
        "tokens": subject.tokens(short.ids[0]),
        "scores": {name: score.tolist() for name, score in scores.items()},
        "rank_correlation": {a: dict(zip(names, row)) for a, row in zip(names, table)},
    }
    shares = [(score / score.sum().clamp_min(1e-30)).tolist() for score in scores.values()]
    tokens = [f"{index} {token}" for index, token in enumerate(subject.tokens(short.ids[0]))]
    return [
        HeatMap(
            f"What token {target} holds of each input, by six accounts (each row sums to 1)",
            names,
            tokens,
            shares,
            across="input token",
            up="account",
        ),
        Grid("Rank correlation of the accounts", ("", *names), [[a, *row] for a, row in zip(names, table)]),
    ]


def input_gradient(subject: Subject, passage: Passages, target: int) -> Tensor:
    """The norm of the gradient of the target's last state, along a fixed random direction, at each input."""
    model = subject.model
    assert isinstance(model, TextStates)
    with torch.enable_grad(), captured_embeddings(model) as taken:
        states = model.text_states(passage.ids)
        generator = torch.Generator().manual_seed(subject.seed)
        direction = torch.randn(states.shape[-1], generator=generator).to(states)
        (states[0, target] @ direction).backward()
    gradient = taken[0].grad
    assert gradient is not None
    model.zero_grad(set_to_none=True)
    norms: Tensor = gradient[0].norm(dim=-1).float().cpu()
    return norms


@torch.no_grad()
def blanking(subject: Subject, passage: Passages, target: int) -> Tensor:
    """How far the target's last state moves when the embedding of each input in turn is the mean of all."""
    model, n = subject.model, passage.length
    assert isinstance(model, TextStates)

    def blank(x: Tensor) -> Tensor:
        x = x.clone()
        places = torch.arange(n, device=x.device)
        x[places, places] = x[0].mean(0)
        return x

    whole = model.text_states(passage.ids)[0, target]
    with captured_embeddings(model, blank):
        changed = model.text_states(passage.ids.expand(n, -1))[:, target]
    moved: Tensor = (changed - whole).norm(dim=-1).float().cpu()
    return moved


__all__ = ["flow", "measure_rollout", "rollout", "uniform_maps", "with_residual", "without"]
