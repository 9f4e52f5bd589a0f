"""Attention of a recurrent decoder to its encoder: six alignment scores, global and local (Luong et al. 2015).

    e_i = score(s, h_i)    a = softmax of e over the real positions    c = Σ a_i h_i

`attention.mechanisms.softmax` has the same six scores for heads of one width. Here queries and keys may differ in
width (in Bahdanau et al. 2015 they are 1000 and 2000, compared in a third width), and the caller needs the weights with
their gradient: local attention multiplies them by a Gaussian. Tests check that the two agree where both apply.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize, softplus

from longspan.attention.base import masked_softmax
from longspan.attention.devices import host_may_read
from longspan.attention.layouts import stream_queries
from longspan.attention.mechanisms.softmax import EPSILON, SCORES
from longspan.attention.state import State
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.recurrent import check_mask
from longspan.shapes import Hidden, KeyMask

REACHES = ("global", "local_m", "local_p")
CENTRES = ("paper", "released")
Query = Float[Tensor, "batch queries query_width"]
Attended = Float[Tensor, "batch queries keys"]
Read = Float[Tensor, "batch queries key_width"]


@dataclass(frozen=True)
class AlignmentMemory(State):
    """The encoder's states and their keys, computed once and read at every step."""

    values: Tensor  # (batch, source, key width)
    keys: Tensor | None  # projected for the score; None: the values themselves
    real: Tensor  # (batch, source), True where a token is real

    @property
    def position(self) -> Int[Tensor, "batch keys"]:
        """The index of each real token among the real ones of its row, from 0."""
        return (self.real.cumsum(1) - 1).clamp_min(0)

    @property
    def length(self) -> Int[Tensor, " batch"]:
        """How many real tokens each row has."""
        return self.real.sum(1)


class Alignment(nn.Module):
    """Weights over the encoder's states, and their weighted sum, for any number of queries.

    `width` is that of the additive score (default: the query's). The location score needs `max_length`, since it has a
    row of weights per position. `reach` is `global`; `local_m`, a window of `radius` positions on each side of the
    decoder's own position; or `local_p`, a window around a predicted position with a Gaussian of σ = radius / 2.
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        *,
        score: str = "additive",
        width: int | None = None,
        max_length: int | None = None,
        reach: str = "global",
        radius: int = 10,
        renormalise: bool = False,
        centre: str = "paper",
        gaussian: bool = True,
    ) -> None:
        super().__init__()
        for what, value, known in (("score", score, SCORES), ("reach", reach, REACHES), ("centre", centre, CENTRES)):
            if value not in known:
                raise InvalidOption(f"{what} must be one of {', '.join(known)}, not {value!r}")
        if score in ("dot", "scaled_dot", "cosine") and query_width != key_width:
            raise InvalidOption(
                f"score {score} needs queries and keys of one width, not {query_width} (decoder) and "
                f"{key_width} (encoder); use general or additive"
            )
        if score == "location" and max_length is None:
            raise InvalidOption("score location has one row per position: give max_length, the longest source")
        if radius < 1:
            raise InvalidOption(f"radius must be at least 1, not {radius}")
        self.score, self.reach, self.radius = score, reach, radius
        self.renormalise, self.centre, self.gaussian = renormalise, centre, gaussian
        self.key_width = key_width
        if score == "general":
            self.change = nn.Linear(key_width, query_width, bias=False)
        elif score == "additive":
            width = query_width if width is None else width
            self.change_query = nn.Linear(query_width, width, bias=False)
            self.change_key = nn.Linear(key_width, width, bias=False)
            self.direction = nn.Parameter(torch.zeros(width))  # Bahdanau et al. 2015, appendix B.1
        elif score == "location":
            assert max_length is not None
            self.places = nn.Parameter(torch.empty(max_length, query_width))
            nn.init.xavier_uniform_(self.places)
        elif score == "cosine":  # key strength β = softplus(·), 1 at the start (Graves et al. 2014)
            self.strength = nn.Parameter(torch.tensor(1.0).expm1().log())
        if reach == "local_p":  # W_p and v_p
            self.place_hidden = nn.Linear(query_width, query_width, bias=False)
            self.place = nn.Linear(query_width, 1, bias=False)

    def prepare(self, values: Hidden, key_mask: KeyMask | None = None) -> AlignmentMemory:
        """Everything that depends on the source only, computed once per sentence."""
        if values.dim() != 3 or values.shape[-1] != self.key_width:
            raise InvalidInput(f"values must be (batch, length, width {self.key_width}), not {tuple(values.shape)}")
        if key_mask is not None:
            check_mask("key_mask", key_mask, values.shape[:2])
        real = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device) if key_mask is None else key_mask
        memory = AlignmentMemory(values, None, real)
        return AlignmentMemory(values, self._keys(memory), real)

    def forward(
        self, query: Query, memory: AlignmentMemory, time: Int[Tensor, "batch queries"] | None = None
    ) -> tuple[Read, Attended]:
        """The weighted sum of the values, and the weights; local_m needs `time`, the position of each query from 0."""
        weights = self.weights(query, memory, time)
        return weights @ memory.values, weights

    def weights(
        self, query: Query, memory: AlignmentMemory, time: Int[Tensor, "batch queries"] | None = None
    ) -> Attended:
        """Rows sum to 1, except local_p with a Gaussian after the softmax; padding gets exactly 0.

        A row whose window contains no token (local_m, far past the end of a short source) is 0.
        """
        scores, keep = self.scores(query, memory), memory.real[:, None]
        if self.reach == "global":
            return masked_softmax(scores, keep)
        if self.reach == "local_m":
            if time is None:
                raise InvalidInput("local_m needs the position of each query: give time")
            return masked_softmax(scores, keep & self._window(memory, time))
        # Luong et al. count source positions from 1, so p = 1 is the first token.
        centre = self.predict(query, memory)
        keep = keep & self._window(memory, centre.detach().floor().long() - 1)
        if not self.gaussian:
            return masked_softmax(scores, keep)
        # Around p itself and not its integer part: only so do W_p and v_p get a gradient.
        distance = memory.position[:, None] + 1 - centre[..., None]
        exponent = -(distance**2) / (2 * (self.radius / 2) ** 2)
        if self.renormalise:
            return masked_softmax(scores + exponent, keep)
        return masked_softmax(scores, keep) * exponent.exp()

    def predict(self, query: Query, memory: AlignmentMemory) -> Float[Tensor, "batch queries"]:
        """The centre p_t of the window of local_p, a real number counted from 1.

        Paper: S · sigmoid(·), where S is the length of the row. Released code: 1 + (S - 1) · sigmoid(·).
        """
        share: Tensor = self.place(self.place_hidden(query).tanh())[..., 0].sigmoid()
        length = memory.length[:, None].to(share.dtype)
        return length * share if self.centre == "paper" else 1 + (length - 1) * share

    def scores(self, query: Query, memory: AlignmentMemory) -> Attended:
        """e of every query and key, before any mask."""
        keys = memory.values if memory.keys is None else memory.keys
        if self.score == "additive":
            return self._additive(self.change_query(query), keys)
        if self.score == "cosine":
            query = normalize(query, dim=-1, eps=EPSILON) * softplus(self.strength)
        scores = query @ keys.mT
        return scores * self.key_width**-0.5 if self.score == "scaled_dot" else scores

    def _keys(self, memory: AlignmentMemory) -> Tensor | None:
        if self.score in ("general", "additive"):
            project = self.change if self.score == "general" else self.change_key
            keys: Tensor = project(memory.values)
            return keys
        if self.score == "cosine":
            return normalize(memory.values, dim=-1, eps=EPSILON)
        if self.score == "location":
            if host_may_read(memory.length):
                self.check_room(int(memory.length.max()))
            return embedding(memory.position, self.places)
        return None

    def check_room(self, longest: int) -> None:
        """Refuses a source that is longer than the table of the location score."""
        if self.score == "location" and longest > len(self.places):
            most = len(self.places)
            raise InvalidInput(f"score location was built for sources of at most {most} tokens, one has {longest}")

    def _additive(self, query: Tensor, keys: Tensor) -> Tensor:
        """v · tanh(W_q s + W_k h), a few queries at a time so that (queries, keys, width) is never whole in memory."""

        def compare(piece: Tensor, _: int = 0) -> Tensor:
            return torch.tanh(piece.transpose(1, 2) + keys[:, None]).matmul(self.direction)[:, None]

        heads = query[:, None]
        return (compare(heads) if query.shape[1] == 1 else stream_queries(compare, heads, rows=16))[:, 0]

    def _window(self, memory: AlignmentMemory, centre: Tensor) -> Tensor:
        """(batch, queries, keys): True within `radius` of the centre; positions outside the sentence do not exist."""
        return (memory.position[:, None] - centre[..., None]).abs() <= self.radius


__all__ = ["CENTRES", "REACHES", "Alignment", "AlignmentMemory"]
