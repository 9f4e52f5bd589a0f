"""Size, time per token and loss of a model before and after, in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from longspan.adapt.quantize.convert import weight_bytes
from longspan.data import Tokenizer
from longspan.decode.scoring import score
from longspan.errors import InvalidInput
from longspan.measure.timing import compare
from longspan.models.base import CausalModel, Model

CONTEXT, STEPS, TURNS = 128, 4, 7  # tokens read before a timed step, steps per turn, turns
LOSS_TOKENS = 2048


@dataclass(frozen=True)
class Comparison:
    """What is measured of one model; None: not measured, as it is no language model or no text was given."""

    weight_bytes: int
    token_ms: float | None  # one decoding step after `CONTEXT` tokens, batch 1
    loss: float | None  # mean negative log-probability of a token of the text, in nats
    tokens: int  # number of tokens the loss was measured on


def read_tokens(path: Path, tokenizer: Tokenizer | None, most: int = LOSS_TOKENS) -> list[int]:
    """The first tokens of a text file, plain or .gz."""
    import gzip

    if tokenizer is None:
        raise InvalidInput("this model has no tokenizer, so its loss on a text cannot be measured; leave out the text")
    if not path.is_file():
        raise InvalidInput(f"there is no text file {path}")
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a UTF-8 text") from None
    ids = tokenizer.encode(text[: 16 * most]).ids[:most]
    if len(ids) < 2:
        raise InvalidInput(f"{path} has {len(ids)} tokens; the loss needs at least 2")
    return list(ids)


def compare_models(models: Sequence[Model], ids: Sequence[int] | None = None) -> list[Comparison]:
    """Measures all models in turns; `ids` is the text for the loss."""
    times: dict[int, float] = {}
    if all(isinstance(model, CausalModel) and not model.reads_source for model in models):
        steps = {index: _stepper(model) for index, model in enumerate(models) if isinstance(model, CausalModel)}
        times = {index: seconds / STEPS * 1000 for index, seconds in compare(steps, repeats=TURNS).items()}
    rows = []
    for index, model in enumerate(models):
        loss, count = None, 0
        if ids is not None and isinstance(model, CausalModel) and index in times:
            loss, count = _loss(model, ids)
        rows.append(Comparison(weight_bytes(model), times.get(index), loss, count))
    return rows


@torch.inference_mode()
def _stepper(model: CausalModel) -> Callable[[], object]:
    """A function that reads `STEPS` single tokens after the same context."""
    room = CONTEXT if model.max_length is None else min(CONTEXT, model.max_length - STEPS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.vocabulary, (1, max(room, 1)), generator=generator)
    _, state = model.extend(ids, model.start(1), last=True)
    return partial(_steps, model, ids[:, :1], state)


@torch.inference_mode()
def _steps(model: CausalModel, token: torch.Tensor, state: object) -> None:
    for _ in range(STEPS):
        _, state = model.extend(token, state, last=True)


def _loss(model: CausalModel, ids: Sequence[int]) -> tuple[float, int]:
    """The mean loss of all tokens but the first, in pieces of the model's length."""
    room = len(ids) if model.max_length is None else model.max_length
    total, count = 0.0, 0
    for start in range(0, len(ids), room):
        piece = list(ids[start : start + room])
        if len(piece) > 1:
            total -= float(score(model, [piece[:1]], [piece[1:]])[0].sum())
            count += len(piece) - 1
    return total / count, count


__all__ = ["Comparison", "compare_models", "read_tokens"]
