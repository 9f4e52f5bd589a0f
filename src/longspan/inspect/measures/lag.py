"""How much a prediction depends on tokens further back: gradient by lag, attention beside a recurrent network."""

from typing import Any

import torch
from torch import Tensor

from longspan.errors import Unsupported
from longspan.inspect.measures.findings import Finding, Grid, Line, LineChart
from longspan.inspect.measures.subject import Passages, Subject, captured_embeddings
from longspan.models.base import CausalModel, EncoderDecoder, Model
from longspan.models.registry import build

POSITIONS = 6  # from which lags are counted, in the second half of each passage
FLOOR = 1e-6  # of what is drawn
SHOWN = (1, 2, 4, 8, 16, 32, 64, 100)


def gradient_by_lag(subject: Subject, passages: Passages, model: Model | None = None) -> Tensor:
    """The mean norm of the gradient at each lag, (lags,), scaled so that lag 0 is 1.

    Of the log-probability of the next token; for an encoder, of the state along a random direction, with lags both
    ways. Lags end at half of the passage, so that every position counts for each of them.
    """
    model = subject.model if model is None else model
    length = passages.length
    half = length // 2
    places = torch.linspace(half, length - 2, POSITIONS).round().int().tolist()
    sums, counts = torch.zeros(half, dtype=torch.float64), torch.zeros(half, dtype=torch.float64)
    generator = torch.Generator().manual_seed(subject.seed)
    with torch.enable_grad(), captured_embeddings(model) as taken:
        out = subject.run(passages, model)
        causal = isinstance(model, CausalModel)
        direction = torch.randn(out.shape[-1], generator=generator).to(out)
        for place in places:
            if causal:
                chosen = out[:, place].float().log_softmax(-1).gather(1, passages.ids[:, place + 1, None]).sum()
            else:
                chosen = (out[:, place] @ direction).sum()
            (gradient,) = torch.autograd.grad(chosen, taken[0], retain_graph=True)
            norms = gradient.norm(dim=-1).mean(0).double().cpu()
            back = norms[: place + 1].flip(0)[:half]
            sums[: len(back)] += back
            counts[: len(back)] += 1
            if not causal:
                ahead = norms[place:][:half]
                sums[: len(ahead)] += ahead
                counts[: len(ahead)] += 1
    means = sums / counts
    return means / means[0]


def random_lstm(subject: Subject) -> Model:
    """An untrained LSTM language model of the same vocabulary."""
    width = min(256, int(getattr(subject.model.options, "width", 256)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed)
        rows = subject.model.token_rows or subject.tokenizer.size
        model = build("recurrent", vocabulary=rows, width=width, layers=2, dropout=0.0, init_bound=width**-0.5)
    return model.to(subject.model.device).eval()


def measure_lag(subject: Subject, beside: Subject | None = None) -> Finding:
    """Gradient by lag of the model, an untrained one, an untrained LSTM, and of the model `beside` it."""
    if isinstance(subject.model, EncoderDecoder):
        raise Unsupported("lags are counted in one text, and an encoder–decoder reads two")
    curves = {"this model": gradient_by_lag(subject, subject.passages)}
    if beside is not None:
        if not isinstance(beside.model, CausalModel) or isinstance(beside.model, EncoderDecoder):
            raise Unsupported(f"the model beside must predict next tokens, and {beside.model.name!r} does not")
        curves[f"beside ({beside.model.name})"] = gradient_by_lag(beside, beside.passages)
    curves["untrained, same shape"] = gradient_by_lag(subject, subject.passages, subject.untrained)
    curves["untrained LSTM"] = gradient_by_lag(subject, subject.passages, random_lstm(subject))
    lines = [
        Line(name, [(lag, max(float(curve[lag]), FLOOR)) for lag in range(1, len(curve))], name.startswith("untrained"))
        for name, curve in curves.items()
    ]
    lags = [lag for lag in SHOWN if all(lag < len(curve) for curve in curves.values())]
    rows: list[Any] = [[name, *(float(curve[lag]) for lag in lags)] for name, curve in curves.items()]
    last = lags[-1]
    here, lstm = float(curves["this model"][last]), float(curves["untrained LSTM"][last])
    ways = "" if isinstance(subject.model, CausalModel) else " (both ways, of the state: it predicts no next token)"
    return Finding(
        "lag",
        "Gradient by lag",
        f"A token {last} back still has {here:.2g} of the current token's influence{ways}; in an untrained LSTM it has "
        f"{lstm:.1g}.",
        "An untrained model of the same shape, and an untrained LSTM of two layers; give a trained recurrent model by "
        "--beside.",
        [
            LineChart(
                "Influence of the token at each lag, lag 0 = 1", "tokens back", "gradient norm", lines, True, True
            ),
            Grid("At some lags", ("model", *map(str, lags)), rows),
        ],
        {name.replace(" ", "_").replace(",", ""): curve.tolist() for name, curve in curves.items()},
    )


__all__ = ["gradient_by_lag", "measure_lag"]
