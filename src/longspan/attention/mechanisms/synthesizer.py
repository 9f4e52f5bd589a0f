"""Synthesizer: attention scores computed from single tokens or from positions alone (Tay et al. 2020a).

Five kinds of scores, alone or mixed inside one softmax. Three of them are products of a vector for the row and a vector
for the key, so they use the fused kernel with concatenated factors; the other two are computed in tiles of rows
(`kernels/tiled_softmax.py`).
"""

from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Stream, Supports, masked_softmax, readable
from longspan.attention.kernels import tiled_softmax
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.kernels.tiled_softmax import Terms, tiled
from longspan.attention.layouts import Dense, ceil_div
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights

FORMS = ("dense", "random", "factorised_dense", "factorised_random", "dot")
SHARED = ("random", "factorised_random")  # these read no input, so all sequences of a batch have the same weights
TILED = ("random", "factorised_dense")  # these are not products of a row's vector and a key's
HIDDEN = Stream(name="hidden", kind="hidden", help="the hidden states that the scores are computed from")


@dataclass(frozen=True)
class SynthesizerState(State):
    k: Rows | None  # with the form "dot" only
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may


class SynthesizerAttention(Attention):
    name = "synthesizer"
    paper = "Tay et al. 2020a"
    equal_widths = "its scores come from tables and hidden states, not from queries and keys"
    one_head_each = "its scores come from tables of each head, not from shared keys"
    survey_class = ("LR", "LP")
    order = "n²"
    exponent = 2.0
    supports = Supports(causal=True, streaming=True, dropout=True)
    streams: tuple[Stream, ...] = (HIDDEN,)  # of the default form; each instance has its own
    projects: tuple[str, ...] = ("v",)
    random: Tensor  # parameters, or buffers if fixed
    random_rows: Tensor
    random_keys: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        form: str | tuple[str, ...] = option(
            "dense", f"what the scores are: one of {', '.join(FORMS)}, or several mixed inside one softmax"
        )
        hidden: int | None = option(
            None, "dense: hidden units of the scores; head_dim unless given (the kernel is fastest below it)", low=1
        )
        rank: int = option(8, "factorised_random: width of the two factors", low=1)
        factor: int | None = option(
            None,
            "factorised_dense: length of the repeated factor; the largest divisor of max_length up to its square root "
            "unless given",
            low=1,
        )
        width: int | None = option(
            None, "dense and factorised_dense: width of the hidden states; heads · head_dim unless given", low=1
        )
        fixed: bool = option(False, "random and factorised_random: tables that are not trained")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        self.forms = _forms(self.options.form)
        if shape.max_length is None:
            raise InvalidOption(f"{self.name} has scores for every position of its tables: give max_length")
        if self.options.fixed and not set(self.forms) & set(SHARED):
            raise InvalidOption(f"option fixed goes with form {' or '.join(SHARED)}, not {self.options.form!r}")
        reads = "dense" in self.forms or "factorised_dense" in self.forms
        self.projects = ("q", "k", "v") if "dot" in self.forms else ("v",)
        self.streams = (HIDDEN,) if reads else ()
        self.quadratic_memory = "random" in self.forms  # its table is n × n, and so is its gradient
        self.width = self.options.width or shape.heads * shape.head_dim
        self.units = self.options.hidden or shape.head_dim
        self.most: int = shape.max_length
        self.fixed_length = True
        heads, width, most = shape.heads, self.width, shape.max_length
        if "dense" in self.forms:
            hidden = self.units
            self.dense_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, hidden, width)))
            self.dense_in_bias = nn.Parameter(torch.zeros(heads, hidden))
            self.dense_out = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, most, hidden)))
            self.dense_out_bias = nn.Parameter(torch.zeros(heads, most))
        if "random" in self.forms:
            self._table("random", torch.randn(heads, most, most))
        if "factorised_random" in self.forms:
            for side in ("rows", "keys"):  # so that a score has variance 1
                self._table(f"random_{side}", torch.randn(heads, most, self.options.rank) * self.options.rank**-0.25)
        if "factorised_dense" in self.forms:
            a = _divisor(most) if self.options.factor is None else self.options.factor
            if a > most:
                raise InvalidOption(f"option factor must be at most max_length {most}, not {a}")
            # a · c is max_length, or slightly more if `factor` does not divide it.
            self.repeated = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, a, width)))
            self.whole = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, ceil_div(most, a), width)))
        if len(self.forms) > 1:
            self.mixture = nn.Parameter(torch.zeros(len(self.forms)))  # α is its softmax: uniform at first

    def _table(self, name: str, table: Tensor) -> None:
        if self.options.fixed:
            self.register_buffer(name, table)
        else:
            self.register_parameter(name, nn.Parameter(table))

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        x = self._hidden(extras, length, 0)
        alpha = self.mixture.softmax(0) if len(self.forms) > 1 else torch.ones(1, dtype=q.dtype, device=q.device)
        scores = q.new_zeros(q.shape[0], self.shape.heads, length, length)
        for number, form in enumerate(self.forms):
            scores = scores + alpha[number] * self._scores_by_definition(form, q, k, x, length)
        return masked_softmax(scores, readable(length, length, self.causal, extras.key_mask, q.device))

    def _scores_by_definition(self, form: str, q: Tensor, k: Tensor, x: Tensor | None, length: int) -> Tensor:
        if form == "dot":
            return torch.einsum("bhid,bhjd->bhij", q, k) / float(self.shape.head_dim**0.5)
        if form == "random":
            return self.random[:, :length, :length]
        if form == "factorised_random":
            return torch.einsum("hir,hjr->hij", self.random_rows[:, :length], self.random_keys[:, :length])
        assert x is not None
        if form == "dense":
            inner = torch.einsum("hed,bid->bhie", self.dense_in, x) + self.dense_in_bias[:, None]
            scores = torch.einsum("hje,bhie->bhij", self.dense_out, inner.relu()) + self.dense_out_bias[:, None]
            return scores[..., :length]
        a = torch.einsum("had,bid->bhia", self.repeated, x)
        c = torch.einsum("hcd,bid->bhic", self.whole, x)
        # One factor repeats its elements, the other repeats as a whole: each pair of elements occurs once.
        pairs = a.repeat_interleave(c.shape[-1], dim=-1) * c.repeat(1, 1, 1, a.shape[-1])
        return pairs[..., :length]

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        x = self._hidden(extras, q.shape[2], 0)
        return self._attend(q, k, v, x, extras.key_mask, 0, self.dropout if self.training else 0.0)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor | None,
        keep: Tensor | None,
        first: int,
        dropout: float = 0.0,
        *,
        at_once: bool = False,
    ) -> Tensor:
        """The rows from position `first` on, over all keys of v."""
        batch, rows, keys, width = v.shape[0], q.shape[2], v.shape[2], v.shape[3]
        if set(self.forms) <= set(SHARED) and batch > 1 and keep is None and not dropout:
            # One set of weights for the whole batch: concatenate the values of its sequences.
            values = v.permute(1, 2, 0, 3).flatten(2)[None]
            terms = self._terms(q[:1], k[:1], None, first, keys)
            out = tiled(terms, values, None, rows=rows, causal=self.causal, whole=at_once)
            rows_of_batch: Tensor = out[0].unflatten(2, (batch, width))
            return rows_of_batch.permute(2, 0, 1, 3)
        if set(self.forms) & set(TILED):
            terms = self._terms(q, k, x, first, keys)
            return tiled(terms, v, keep, rows=rows, causal=self.causal, dropout=dropout, whole=at_once)
        room = self._room(width)
        factors = self._factors(q, k, x, first, keys, self._alpha(q.dtype), room)
        left, right = (factor.expand(batch, -1, -1, -1) for factor in factors)
        values = v if room == width else pad(v, (0, room - width))
        out = joint(left, [KeySource(Dense(causal=self.causal), right, values, keep)], scale=1.0, dropout=dropout)
        return out if room == width else out[..., :width]

    def _terms(self, q: Tensor, k: Tensor, x: Tensor | None, first: int, keys: int) -> Terms:
        left = right = of_rows = of_keys = gain = None
        alpha = self._alpha(q.dtype)
        if "factorised_dense" in self.forms:
            assert x is not None
            left, right = self._project(x, self.repeated), self._project(x, self.whole)
            left = left if alpha is None else left * alpha["factorised_dense"]
        if set(self.forms) - set(TILED):
            of_rows, of_keys = self._factors(q, k, x, first, keys, alpha)
        if "random" in self.forms:
            gain = None if alpha is None else alpha["random"]
        return Terms(of_rows, of_keys, self.random if "random" in self.forms else None, gain, left, right)

    def _factors(
        self,
        q: Tensor,
        k: Tensor,
        x: Tensor | None,
        first: int,
        keys: int,
        alpha: dict[str, Tensor] | None,
        room: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Vectors of the rows (batch or 1, heads, rows, width) and of the keys, whose products are the scores.

        Those of several forms are concatenated, and padded with zeros to the width `room`.
        """
        columns = torch.arange(keys, device=q.device)
        rows = torch.arange(q.shape[2], device=q.device) + first
        left, right = [], []
        if "dot" in self.forms:
            scale = self.shape.head_dim**-0.5
            left.append(q * (scale if alpha is None else alpha["dot"] * scale))
            right.append(k)
        if "factorised_random" in self.forms:
            of_rows = self.random_rows.index_select(1, rows)[None].to(q.dtype)
            left.append(of_rows if alpha is None else of_rows * alpha["factorised_random"])
            right.append(self.random_keys.index_select(1, columns)[None].to(q.dtype))
        if "dense" in self.forms:
            assert x is not None
            inner = self._project(x, self.dense_in, self.dense_in_bias).relu()
            one = inner.new_ones(1) if alpha is None else alpha["dense"]
            left += [inner if alpha is None else inner * one, one.expand(1, 1, 1, 1)]
            right += [
                self.dense_out.index_select(1, columns)[None].to(q.dtype),
                self.dense_out_bias.index_select(1, columns)[None, :, :, None].to(q.dtype),
            ]
        return _concatenate(left, room), _concatenate(right, room)

    def _room(self, values: int) -> int:
        """The width of the fused kernel's rows: at least that of the values, and a multiple of 8, which is fast."""
        return max(values, ceil_div(self._factor_width(), 8) * 8)

    def _factor_width(self) -> int:
        widths = {"dot": self.shape.head_dim, "factorised_random": self.options.rank, "dense": self.units + 1}
        return sum(widths.get(form, 0) for form in self.forms)

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(batch, heads, rows, width) from (batch, rows, hidden width), all heads in one product."""
        bias = None if bias is None else bias.flatten().to(x.dtype)
        heads: Tensor = linear(x, weight.flatten(0, 1).to(x.dtype), bias).unflatten(2, weight.shape[:2])
        return heads.transpose(1, 2)

    def _alpha(self, dtype: torch.dtype) -> dict[str, Tensor] | None:
        return None if len(self.forms) == 1 else dict(zip(self.forms, self.mixture.softmax(0).to(dtype).unbind()))

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, forms = self.shape.heads, self.shape.head_dim, self.forms
        mixed, factors = len(forms) > 1, self._factor_width()
        flops = kept = 0
        if "dense" in forms:
            flops += 2 * heads * queries * self.width * self.units
            kept += heads * queries * self.units  # the output of the ReLU
        if "factorised_dense" in forms:
            a, c = self.repeated.shape[1], self.whole.shape[1]
            flops += 2 * heads * queries * self.width * (a + c)
            kept += heads * queries * (a + c + (a if mixed else 0))
        if mixed:  # α, and what it multiplies
            kept += len(forms) + ("dot" in forms)
            kept += heads * queries * self.options.rank if "factorised_random" in forms else 0
        if set(forms) & set(TILED):
            pairs = sum((end - begin) * seen for begin, end, seen in tiled_softmax.spans(queries, 0, keys, self.causal))
            flops += 2 * heads * pairs * (width + factors)
            kept += heads * queries * factors + (heads * keys * factors if factors > width or "dot" not in forms else 0)
        else:
            room = self._room(width)
            flops += 4 * heads * queries * keys * room
            kept += heads * queries * (2 * room + 1)  # the rows' factors, the output and the log-sum-exp
            kept += 0 if forms == ("dot",) and room == width else heads * keys * room
            kept += 0 if room == width else heads * keys * room
        return Cost(flops, kept)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> SynthesizerState:
        self._refuse_streaming()
        return SynthesizerState(Rows.empty(batch) if "dot" in self.forms else None, Rows.empty(batch), None)

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: SynthesizerState, extras: Extras
    ) -> tuple[Output, State]:
        past = state.v.count
        x = self._hidden(extras, q.shape[2], past)
        seen = append_mask(state.seen, past, extras.key_mask, q)
        state = SynthesizerState(None if state.k is None else state.k.append(k), state.v.append(v), seen)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        keys, values = k if state.k is None else state.k.value, state.v.value
        few = q.shape[0] * q.shape[1] * q.shape[2] * values.shape[2] <= tiled_softmax.TILE
        return self._attend(q, keys, values, x, keep, past, at_once=few), state

    def _hidden(self, extras: Extras, rows: int, past: int) -> Tensor | None:
        """The hidden states of the rows; an error if the tables do not reach these rows."""
        if past + rows > self.most:
            raise InvalidInput(
                f"{self.name} was built for max_length {self.most}, and there are {past + rows} positions"
            )
        x = extras.streams.get("hidden")
        if x is not None and tuple(x.shape[1:]) != (rows, self.width):
            raise InvalidInput(
                f"hidden must be (batch, length {rows}, width {self.width}), not {tuple(x.shape)}; see the option width"
            )
        return x


def _forms(given: str | tuple[str, ...]) -> tuple[str, ...]:
    forms = (given,) if isinstance(given, str) else given
    for form in forms:
        if form not in FORMS:
            raise InvalidOption(f"option form must be of {', '.join(FORMS)}, not {form!r}")
    if len(set(forms)) < len(forms):
        raise InvalidOption(f"option form must name each form once, not {given!r}")
    return forms


def _divisor(number: int) -> int:
    """The largest divisor up to the square root."""
    return max(divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0)


def _concatenate(factors: list[Tensor], room: int) -> Tensor:
    """Tensors of (batch or 1, heads or 1, length or 1, any width) in one, with zeros up to the width `room`."""
    missing = room - sum(factor.shape[3] for factor in factors)
    if missing > 0:
        factors = [*factors, factors[0].new_zeros(1, 1, 1, missing)]
    if len(factors) == 1:
        return factors[0]
    batch, heads, length = (max(factor.shape[axis] for factor in factors) for axis in range(3))
    return torch.cat([factor.expand(batch, heads, length, -1) for factor in factors], dim=-1)
