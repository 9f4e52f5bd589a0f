"""The data of `longspan gallery`: what every mechanism reads at 64 positions, measured on the same input.

A picture has two layers. *Could read*: the cells that the definition (`oracle`) gives a weight on this input. *Read*:
the weights that the fast path applies (`weights`). Mechanisms that transform their values have no such matrix. For them
the picture shows how strongly each output depends on each value: the norm of the derivative.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.attention.base import Attention
from longspan.attention.registry import ATTENTION, build, describe, find, names, survey_class
from longspan.errors import LongspanError, Notice
from longspan.inspect.gallery_options import MARKED, Setup, settings, setup
from longspan.measure.case import Case
from longspan.measure.subject import ready

POSITIONS, WIDTH = 64, 16
DIRECTIONS = 4  # of the walk that the input is: with few, it returns to where it was
INPUTS = 3  # of mechanisms whose pattern, or the order behind it, depends on the input
LENGTHS = tuple(1024 * 2**power for power in range(7))  # at which the cost is given
HEADS, HEAD_DIM = 8, 64  # of the cost
STATE_LENGTHS = (1000, 4000)  # no multiples of a block: some states are empty at the end of one
FORMS = {"causal": True, "bidirectional": False}
STEP = 1e-4  # of the differences that measure a derivative

Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Picture:
    """What is read, and what could be."""

    read: Tensor  # (queries, keys)
    could: Tensor  # the same shape, boolean

    @property
    def outside(self) -> float:
        """The largest weight outside of what could be read: 0 unless there is a bug."""
        return float((self.read.abs() * ~self.could).max())


@dataclass(frozen=True)
class Dial:
    """An option that the page changes, and the index of its first value."""

    name: str
    help: str
    values: tuple[Any, ...]
    start: int


@dataclass(frozen=True)
class Entry:
    """A mechanism of the gallery."""

    facts: Mapping[str, Any]  # what `longspan show` says
    kind: str  # the survey's class
    shown: str  # "weights" or "derivative"
    options: Mapping[str, Any]  # at 64 positions, besides the dials
    dials: tuple[Dial, ...]
    pictures: Mapping[str, Mapping[tuple[int, ...], tuple[Picture, ...]]]  # form: setting: one picture per input
    moves: bool  # whether the pattern depends on the input
    costs: Mapping[int, tuple[int, int]]  # length: FLOPs, numbers kept for the backward pass; empty if not known
    state: Mapping[int, int] | None  # length: bytes of the decoding state; None without one

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def start(self) -> tuple[int, ...]:
        return tuple(dial.start for dial in self.dials)


def collect(
    chosen: Sequence[str] | None = None, tell: Tell = lambda done, total, now: None, *, dials: bool = True
) -> list[Entry]:
    """The gallery's entries: every registered mechanism, plugins included, unless some are `chosen`.

    Without `dials`, each has the picture of its starting options only, which is all that one sheet of them shows.

    A plugin that cannot be drawn is left out with a notice, unless it was chosen: one of them must not cost the others.
    """
    wanted = names() if chosen is None else chosen
    entries = []
    for done, name in enumerate(wanted):
        tell(done, len(wanted), name)
        try:
            entries.append(entry(name, dials=dials))
        except Exception as error:
            if chosen is not None or ATTENTION.source(name) is None:
                raise
            warnings.warn(f"{name} is left out of the gallery: {error}", Notice, stacklevel=2)
    return entries


def entry(name: str, *, dials: bool = True) -> Entry:
    """One mechanism, measured at every setting of its dials, or at the first one only."""
    mechanism, options = find(name), _drawable(name)
    help_of = {item["name"]: item["help"] for item in describe(name)["options"]}
    help_of[MARKED] = "tokens that read everything and that everything reads, given by a mask"
    turned = []
    for dial, values in options.dials.items():
        start = options.options.get(dial, _default(mechanism, dial))
        start = values.index(start) if start in values else len(values) // 2
        turned.append(Dial(dial, help_of[dial], *((values, start) if dials else (values[start : start + 1], 0))))
    forms = [form for form, causal in FORMS.items() if _has(mechanism, causal)]
    moves = mechanism.supports.map and _moves(name, forms[0], options.options)
    inputs = INPUTS if dials and (moves or "LP" in mechanism.survey_class) else 1
    pictures = {form: _pictures(name, form, options.options, turned, inputs) for form in forms}
    return Entry(
        facts=describe(name),
        kind=survey_class(name),
        shown="weights" if mechanism.supports.map else "derivative",
        options={key: value for key, value in options.options.items() if key not in options.dials},
        dials=tuple(turned),
        pictures=pictures,
        moves=moves,
        costs=_costs(name),
        state=state(name) if mechanism.supports.streaming else None,
    )


def _pictures(
    name: str, form: str, options: Mapping[str, Any], dials: Sequence[Dial], inputs: int
) -> dict[tuple[int, ...], tuple[Picture, ...]]:
    """The pictures of one form at every setting of the dials that it accepts; the first one it must accept."""
    found = {}
    for indices in settings({dial.name: dial.values for dial in dials}):
        given = {dial.name: dial.values[index] for dial, index in zip(dials, indices)}
        try:
            drawn = [picture(name, form, {**options, **given}, seed) for seed in range(inputs)]
        except LongspanError:  # values that exclude each other
            if indices == tuple(dial.start for dial in dials):
                raise
            continue
        found[indices] = tuple(drawn)
    return found


def picture(name: str, form: str, options: Mapping[str, Any], seed: int = 0) -> Picture:
    """What a mechanism reads in the sample number `seed`."""
    marked = int(options.get(MARKED, 2))
    given = {key: value for key, value in options.items() if key != MARKED}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of weights that the mechanism has itself
        built = build(name, heads=1, head_dim=WIDTH, max_length=POSITIONS, causal=FORMS[form], **given).eval()
    q, k, hidden = sample(seed)
    if "k" not in built.projects:
        k = q
    streams = _streams(built, q, k, hidden, marked)
    if not built.supports.map:
        read = derivative(built, q, k, hidden, streams)
        return Picture(read, read > 0)
    with torch.no_grad():
        could = built.oracle(q, k, streams=streams)[0, 0] != 0
    return Picture(built.weights(q, k, streams=streams)[0, 0], could)


def sample(seed: int, positions: int = POSITIONS, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, (1, 1, positions, width), and hidden states, (1, positions, width): a smooth random walk.

    Queries and keys are the same walk, with a little noise of their own: near positions resemble each other, and the
    walk returns to where it was, so that patterns that depend on the content show.
    """
    generator = torch.Generator().manual_seed(100 + seed)
    steps = torch.randn(positions, DIRECTIONS, generator=generator)
    for position in range(1, positions):
        steps[position] = 0.9 * steps[position - 1] + 0.44 * steps[position]
    walk = steps @ torch.randn(DIRECTIONS, width, generator=generator)
    walk = walk / walk.norm(dim=-1, keepdim=True) * width**0.5
    q, k = (walk + 0.3 * torch.randn(positions, width, generator=generator) for _ in range(2))
    return 1.2 * q[None, None], 1.2 * k[None, None], walk[None]


def derivative(built: Attention, q: Tensor, k: Tensor, hidden: Tensor, streams: Mapping[str, Tensor]) -> Tensor:
    """How each output depends on each value: the norm of its derivative, which is |weight| where there is a map.

    Measured by differences in float64, with one row of a batch for each number that is changed.
    """
    built = built.double()
    positions, width = q.shape[2], q.shape[3]
    changes = positions * width
    v = hidden[None].double().expand(changes, 1, positions, width)
    step = STEP * torch.eye(changes, dtype=torch.float64).view(changes, 1, positions, width)
    wide = [x.double().expand(changes, *x.shape[1:]) for x in (q, k)]
    extended = {
        name: (x.double() if x.is_floating_point() else x).expand(changes, *x.shape[1:]) for name, x in streams.items()
    }
    with torch.no_grad():
        up, down = (built(*wide, v + sign * step, streams=extended) for sign in (1, -1))
    change = ((up - down) / (2 * STEP)).view(positions, width, positions, width)
    norm = change.square().sum((1, 3)).sqrt().T / width**0.5
    return torch.where(norm > 1e-9 * norm.max(), norm, 0.0).float()


def cost(name: str, length: int) -> tuple[int, int]:
    """FLOPs and numbers kept for the backward pass, of 8 heads of 64, with default options."""
    mechanism = find(name)
    with torch.device("meta"):  # nothing is allocated: some have tables of n² numbers
        built = build(
            name, heads=HEADS, head_dim=HEAD_DIM, max_length=length, causal=not mechanism.supports.bidirectional,
            **_required(name, length),
        )  # fmt: skip
    counted = built.cost(length, length)
    return counted.flops, counted.floats


def _costs(name: str) -> dict[int, tuple[int, int]]:
    try:
        return {length: cost(name, length) for length in LENGTHS}
    except Exception:
        if ATTENTION.source(name) is None:
            raise
        return {}  # a plugin that needs options, or cannot be built without memory for its weights


def state(name: str) -> dict[int, int] | None:
    """Bytes of the decoding state after texts of some lengths: one head of 64, float32, default options."""
    sizes: dict[int, int] = {}
    for length in STATE_LENGTHS:
        case = Case(
            mechanism=name, length=length, kind="decode", causal=True, heads=1, head_dim=HEAD_DIM,
            options=_required(name, length),
        )  # fmt: skip
        try:
            with torch.random.fork_rng(devices=[]):
                size = ready(case).state
        except LongspanError:  # a form that cannot decode, or a plugin that needs options
            return None
        assert size is not None
        sizes[length] = size
    return sizes


def _required(name: str, length: int) -> dict[str, Any]:
    """Options without which a mechanism cannot be built."""
    return {"width": int(length**0.5)} if name == "axial" else {}


def _streams(built: Attention, q: Tensor, k: Tensor, hidden: Tensor, marked: int) -> dict[str, Tensor]:
    """The further inputs of a mechanism; projections start as copies of those they resemble."""
    positions = q.shape[2]
    every = max(1, positions // max(1, marked))
    mask = (torch.arange(positions) % every == 0) & (torch.arange(positions) < every * marked)
    heads = {"q": q, "k": k, "v": hidden[None]}
    return {
        stream.name: {"hidden": hidden, "mask": mask[None]}.get(stream.kind, heads[stream.like])
        for stream in built.streams
        if stream.kind != "ids" and not (stream.kind == "mask" and not marked)
    }


def _drawable(name: str) -> Setup:
    """The setup of a mechanism; its defaults without dials if the derived values are not accepted."""
    options = setup(name)
    mechanism = find(name)
    try:
        picture(name, "bidirectional" if mechanism.supports.bidirectional else "causal", options.options)
    except LongspanError:
        return Setup({}, {})
    return options


def _has(mechanism: type[Attention], causal: bool) -> bool:
    return mechanism.supports.causal if causal else mechanism.supports.bidirectional


def _default(mechanism: type[Attention], dial: str) -> Any:
    return 2 if dial == MARKED else getattr(mechanism.Options(), dial)


def _moves(name: str, form: str, options: Mapping[str, Any]) -> bool:
    first, *others = (picture(name, form, options, seed).could for seed in range(INPUTS))
    return any(not torch.equal(first, other) for other in others)


__all__ = [
    "FORMS",
    "LENGTHS",
    "Dial",
    "Entry",
    "Picture",
    "collect",
    "cost",
    "derivative",
    "entry",
    "picture",
    "sample",
]
