"""Subjects from outside longspan: layers (features in and out) and models (token ids in)."""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.audit.claims import Claims
from longspan.audit.finding import NotMeasured
from longspan.audit.subjects import AuditSubject, Sample
from longspan.errors import InvalidInput

LENGTH = 64  # of an ordinary sample; long enough for block-sparse patterns of small blocks
LONG_LENGTHS = (320, 256, 192, 129)  # of the longer samples; the first that a module takes

# The keywords by which other people's modules take a padding mask, and what True means there. PyTorch's own come first:
# `nn.TransformerEncoder` calls another mask, of queries by keys, just `mask`.
MASKS: dict[str, bool] = {
    "src_key_padding_mask": False,
    "key_padding_mask": False,
    "key_mask": True,
    "attention_mask": True,
    "mask": True,
    "input_mask": True,
    "padding_mask": True,
}
SELF_ATTENTION = (("query", "key", "value"), ("queries", "keys", "values"), ("q", "k", "v"))


@dataclass(frozen=True)
class MaskKeyword:
    """How a module takes its padding mask."""

    name: str
    true_keeps: bool
    dtype: torch.dtype = torch.bool

    def arguments(self, mask: Tensor | None) -> dict[str, Tensor]:
        if mask is None:
            return {}
        return {self.name: (mask if self.true_keeps else ~mask).to(self.dtype)}


def find_mask(module: nn.Module, name: str | None, true_keeps: bool | None) -> MaskKeyword | None:
    """The mask's keyword as given, or else the first known one in the signature of `forward`."""
    if name is None:
        name = next((known for known in MASKS if known in parameters(module)), None)
        if name is None:
            return None
    keeps = MASKS.get(name, True) if true_keeps is None else true_keeps
    return MaskKeyword(name, keeps)


def parameters(module: nn.Module) -> list[str]:
    """The names of what `forward` takes."""
    return list(inspect.signature(module.forward).parameters)


@dataclass(frozen=True)
class CausalKeywords:
    """How a module is made causal: by a mask of queries and keys, a flag, or both, as PyTorch's modules need."""

    mask: str | None
    flag: bool
    drops: bool  # whether the mask is boolean and True drops the key; otherwise it is added to the scores

    @property
    def names(self) -> str:
        return " and ".join([*([self.mask] if self.mask else []), *(["is_causal=True"] if self.flag else [])])

    def arguments(self, length: int, dtype: torch.dtype) -> dict[str, Any]:
        given: dict[str, Any] = {"is_causal": True} if self.flag else {}
        if self.mask is not None:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            # Boolean masks mean opposite things to nn.MultiheadAttention and to scaled_dot_product_attention; a mask
            # that is added means the same to both.
            scores = torch.zeros(length, length, dtype=dtype)
            given[self.mask] = later if self.drops else scores.masked_fill(later, float("-inf"))
        return given


def find_causal(module: nn.Module) -> CausalKeywords | None:
    """The known keywords in the signature of `forward`, if there are any."""
    names = parameters(module)
    padding = next((name for name in ("src_key_padding_mask", "key_padding_mask") if name in names), None)
    masks = ("src_mask", "attn_mask", *(["mask"] if padding else []))
    mask, flag = next((name for name in masks if name in names), None), "is_causal" in names
    return None if mask is None and not flag else CausalKeywords(mask, flag, drops=padding is not None)


class OutsideSubject(AuditSubject):
    """What layers and models from outside have in common."""

    causal: CausalKeywords | None = None  # passed at every call

    def __init__(self, name: str, module: nn.Module, claims: Claims, *, length: int, mask: MaskKeyword | None) -> None:
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
        super().__init__(name, module, claims, form="", length=length, dtype=dtype)
        self.mask = mask

    def keywords(self, length: int, mask: Tensor | None, dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Keyword arguments of `forward`, besides the input."""
        causal = {} if self.causal is None else self.causal.arguments(length, dtype or self.dtype)
        if mask is None:
            return causal
        if self.mask is None:
            known = ", ".join(MASKS)
            raise NotMeasured(f"{self.name} takes no padding mask that is known ({known}); name its keyword (--mask)")
        return causal | self.mask.arguments(mask)

    def checked(self, out: Any, batch: int, length: int) -> Tensor:
        """The features in the output."""
        for attribute in ("logits", "last_hidden_state"):
            if getattr(out, attribute, None) is not None:
                out = getattr(out, attribute)
                break
        if isinstance(out, (tuple, list)) and out:
            out = out[0]
        if not isinstance(out, Tensor):
            raise InvalidInput(f"{self.name} returned {type(out).__name__}, but a tensor was expected")
        if out.dim() != 3 or out.shape[0] != batch or out.shape[1] != length or not out.is_floating_point():
            wanted = f"floats of (batch {batch}, length {length}, features)"
            raise InvalidInput(f"{self.name} returned {out.dtype} of {tuple(out.shape)}, but {wanted} were expected")
        return out


class ModuleSubject(OutsideSubject):
    """A layer: (batch, length, width) of floats in and out, or (length, batch, width) if not `batch_first`.

    A layer that takes query, key and value is given the same for all three. A layer streams if it has `start(batch)`
    and `extend(x, state) -> (out, state)`.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        claims: Claims,
        *,
        width: int,
        length: int = LENGTH,
        mask: MaskKeyword | None = None,
        batch_first: bool = True,
    ) -> None:
        super().__init__(name, module, claims, length=length, mask=mask)
        self.width, self.batch_first = width, batch_first
        self.inputs = 3 if tuple(parameters(module)[:3]) in SELF_ATTENTION else 1

    def sample(self, batch: int, length: int, seed: int, dtype: torch.dtype | None = None) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, length, self.width, generator=generator, dtype=torch.float64)
        return {"x": x.to(dtype or self.dtype)}

    def run(self, sample: Sample, mask: Tensor | None = None) -> Tensor:
        x = sample["x"]
        batch, length = x.shape[:2]
        keywords = self.keywords(length, mask, x.dtype)
        if self.batch_first:
            return self.checked(self.module(*[x] * self.inputs, **keywords), batch, length)
        out = self.module(*[x.transpose(0, 1)] * self.inputs, **keywords)
        out = out[0] if isinstance(out, (tuple, list)) and out else out
        return self.checked(out.transpose(0, 1) if isinstance(out, Tensor) and out.dim() > 1 else out, batch, length)

    def start(self, batch: int) -> Any:
        start: Any = getattr(self.module, "start", None)
        if start is None or not hasattr(self.module, "extend"):
            return super().start(batch)
        return start(batch)

    def extend(self, sample: Sample, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        extend: Any = self.module.extend
        out, state = extend(sample["x"], state, **self.keywords(sample["x"].shape[1], mask))
        return out, state

    def state_bytes(self, state: Any) -> int:
        return _bytes(state)


def takes_batch_first(module: nn.Module) -> bool:
    """Whether the batch is the first axis: False for modules of PyTorch and others that declare otherwise."""
    layers = getattr(module, "layers", None)
    first = layers[0] if isinstance(layers, nn.ModuleList) and len(layers) else None
    for owner in (module, getattr(module, "self_attn", None), getattr(first, "self_attn", None)):
        batch_first = getattr(owner, "batch_first", None)
        if isinstance(batch_first, bool) and (owner is module or type(module).__module__.startswith("torch.nn.")):
            return batch_first
    return True


class ModelSubject(OutsideSubject):
    """A model: token ids in, logits (or hidden states) out. Hugging Face models stream through `past_key_values`."""

    scales = (1.0,)  # a token has no size

    def __init__(
        self,
        name: str,
        module: nn.Module,
        claims: Claims,
        *,
        vocabulary: int,
        length: int = LENGTH,
        mask: MaskKeyword | None = None,
    ) -> None:
        # Hugging Face multiplies and compares its masks as integers.
        if mask is not None and mask.name == "attention_mask":
            mask = MaskKeyword(mask.name, mask.true_keeps, torch.int64)
        super().__init__(name, module, claims, length=length, mask=mask)
        padding = getattr(getattr(module, "config", None), "pad_token_id", None)
        # Not the padding token: some models treat it specially, whatever the mask says.
        self.tokens = torch.tensor([token for token in range(vocabulary) if token != padding])
        most = _most_positions(module)
        if most is not None and most < self.growth_lengths[-1]:
            self.growth_lengths = (most // 4, most // 2, most)

    def sample(self, batch: int, length: int, seed: int, dtype: torch.dtype | None = None) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        return {"tokens": self.tokens[torch.randint(len(self.tokens), (batch, length), generator=generator)]}

    def run(self, sample: Sample, mask: Tensor | None = None) -> Tensor:
        return self.call(sample, self.keywords(sample["tokens"].shape[1], mask))

    def call(self, sample: Sample, keywords: Mapping[str, Any]) -> Tensor:
        """The output with these keywords and no others."""
        tokens = sample["tokens"]
        return self.checked(self.module(tokens, **keywords), *tokens.shape)

    @property
    def forward_parameters(self) -> list[str]:
        """The names of what `forward` takes."""
        return parameters(self.module)

    def differentiable(self, sample: Sample, mask: Tensor | None = None) -> tuple[Sample, Tensor]:
        """The leaf is what the input embedding gives: ids have no gradient."""
        tokens, leaves = sample["tokens"], {}

        def hook(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor | None:
            # Position and type embeddings are fed other ids, and keep their own output.
            ids = arguments[0] if arguments else None
            if "embedded" in leaves or not isinstance(ids, Tensor) or ids.dim() != 2:
                return None
            if torch.equal(ids, tokens):
                leaves["embedded"] = output.detach().clone().requires_grad_()
                return leaves["embedded"]
            if torch.equal(ids.mT, tokens):  # Hugging Face's XLNet puts the length first
                leaves["embedded"] = output.detach().transpose(0, 1).clone().requires_grad_()
                return leaves["embedded"].transpose(0, 1)
            return None

        embeddings = [module for module in self.module.modules() if isinstance(module, nn.Embedding)]
        handles = [embedding.register_forward_hook(hook) for embedding in embeddings]
        try:
            out = self.run(sample, mask)
        finally:
            for handle in handles:
                handle.remove()
        if not leaves:
            raise NotMeasured(f"{self.name} feeds its token ids to no nn.Embedding, so no gradient can be taken")
        return leaves, out

    def start(self, batch: int) -> Any:
        if "past_key_values" not in inspect.signature(self.module.forward).parameters:
            return super().start(batch)
        return None, torch.ones(batch, 0, dtype=torch.bool)

    def extend(self, sample: Sample, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        tokens = sample["tokens"]
        past, seen = state
        new = torch.ones(tokens.shape, dtype=torch.bool) if mask is None else mask
        seen = torch.cat([seen, new], dim=1)
        out = self.module(
            tokens,
            past_key_values=copy.deepcopy(past),  # Hugging Face's cache is written in place
            use_cache=True,
            **self.keywords(tokens.shape[1], None if bool(seen.all()) else seen),
        )
        if getattr(out, "past_key_values", None) is None:
            raise NotMeasured(f"{self.name} gave back no past_key_values")
        return self.checked(out, *tokens.shape), (out.past_key_values, seen)

    def state_bytes(self, state: Any) -> int:
        return _bytes(state[0])


def _most_positions(module: nn.Module) -> int | None:
    """The longest input that a model declares, by the names of Hugging Face and x-transformers."""
    config = getattr(module, "config", None)
    for owner, name in ((config, "max_position_embeddings"), (config, "n_positions"), (module, "max_seq_len")):
        most = getattr(owner, name, None)
        if isinstance(most, int) and most >= 8:
            return (
                most - 2 if getattr(config, "model_type", "") in ("roberta", "camembert") else most
            )  # two are padding's
    return None


def _bytes(state: Any) -> int:
    """The bytes of all tensors that can be reached from a state."""
    seen: dict[int, Tensor] = {}
    _collect(state, seen, set())
    return sum(tensor.numel() * tensor.element_size() for tensor in seen.values())


def _collect(value: Any, tensors: dict[int, Tensor], visited: set[int]) -> None:
    if id(value) in visited:
        return
    visited.add(id(value))
    if isinstance(value, Tensor):
        tensors[id(value)] = value
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, tensors, visited)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, tensors, visited)
    elif not isinstance(value, (nn.Module, type)) and hasattr(value, "__dict__"):
        _collect(vars(value), tensors, visited)
