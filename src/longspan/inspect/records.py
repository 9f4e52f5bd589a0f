"""What a look inside a model found: the values that pages, reports and Python callers read.

Everything here is plain data: numpy arrays, numbers and text, no tensors and no modules. Layers, heads and positions
are counted from 0. Rows of a map are queries, columns are keys.

A `Record` holds axes (the tokens), and one `ModuleRecord` for each attention of the model, bottom up. A module holds
one `HeadRecord` for each head. A head holds

- a `Pyramid`: the whole map at a few resolutions, coarse enough to draw at any length,
- `Sums`: numbers by row, by column and by offset, exact at any length,
- a `Detail` or None: what is needed to compute any single cell exactly (`tiles.tile` does it).

Cells of pyramids are uint8 on a log scale, 254 steps from 1e-6 to 1: code 0 means less than about 1e-6, code c >= 1
means `scale * 10 ** (-6 * (255 - c) / 254)`. `scale` is 1 for weights of a softmax; see `Pyramid`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Codes = NDArray[np.uint8]
Integers = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]

CODE_DECADES = 6  # the smallest weight with a code of its own is 10 ** -CODE_DECADES, times the scale

# Where a map comes from.
#   "map"      the mechanism computes these weights: softmax over all keys or over those of a pattern
#   "implied"  the mechanism never computes a map; this is the matrix that turns its values into its outputs
#   "none"     no single matrix describes it; `ModuleRecord.sentence` says why and what is shown instead
Standing = Literal["map", "implied", "none"]


@dataclass(frozen=True)
class Axis:
    """The positions that queries or keys stand at: tokens of a text, or patches of a picture."""

    name: str  # what the page calls it: "text", "source", "target", "image"
    tokens: tuple[str, ...]  # as they are shown; any text at all, so pages must treat it as data
    words: Integers  # (n,): the index of the word that a token is a piece of, -1 for special tokens
    special: Flags  # (n,): [CLS], <s>, </s>, padding, class tokens of images
    ids: Integers  # (n,): token ids; -1 where there is none (patches, memory)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Picture:
    """The image that a vision model read, and where its patches are on the axis "image"."""

    pixels: NDArray[np.uint8]  # (height, width, 3): as the model saw it, after resizing and cropping
    rows: int  # patches from top to bottom
    columns: int  # patches from left to right
    first: int  # the position of the first patch on the axis; patches follow row by row


@dataclass(frozen=True)
class Level:
    """A map in cells of `cell` x `cell` weights. The last row and column of cells may be partial."""

    cell: int  # a power of 2
    max: Codes  # (ceil(queries / cell), ceil(keys / cell)): the largest weight of the cell
    mean: Codes  # the same shape: the mean of the absolute weights of the cell, over the weights that exist
    low: Codes | None = None  # signed maps only: the largest of the negated weights


@dataclass(frozen=True)
class Pyramid:
    """A map at several resolutions, finest first: at most 512, 256, 128 and 64 cells on the longer side.

    A level has cells of the smallest power of 2 that respects its limit, and levels that would be equal are kept once:
    a map of 40 tokens has one level with cells of 1. `scale` is the weight of code 255: 1 where no weight exceeds 1 in
    magnitude, the largest magnitude otherwise (retention, linear attention without a denominator).
    """

    levels: tuple[Level, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class Sums:
    """Numbers of one head, from all weights of the map. Arrays are float32, or float16 where a page has little room."""

    received: Floats  # (keys,): the sum of each column; the mean weight that a query gives is received / queries
    entropy: (
        Floats  # (queries,): -sum a ln a in nats; of |a| divided by its sum where maps are signed or not normalised
    )
    offsets: Floats  # (queries + keys - 1,): sum of weights with key - query = index - (queries - 1)
    previous: float  # mean over queries of the weight at offset -1, and so on; self-attention only, else 0
    next: float
    self: float
    first: float  # mean over queries of the weight on key 0
    special: Floats  # (number of special keys,): the same for each special token of the key axis, in order
    largest: float  # the largest weight
    peak: Floats  # (queries,): the largest weight of each row
    peak_key: Integers  # (queries,): where it is


@dataclass(frozen=True)
class Rule:
    """Which keys a query may read, as a formula: all conditions must hold, with i the query and j the key.

    `everywhere` overrides `before`, `after` and `step` (but not `causal` and `readable`): a token marked there reads
    all keys, and all queries read it.
    """

    causal: bool = False  # j <= i
    before: int | None = None  # i - j <= before
    after: int | None = None  # j - i <= after
    step: int = 1  # (i - j) is a multiple of step (dilated windows)
    readable: Flags | None = None  # (keys,): padding is False
    everywhere: Flags | None = None  # (positions,): global tokens


@dataclass(frozen=True)
class Dense:
    """Every weight."""

    weights: Floats  # (queries, keys), float16 or float32
    kind: Literal["dense"] = "dense"


@dataclass(frozen=True)
class SoftmaxFactors:
    """weight[i, j] = exp(scale * q[i].k[j] + bias[j - i] - lse[i]) where the rule allows, else 0.

    `lse` was computed from the rounded q and k that are stored, so that rows sum to 1 in the browser too.
    """

    q: Floats  # (queries, width), float16, or float32 if scores are large; after rotation
    k: Floats  # (keys, width), the same type
    scale: float
    lse: Floats  # (queries,), float32; inf in rows with nothing to read
    rule: Rule
    bias: Floats | None = None  # (2 * reach - 1,), float32: bias[j - i + reach - 1]
    kind: Literal["softmax"] = "softmax"


@dataclass(frozen=True)
class ProductFactors:
    """weight[i, j] = left[i].right[j] / row_sum[i] * exp(decay[i] - decay[j]) + added[j - i], 0 outside the rule.

    Kernel attention: left = phi(q), right = phi(k). Linformer: left = the softmax over the projected keys, right = the
    projection. Nystrom: left = softmax(q, landmarks) @ pseudo-inverse, right = softmax(landmarks, k), transposed.
    """

    left: Floats  # (queries, rank)
    right: Floats  # (keys, rank)
    rule: Rule
    row_sum: Floats | None = None  # (queries,), float32; None: 1
    decay: Floats | None = None  # (positions,), float32: sum of log decays up to each position; None: 0
    added: Floats | None = None  # (2 * reach - 1,), float32: added[j - i + reach - 1], 0 past its ends (Nystrom)
    kind: Literal["product"] = "product"


@dataclass(frozen=True)
class Rows:
    """The weights that are not 0, row by row: row i has entries starts[i] to starts[i + 1]."""

    starts: Integers  # (queries + 1,), uint32
    keys: Integers  # (entries,), uint16 below 65,536 keys, else uint32; rising within a row
    weights: Floats  # (entries,), float16 or float32
    kind: Literal["rows"] = "rows"


Detail = Dense | SoftmaxFactors | ProductFactors | Rows


@dataclass(frozen=True)
class Pattern:
    """What one head could read, whether it did or not. One of `rule` and `cells` is given, or only `buckets`.

    `cells` are True where at least one key may be read, at the resolution `cell`. `buckets` says which tokens meet: in
    each round, a query reads keys with its own number (Reformer: of its chunk and the one before; Routing: the best of
    the cluster; Sinkhorn: round 0 is the own block, round 1 the block sorted next to it).
    """

    sentence: str
    rule: Rule | None = None
    cell: int = 1
    cells: Flags | None = None  # (ceil(queries / cell), ceil(keys / cell))
    buckets: Integers | None = None  # (rounds, queries), -1: in none
    key_buckets: Integers | None = None  # (rounds, keys); None: the same


@dataclass(frozen=True)
class Errors:
    """How far a map is from the exact one: of one head, mean over the rows named by the field that holds it."""

    kl: float | None  # KL(exact || ours) in nats; None for maps with negative weights; inf where ours is 0
    variation: float  # half the sum of absolute differences: 0 to 1 for distributions
    output: float  # norm of (ours - exact) V, over the norm of exact V
    top1: float  # share of rows whose largest weight is on the same key
    nowhere: float  # weight that ours puts where exact has less than 1e-4


@dataclass(frozen=True)
class HeadDifference:
    """One head beside exact softmax attention with the same queries, keys and values."""

    errors: Errors
    blocks: tuple[Errors, ...]  # the same by position of the query, in up to 8 equal blocks
    control: Errors  # exact beside exact with its keys permuted (fixed seed): the error of nonsense
    exact: Pyramid
    exact_detail: Detail | None
    change: Pyramid  # of ours - exact: `max` where ours is larger, `low` where it is smaller, `mean` of magnitudes


@dataclass(frozen=True)
class HeadRecord:
    index: int
    pyramid: Pyramid
    sums: Sums
    detail: Detail | None = None
    pattern: Pattern | None = None  # sparse mechanisms only
    difference: HeadDifference | None = None  # with --against only


@dataclass(frozen=True)
class ModuleRecord:
    """One attention of the model."""

    layer: int  # within its side: encoder layer 0 and decoder layer 0 both exist
    kind: Literal["self", "cross"]
    side: Literal["encoder", "decoder"]  # "encoder" for bidirectional models, "decoder" for causal ones
    mechanism: str
    options: Mapping[str, Any]
    causal: bool
    standing: Standing
    sentence: str  # what the map is, or why there is none, in one sentence for the page
    queries: str  # the name of the axis of rows in `Record.axes`
    keys: str  # and of columns
    heads: tuple[HeadRecord, ...]  # all of them; empty if standing is "none"
    mean: Pyramid | None = None  # over the heads
    max: Pyramid | None = None
    signed: bool = False  # some weights are negative
    normalised: bool = True  # rows sum to 1 (to 1e-3), except those that read nothing
    # standing "none" only: what could be read, if that is known; columns may be slots instead of keys (its sentence)
    pattern: "Pattern | None" = None

    @property
    def title(self) -> str:
        where = {"self": "", "cross": " to source"}[self.kind]
        return f"{self.side} layer {self.layer}{where}"


@dataclass(frozen=True)
class Rollout:
    """Attention rollout (Abnar and Zuidema 2020) over the self-attention of one side, with its residual streams.

    Up to 512 tokens it is exact; above, maps were first summed over key cells and averaged over query cells.
    """

    side: Literal["encoder", "decoder"]
    axis: str
    cell: int  # 1: exact
    layers: tuple[int, ...]  # which are kept: all of them up to 128 cells, else the last one
    weights: Floats  # (len(layers), cells, cells), float32: row i is what state i holds of the inputs after that layer
    uniform: Floats  # (cells, cells): the rollout of uniform maps of the same form after all layers, its control


@dataclass(frozen=True)
class Choice:
    """A token that could have come next."""

    id: int
    token: str
    probability: float  # by the model, before temperature and filters
    chance: float  # after temperature and filters; 0: it was cut
    cut: str = ""  # which filter cut it: "top-k", "top-p", "min-p"; "" if none did


@dataclass(frozen=True)
class Reading:
    """What one module read for the new token."""

    module: int  # index into `Record.modules`
    weights: Floats  # (heads, keys up to this step), float16; one row, the mean over heads, where all would not fit


@dataclass(frozen=True)
class LensLine:
    """The logit lens at one layer: the final norm and the output layer applied to its state."""

    state: int  # 0: the embeddings, l + 1: after layer l
    norm: float  # of the state
    top: tuple[Choice, ...]  # best first, at most 5; chance = probability
    rank: int  # of the token that was chosen, from 0


@dataclass(frozen=True)
class Step:
    """One generated token."""

    position: int  # of the new token on the axis
    id: int
    token: str
    choices: tuple[Choice, ...]  # the 10 most probable, and the chosen one if it is not among them
    draw: float | None  # the number in [0, 1) that chose it; None: the most probable token
    kept: int  # tokens left after filters
    readings: tuple[Reading, ...]
    lens: tuple[LensLine, ...]
    first_led: int | None  # the lowest state of the lens from which on the chosen token always led; None: never
    cache_bytes: int | None  # of the decoding state after this step; None: the model keeps none
    cached: Integers | None  # positions that the first layer's cache holds; None: a state of fixed size


@dataclass(frozen=True)
class Generated:
    """A generated continuation, token by token."""

    prompt: int  # tokens of the text that was given
    steps: tuple[Step, ...]
    settings: Mapping[str, Any]  # temperature, top_k, top_p, min_p, seed
    stopped: str  # "length", or the token that ended it


@dataclass(frozen=True)
class DifferenceByLength:
    """Errors of every head at several lengths: prefixes of the same text."""

    against: str
    lengths: tuple[int, ...]
    # (lengths, modules, heads, 5): kl, variation, output, top1, nowhere; NaN where there is none
    errors: Floats


@dataclass(frozen=True)
class ModelCard:
    name: str  # as the user gave it
    kind: str  # "encoder", "decoder", "transformer", "vit", …
    parameters: int
    layers: int
    heads: int
    mechanisms: tuple[str, ...]


@dataclass(frozen=True)
class Budget:
    size: int  # bytes that a page may have
    spent: int  # bytes of this record before deflate and base64
    detailed: tuple[tuple[int, int], ...]  # (module, head) with detail
    omitted: int  # heads whose detail did not fit


@dataclass(frozen=True)
class Record:
    model: ModelCard
    text: str  # what was read; "" for images
    axes: Mapping[str, Axis]
    modules: tuple[ModuleRecord, ...]
    budget: Budget
    rollouts: tuple[Rollout, ...] = ()
    picture: Picture | None = None
    generated: Generated | None = None
    against: str = ""  # the mechanism of `HeadDifference`: "softmax"
    by_length: DifferenceByLength | None = None
    notes: tuple[str, ...] = field(default=())  # sentences for the page: what was left out, and why

    caution: str = (
        "Weights show where a head reads, not why the model answers: compare them with what happens when the head is "
        "switched off."
    )


def encode(weights: Floats, scale: float = 1.0) -> Codes:
    """Codes of weights, on the log scale of the module's docstring; negative weights are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = 255 + np.log10(np.maximum(weights, 0) / scale) * (254 / CODE_DECADES)
    return np.where(steps < 0.5, 0, np.clip(np.rint(steps), 1, 255)).astype(np.uint8)


def decode(codes: Codes, scale: float = 1.0) -> NDArray[np.float32]:
    """The weights that codes stand for."""
    values = scale * 10.0 ** (-CODE_DECADES * (255 - codes.astype(np.float32)) / 254)
    return np.where(codes == 0, 0.0, values).astype(np.float32)
