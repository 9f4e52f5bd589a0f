"""What all classes share: a model of ours as `core`, its tied weights, its embedding, and how padding is read."""

from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.transformers_models.configuration import LongspanConfig
from longspan.models.base import Model


class LongspanPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """A model of ours in the clothes of transformers; `core` is the model itself."""

    config_class = LongspanConfig
    base_model_prefix = "core"
    main_input_name = "input_ids"
    ability: ClassVar[type[Model]] = Model  # what the class needs of our model
    task: ClassVar[str | None] = None  # the head that it reads

    def __init__(self, config: LongspanConfig, core: Model | None = None) -> None:
        super().__init__(config)
        self.prepare(config)
        self.core = self.ability.require(config.build() if core is None else core, type(self).__name__)
        for tensor in (*self.core.parameters(), *self.core.buffers()):
            if not tensor.is_meta:  # on meta it is marked when a file fills it
                tensor._is_hf_initialized = True  # type: ignore[attr-defined]
        self._tied_weights_keys = tied_names(self)
        self.post_init()

    def prepare(self, config: LongspanConfig) -> None:
        """Adds to the options what the class needs, such as its head."""

    def _init_weights(self, module: nn.Module) -> None:
        """Ours initialise themselves."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Fills what a file did not have: a head that is new, and tables that are computed and never saved."""
        tensors = dict([*self.core.named_parameters(), *self.core.named_buffers()])
        missing = [name for name, tensor in tensors.items() if not getattr(tensor, "_is_hf_initialized", False)]
        if not missing:
            return
        with torch.device("cpu"):
            model = self.config.build()
        new = dict([*model.named_parameters(), *model.named_buffers()])
        for name in missing:
            tensors[name].copy_(new[name])

    @property
    def embedding(self) -> Any:
        """The table of tokens."""
        for name in ("embedding", "target"):
            module = getattr(self.core, name, None)
            if module is not None:
                return module
        raise Unsupported(f"a {self.core.name} has no table of tokens")

    def get_input_embeddings(self) -> Any:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        raise Unsupported(
            "the table of tokens belongs to the model; load it with another vocabulary: "
            "longspan.load(FOLDER, options={'vocabulary': N})"
        )

    def get_output_embeddings(self) -> None:
        return None

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **given: Any) -> Any:
        if new_num_tokens not in (None, self.config.vocab_size):
            self.set_input_embeddings(None)
        return self.embedding

    def check_plain(self, given: dict[str, Any]) -> None:
        """Refuses inputs that our models do not read, rather than to ignore them."""
        for name in ("inputs_embeds", "encoder_hidden_states", "output_attentions", "output_hidden_states"):
            if given.get(name) is not None and given[name] is not False:
                hint = "; see longspan.nn.recorder.recording" if name.startswith("output") else ""
                raise Unsupported(f"{type(self).__name__} does not take {name}{hint}")


def tied_names(module: nn.Module) -> dict[str, str]:
    """Parameters that are one tensor under several names, each with the first of them."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    return tied


def key_mask(mask: Tensor | None) -> Tensor | None:
    """True for tokens that are not padding; None if none is."""
    if mask is None:
        return None
    if mask.dim() != 2:
        raise InvalidInput(f"attention_mask must be (batch, length), not {tuple(mask.shape)}")
    real = mask.bool()
    return None if bool(real.all()) else real


def positions_of(mask: Tensor | None) -> Tensor | None:
    """The position of each token among the real ones of its row."""
    return None if mask is None else (mask.long().cumsum(1) - 1).clamp_min(0)


def accepted(function: Any, **given: Any) -> dict[str, Any]:
    """The inputs that are not None, if a function takes them; one that it does not take is refused."""
    known = signature(function).parameters
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in chosen:
        if name not in known:
            raise Unsupported(f"this model takes no {name}")
    return chosen


__all__ = ["LongspanPreTrainedModel", "accepted", "key_mask", "positions_of", "tied_names"]
