"""`torch.nn.MultiheadAttention` with any mechanism inside: the same constructor, call, masks and state-dict names.

To replace a torch layer, change its class: `load_state_dict` accepts its weights, and `attention="softmax"` gives the
same outputs. Two conventions are torch's and differ from the rest of longspan: masks are True where a key may *not* be
read, and the mask of each call makes attention causal. Mechanisms other than softmax are causal by construction, with
`causal=True`; they accept the causal mask and refuse any other.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from longspan.attention.base import Attention
from longspan.attention.registry import build
from longspan.errors import InvalidInput, InvalidOption, Unsupported


class MultiheadAttention(nn.Module):
    """A drop-in for `torch.nn.MultiheadAttention`; `attention` names the mechanism, further keywords are its options.

    >>> layer = MultiheadAttention(512, 8, batch_first=True, attention="window", window=256)
    >>> layer.load_state_dict(trained.state_dict())  # of a torch.nn.MultiheadAttention
    >>> out, _ = layer(x, x, x, key_padding_mask=padding, need_weights=False)
    """

    # nn.TransformerEncoderLayer reads this to decide on a fused path around this layer; False forbids it.
    _qkv_same_embed_dim = False

    in_proj_weight: nn.Parameter | None  # queries, keys and values in one, if equally wide
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "softmax",
        causal: bool = False,
        max_length: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise InvalidOption(f"num_heads must divide embed_dim: {embed_dim} is not a multiple of {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self.mechanism: Attention = build(
            attention,
            heads=num_heads,
            head_dim=self.head_dim,
            causal=causal,
            max_length=max_length,
            dropout=dropout,
            **options,
        ).to(device=device, dtype=dtype)
        self._refuse(add_bias_kv or add_zero_attn, attention)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        one_matrix = self.kdim == self.vdim == embed_dim
        in_proj = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **factory)) if one_matrix else None
        self.register_parameter("in_proj_weight", in_proj)
        shapes = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        for name, width in shapes.items():
            weight = None if one_matrix else nn.Parameter(torch.empty(embed_dim, width, **factory))
            self.register_parameter(f"{name}_proj_weight", weight)
        self.register_parameter("in_proj_bias", nn.Parameter(torch.empty(3 * embed_dim, **factory)) if bias else None)
        # torch's class, which quantisation and pruning tools recognise.
        self.out_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **factory)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(
                name, nn.Parameter(torch.empty(1, 1, embed_dim, **factory)) if add_bias_kv else None
            )
        self._reset_parameters()

    def _refuse(self, further_keys: bool, name: str) -> None:
        streams = [stream.name for stream in self.mechanism.streams if stream.required]
        if self.mechanism.projects != ("q", "k", "v") or streams:
            raise Unsupported(f"{name} needs more than queries, keys and values; use longspan.MultiHead")
        if further_keys and (name != "softmax" or self.mechanism.causal):
            raise Unsupported("only softmax without causal=True supports add_bias_kv and add_zero_attn")

    def _reset_parameters(self) -> None:
        """The initialisation of torch.nn.MultiheadAttention."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for weight in (self.bias_k, self.bias_v):
            if weight is not None:
                nn.init.xavier_normal_(weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and, with `need_weights`, the map of each head or their mean; masks as torch has them.

        Without `need_weights` nothing of size n × n is computed, unless the mechanism or `attn_mask` needs it.
        """
        if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
            raise InvalidInput(
                f"query, key and value must be (length, batch, width), batch first, or (length, width), "
                f"not {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        if is_causal and attn_mask is None:
            raise InvalidInput("is_causal is a hint about attn_mask: give attn_mask as well")
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._heads(query, key, value)
        k, v, key_padding_mask, attn_mask = self._further_keys(k, v, key_padding_mask, attn_mask)
        out, weights = self._attend(q, k, v, key_padding_mask, attn_mask, is_causal, need_weights)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    # Projections

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if self.in_proj_weight is not None:
            weights: list[Tensor] = [*self.in_proj_weight.chunk(3)]
        else:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = [weight for weight in separate if weight is not None]
        biases = [None] * 3 if self.in_proj_bias is None else [*self.in_proj_bias.chunk(3)]
        rows = (linear(x, weight, bias) for x, weight, bias in zip((query, key, value), weights, biases, strict=True))
        return tuple(x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in rows)

    def _further_keys(
        self, k: Tensor, v: Tensor, padding: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Appends the keys of add_bias_kv and add_zero_attn, which every query reads."""
        added: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            learned = [x.view(1, self.num_heads, 1, self.head_dim) for x in (self.bias_k, self.bias_v)]
            added.append((learned[0].expand(len(k), -1, -1, -1), learned[1].expand(len(k), -1, -1, -1)))
        if self.add_zero_attn:
            zeros = k.new_zeros(len(k), self.num_heads, 1, self.head_dim)
            added.append((zeros, zeros))
        if not added:
            return k, v, padding, mask
        k, v = torch.cat([k, *(x for x, _ in added)], 2), torch.cat([v, *(x for _, x in added)], 2)
        pad = nn.functional.pad
        return (
            k,
            v,
            None if padding is None else pad(padding, (0, len(added))),
            None if mask is None else pad(mask, (0, len(added))),
        )

    # Attention

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        key_mask, scores_padding = self._readable(padding)
        if mask is not None and self.mechanism.causal and (is_causal or _is_causal_mask(mask)):
            mask = None  # the mechanism is causal already
        if mask is None and scores_padding is None:
            weights = self.mechanism.weights(q, k, key_mask=key_mask) if need_weights else None
            return self.mechanism(q, k, v, key_mask=key_mask), weights
        if self.mechanism.name != "softmax" or not self.mechanism.scaled_dot:
            what = "a float key_padding_mask" if mask is None else "this attn_mask"
            hint = "build it with causal=True for a causal mask" if not self.mechanism.causal else "leave it out"
            raise Unsupported(f"{self.mechanism.name} cannot apply {what} to its scores; {hint}")
        return self._masked(q, k, v, key_mask, scores_padding, mask, need_weights)

    def _masked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        scores_padding: Tensor | None,
        mask: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Softmax attention with any mask, by torch's kernel, which adds one number to each score."""
        added = q.new_zeros(()) if scores_padding is None else scores_padding[:, None, None]
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unflatten(0, (-1, self.num_heads))
            added = added + (q.new_zeros(()).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask)
        if key_mask is not None:
            added = added + q.new_zeros(()).masked_fill(~key_mask[:, None, None], -torch.inf)
        added = added.to(q.dtype).expand(len(q), self.num_heads, q.shape[2], k.shape[2])
        if self.mechanism.causal:
            future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
            added = added.masked_fill(future, -torch.inf)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = torch.softmax(q @ k.mT * self.head_dim**-0.5 + added, -1)
        return scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout), weights

    def _readable(self, padding: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """torch's padding mask as a key_mask (True: may be read), or as numbers that are added to the scores.

        nn.TransformerEncoderLayer turns a boolean mask into 0 and -inf, which is still a boolean mask.
        """
        if padding is None:
            return None, None
        if padding.dtype == torch.bool:
            return ~padding, None
        hidden = padding == -torch.inf
        if torch.compiler.is_compiling() or padding.is_meta:  # values unknown
            return (None, padding) if self.mechanism.name == "softmax" else (~hidden, None)
        return (None, padding) if padding.masked_fill(hidden, 0.0).any() else (~hidden, None)


def _is_causal_mask(mask: Tensor) -> bool:
    """Whether a mask hides exactly the later tokens; False if its values are unknown (tracing)."""
    if mask.dim() != 2 or mask.shape[0] != mask.shape[1] or torch.compiler.is_compiling() or mask.is_meta:
        return False
    hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
    future = torch.ones_like(hidden).triu(1)
    return torch.equal(hidden, future) and (mask.dtype == torch.bool or not mask.masked_fill(future, 0.0).any())


__all__ = ["MultiheadAttention"]
