"""The bytes of the state and the time of one more token after 1k to 64k tokens: SmolLM2, whole and with a window.

Reading 64k tokens with the whole model takes hours on a core. So the model reads 1,024 real tokens, and the rows of the
state are then made up to the length with random numbers of the same mean and deviation, and its counters are set: a
step costs what it would cost, only its output means nothing.
"""

import time
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

import longspan
from benchmarks.swap_parts.losses import SMOLLM2, novel
from longspan.attention.state import Rows, State
from longspan.models.base import CausalModel

LENGTHS = (1024, 8192, 32768, 65536)
ATTENTIONS = ("softmax", "window:window=511,sinks=4", "window:window=255,sinks=4")
STEPS = 12  # timed tokens
READ = 1024


def lengthened(state: Any, length: int, room: int) -> Any:
    """The state after `length` tokens, with random rows for those that were not read."""
    if isinstance(state, Rows):
        return _more_rows(state, length, room)
    if isinstance(state, tuple):
        return tuple(lengthened(item, length, room) for item in state)
    if not isinstance(state, State):
        return state
    changed = {}
    for item in fields(state):
        value = getattr(state, item.name)
        is_count = item.name == "length" and isinstance(value, int)
        changed[item.name] = length if is_count else lengthened(value, length, room)
    return replace(state, **changed)


def _more_rows(rows: Rows, length: int, room: int) -> Rows:
    if rows.keep is not None:  # a window: as full as it gets
        return Rows.of(rows.value.clone(), rows.keep)
    value = rows.value
    buffer = torch.empty(*value.shape[:2], length + room, value.shape[3])
    buffer.normal_(float(value.mean()), float(value.std()))
    buffer[:, :, : value.shape[2]] = value
    return Rows(buffer, 0, length, None, [length])


def by_length() -> dict[str, Any]:
    """Bytes, exact, and CPU milliseconds of a token, the least of some; all lengths and models in turns."""
    original = longspan.load(SMOLLM2)
    tokens = novel(original, READ + STEPS + 2)
    models: dict[str, CausalModel] = {}
    for attention in ATTENTIONS:
        model = original.model if attention == "softmax" else longspan.swap(original, attention).model
        assert isinstance(model, CausalModel)
        models[attention] = model
    return measure(models, tokens)


@torch.inference_mode()
def measure(models: dict[str, CausalModel], tokens: Tensor) -> dict[str, Any]:
    """The same for any models, on tokens (1, READ + STEPS + 2)."""
    states: dict[tuple[str, int], Any] = {}
    for name, model in models.items():
        _, state = model.extend(tokens[:, :READ], model.start(1), last=True)
        for length in LENGTHS:
            states[name, length] = lengthened(state, length, STEPS + 2)
    sizes = {key: state.bytes for key, state in states.items()}
    spent: dict[tuple[str, int], float] = {}
    for step in range(STEPS + 2):
        for (name, length), state in states.items():
            seconds, states[name, length] = _step(models[name], tokens[:, READ + step : READ + step + 1], state)
            if step > 1:
                spent[name, length] = min(seconds, spent.get((name, length), seconds))
    for key in sizes:
        print(key, sizes[key], round(1e3 * spent[key], 2), flush=True)
    return {
        "lengths": list(LENGTHS),
        "models": {
            name: {
                "bytes": [sizes[name, length] for length in LENGTHS],
                "milliseconds": [round(1e3 * spent[name, length], 3) for length in LENGTHS],
            }
            for name in models
        },
    }


def _step(model: CausalModel, ids: Tensor, state: Any) -> tuple[float, Any]:
    start = time.process_time()
    _, after = model.extend(ids, state, last=True, beyond=True)
    return time.process_time() - start, after


def section(found: dict[str, Any]) -> str:
    lengths = found["lengths"]
    lines = [
        "## SmolLM2-135M: one more token after a long text\n",
        "The state of one text in bytes, exact, and the CPU time of one more token: the least of "
        f"{STEPS}, all\nlengths and models in turns. The model read {READ:,} real tokens; beyond them the state was "
        "filled\nwith random rows, because reading 64k tokens with the whole model takes hours on one core.\n",
        "| attention | " + " | ".join(f"{length // 1024}k" for length in lengths) + " | 64k against 1k |",
        f"|{'---|' * (2 + len(lengths))}",
    ]
    for name, model in found["models"].items():
        sizes, times = model["bytes"], model["milliseconds"]
        cells = " | ".join(f"{size:,} B" for size in sizes)
        lines.append(f"| `{name}`, state | {cells} | {sizes[-1] / sizes[0]:.2f} |")
        cells = " | ".join(f"{spent:.1f} ms" for spent in times)
        lines.append(f"| `{name}`, time | {cells} | {times[-1] / times[0]:.2f} |")
    return "\n".join(lines)
