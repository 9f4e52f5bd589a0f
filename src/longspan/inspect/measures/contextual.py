"""Do a model's vectors tell the senses of a word apart? The "bank" probe, by layer, with its controls."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from longspan.errors import Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.embed import read_layers
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.inspect.measures.findings import Finding, Grid, HeatMap, Line, LineChart, Scatter
from longspan.inspect.measures.senses import Occurrence, SenseSet
from longspan.models.base import CausalModel, Model, TextStates
from longspan.models.word_base import WordStates
from longspan.nn.embedding import TokenEmbedding

NEAR = 5  # neighbours that are listed
STATIC = "token row alone"


@dataclass(frozen=True)
class Separation:
    """How well vectors of one word separate its senses."""

    within: float  # mean cosine of two occurrences of one sense
    between: float  # and of two senses
    nearest: float  # share of occurrences whose nearest other one has the same sense
    silhouette: float

    @property
    def gap(self) -> float:
        return self.within - self.between

    def plain(self) -> dict[str, float]:
        return {**vars(self), "gap": self.gap}


def separation(vectors: Tensor, senses: Sequence[str]) -> Separation:
    """Of vectors (occurrences, width). Equally near neighbours of both senses count by their share."""
    unit = normalize(vectors.double(), dim=-1)
    cosines = (unit @ unit.T).clamp(-1, 1)
    names = list(dict.fromkeys(senses))
    kind = torch.tensor([names.index(sense) for sense in senses])
    same = kind[:, None] == kind[None, :]
    other = ~torch.eye(len(senses), dtype=torch.bool)
    hidden = cosines.masked_fill(~other, -torch.inf)
    nearest = (hidden >= hidden.amax(1, keepdim=True) - 1e-12) & other
    right = ((nearest & same).sum(1) / nearest.sum(1)).mean()
    distances = 1 - cosines
    scores = []
    for row in range(len(senses)):
        a = distances[row][same[row] & other[row]].mean()
        b = min(distances[row][kind == group].mean() for group in range(len(names)) if group != int(kind[row]))
        largest = max(float(a), float(b))
        scores.append(0.0 if largest < 1e-12 else float(b - a) / largest)
    return Separation(
        float(cosines[same & other].mean()), float(cosines[~same].mean()), float(right), sum(scores) / len(scores)
    )


@dataclass(frozen=True)
class Read:
    """The vectors of a word by layer, the static ones, and those of all tokens of the sentences."""

    layers: list[Tensor]  # (occurrences, width) each
    static: Tensor | None
    every: list[Tensor]  # (tokens of all sentences, width) each
    tokens: list[str]
    # Tokens whose mean is subtracted: not the first of a sentence, which may be a sink hundreds of times larger.
    counted: Tensor

    def centre(self, layer: int) -> Tensor:
        return self.every[layer][self.counted].mean(0)


@torch.no_grad()
def read_occurrences(pretrained: Pretrained, occurrences: Sequence[Occurrence], model: Model | None = None) -> Read:
    """The mean vector of each occurrence's pieces after every layer, layer 0 being the embeddings."""
    model = pretrained.model if model is None else model
    if not isinstance(model, (TextStates, WordStates)):
        raise Unsupported(
            f"vectors in context come from an encoder, a decoder, an encoder–decoder or ELMo; this is {model.name!r}"
        )
    layers: list[list[Tensor]] = []
    every: list[list[Tensor]] = []
    static: list[Tensor] = []
    tokens: list[str] = []
    counted: list[bool] = []
    table = None if isinstance(model, WordStates) else next(m for m in model.modules() if isinstance(m, TokenEmbedding))
    for each in occurrences:
        ids, places, names = _pieces(pretrained, each, words=isinstance(model, WordStates))
        batch = torch.tensor([ids], device=model.device)
        states, mask = read_layers(model, batch, torch.ones_like(batch, dtype=torch.bool), None)
        if not layers:
            layers, every = [[] for _ in states], [[] for _ in states]
        for index, state in enumerate(states):
            real = state[0][mask[0]].float().cpu()
            layers[index].append(real[places].mean(0))
            every[index].append(real)
        tokens += names
        counted += [place > 0 for place in range(len(names))]
        if table is not None:
            static.append(table.weight[batch[0, places]].float().mean(0).cpu())
    stacked = [torch.stack(layer) for layer in layers]
    alone = torch.stack(static) if static else stacked[0]
    return Read(stacked, alone, [torch.cat(layer) for layer in every], tokens, torch.tensor(counted))


def _pieces(pretrained: Pretrained, each: Occurrence, *, words: bool) -> tuple[list[int], list[int], list[str]]:
    """Token ids of a sentence, the positions of the word among its states, and the names of all positions."""
    if words:
        # A model of words reads what spaces separate: "bank." would be another word than "bank".
        spaced = re.sub(r"([^\w\s'])", r" \1 ", each.sentence)
        shift = re.sub(r"([^\w\s'])", r" \1 ", each.sentence[: each.start])
        names = spaced.split()
        return read_texts(pretrained, [spaced])[0].ids, [len(shift.split())], names
    encoded = read_texts(pretrained, [each.sentence])[0]
    spans = zip(encoded.offsets, encoded.added)
    places = [i for i, ((a, b), added) in enumerate(spans) if not added and a < each.stop and b > each.start]
    tokenizer = tokenizer_of(pretrained)
    return encoded.ids, places, [tokenizer.token(number) for number in encoded.ids]


def pca(vectors: Tensor) -> tuple[Tensor, float]:
    """The two main coordinates, and the share of the variance that they explain."""
    centred = (vectors - vectors.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    total = float(s.square().sum())
    share = float(s[:2].square().sum()) / total if total > 1e-30 else 0.0
    return u[:, :2] * s[:2], share


def measure_senses(pretrained: Pretrained, found: SenseSet, untrained: Model | None = None) -> Finding:
    """The separation of a word's senses by layer, and the controls."""
    senses = [each.sense for each in found.occurrences]
    read = read_occurrences(pretrained, found.occurrences)
    plain = [separation(layer, senses) for layer in read.layers]
    centred = [separation(vectors - read.centre(layer), senses) for layer, vectors in enumerate(read.layers)]
    assert read.static is not None
    static = separation(read.static, senses)
    random = None
    if untrained is not None:
        fresh = read_occurrences(pretrained, found.occurrences, untrained)
        random = [separation(layer, senses) for layer in fresh.layers]
    best = max(range(len(plain)), key=lambda layer: plain[layer].gap)
    groups = "topics" if found.one_sense else "senses"
    values: dict[str, Any] = {
        "word": found.word,
        "senses": {sense: senses.count(sense) for sense in found.senses},
        "one_sense": found.one_sense,
        "layers": [each.plain() for each in plain],
        "mean_subtracted": [each.plain() for each in centred],
        "static": static.plain(),
        "random_weights": None if random is None else [each.plain() for each in random],
        "best_layer": best,
    }
    chance = _majority(senses)
    verdict = (
        f"the nearest other occurrence has the same {groups[:-1]} in {plain[best].nearest:.0%} of cases"
        f" (a guess: {chance:.0%})"
    )
    ways = " The model reads left to right: only what stands before the word can tell." * isinstance(
        pretrained.model, CausalModel
    )
    return Finding(
        found.word,
        f"“{found.word}”" + (" (control: one sense, two topics)" if found.one_sense else ""),
        f"The {groups} of {found.word!r} are furthest apart after layer {best}: cosines differ by "
        f"{plain[best].gap:.3f}, and {verdict}; the token's row alone is the same in every sentence.{ways}",
        f"The token's row alone (cosine {static.within:.3f}, gap {static.gap:.3f})"
        + ("" if random is None else f", random weights (gap at most {max(r.gap for r in random):.3f})")
        + ", and the mean vector of all tokens subtracted. Layer 0 has positions added, so it is not quite static.",
        _figures(found, read, plain, centred, random, static, best, values),
        values,
    )


def _majority(senses: Sequence[str]) -> float:
    """The chance that a random other occurrence has the same sense."""
    n = len(senses)
    return sum(senses.count(sense) - 1 for sense in senses) / (n * (n - 1))


def _figures(
    found: SenseSet,
    read: Read,
    plain: list[Separation],
    centred: list[Separation],
    random: list[Separation] | None,
    static: Separation,
    best: int,
    values: dict[str, Any],
) -> list[Any]:
    senses = [each.sense for each in found.occurrences]
    lines = [
        Line("gap", [(layer, each.gap) for layer, each in enumerate(plain)]),
        Line("gap, mean subtracted", [(layer, each.gap) for layer, each in enumerate(centred)]),
        Line(STATIC, [(0, static.gap), (len(plain) - 1, static.gap)], control=True),
    ]
    if random is not None:
        lines.append(Line("random weights", [(layer, each.gap) for layer, each in enumerate(random)], control=True))
    unit = normalize(read.layers[best].double(), dim=-1)
    names = [f"{sense} {index}" for index, sense in enumerate(senses)]
    points, share = pca(read.layers[best])
    values["pca"] = {"points": points.tolist(), "explained": share}
    values["similarity"] = (unit @ unit.T).tolist()
    rows: list[list[object]] = [
        [layer, a.within, a.between, a.gap, a.nearest, a.silhouette, b.gap, b.nearest]
        for layer, (a, b) in enumerate(zip(plain, centred))
    ]
    rows.insert(0, [STATIC, static.within, static.between, static.gap, static.nearest, static.silhouette, "", ""])
    head = ("layer", "within", "between", "gap", "1-NN", "silhouette", "gap, centred", "1-NN, centred")
    near = _neighbours(found, read, best)
    values["neighbours"] = near
    shown = [[sense, ", ".join(f"{word} {cosine:.2f}" for word, cosine in words)] for sense, words in near.items()]
    return [
        LineChart("Within minus between, by layer", "layer", "difference of cosines", lines),
        Grid("By layer (0: embeddings and positions)", head, rows),
        HeatMap(
            f"Cosine of the occurrences after layer {best}",
            names,
            names,
            (unit @ unit.T).tolist(),
            across="occurrence",
            up="occurrence",
        ),
        Scatter(
            f"“{found.word}” after layer {best}: two coordinates, {share:.0%} of variance",
            [(float(x), float(y)) for x, y in points],
            [f"{sense}: {each.sentence}" for sense, each in zip(senses, found.occurrences)],
            senses,
        ),
        Grid(
            f"Nearest tokens of other sentences to the mean of a sense, after layer {best}", ("sense", "tokens"), shown
        ),
    ]


def _neighbours(found: SenseSet, read: Read, layer: int) -> dict[str, list[tuple[str, float]]]:
    """The tokens nearest to the mean of each sense, other than the word itself."""
    centre = read.centre(layer)
    every = normalize(read.every[layer] - centre, dim=-1)
    near: dict[str, list[tuple[str, float]]] = {}
    for sense in found.senses:
        rows = [row for row, each in enumerate(found.occurrences) if each.sense == sense]
        mean = normalize((read.layers[layer][rows] - centre).mean(0), dim=-1)
        listed: dict[str, float] = {}
        for index in (every @ mean).argsort(descending=True).tolist():
            name = read.tokens[index].lstrip("Ġ▁ ").lower()
            if name and found.word.lower() not in name and name not in listed:
                listed[name] = float(every[index] @ mean)
            if len(listed) == NEAR:
                break
        near[sense] = list(listed.items())
    return near


__all__ = ["Read", "Separation", "measure_senses", "pca", "read_occurrences", "separation"]
