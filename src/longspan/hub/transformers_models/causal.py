"""Next-token prediction: training, and generation with a state of the mechanisms' own size."""

from inspect import signature
from typing import Any

from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.transformers_models.base import LongspanPreTrainedModel, accepted, key_mask, positions_of
from longspan.hub.transformers_models.state_cache import LongspanCache, own_state
from longspan.models.base import CausalModel


class LongspanForCausalLM(LongspanPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model that predicts the next token."""

    ability = CausalModel
    core: CausalModel
    _is_stateful = True  # transformers then refuses assisted generation, which takes tokens back

    def __init__(self, config: Any, core: Any = None) -> None:
        super().__init__(config, core)
        if self.core.reads_source:
            raise Unsupported(f"a {self.core.name} reads a source; use AutoModelForSeq2SeqLM")

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the model makes its state itself

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **given: Any,
    ) -> CausalLMOutputWithPast:
        self.check_plain(given)
        if input_ids is None:
            raise InvalidInput(f"{type(self).__name__} reads input_ids")
        state, length = own_state(past_key_values, type(self).__name__), input_ids.shape[1]
        mask = key_mask(attention_mask)
        left = mask is not None and not bool(mask[:, 0].all())
        if left and not self.core.left_padding:
            raise Unsupported(
                f"this {self.core.name} cannot read texts padded on the left: a mechanism of it counts positions; "
                "read texts one at a time"
            )
        positions = positions_of(mask) if left and position_ids is None else position_ids
        if state is None and not use_cache:
            if not left and "key_mask" not in signature(self.core.forward).parameters:
                mask = None  # of padding on the right, which no token of a causal model reads
            counted = self._counted(positions, mask, length)
            if counted is None:
                logits = self.core.text_logits(input_ids, key_mask=mask)
            else:
                logits = self.core(input_ids, **accepted(self.core.forward, key_mask=mask, positions=counted))
        else:
            state = self.core.start(len(input_ids)) if state is None else state
            past = state.length
            if mask is not None and mask.shape[1] == past + length:
                mask, positions = mask[:, past:], positions if positions is None else positions[:, -length:]
            given_mask = None if mask is None or bool(mask.all()) else mask
            counted = self._counted(positions, mask, length, past)
            last = labels is None and not isinstance(logits_to_keep, Tensor) and logits_to_keep == 1
            logits, state = self.core.extend(input_ids, state, key_mask=given_mask, positions=counted, last=last)
            if isinstance(past_key_values, LongspanCache):
                past_key_values.state = state
            else:
                past_key_values = LongspanCache(state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **given)
            loss = self._with_auxiliary(loss)
        if isinstance(logits_to_keep, Tensor) or logits_to_keep > 1:
            kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)
            logits = logits[:, kept]
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values if state else None)

    def _counted(self, positions: Tensor | None, mask: Tensor | None, length: int, past: int = 0) -> Tensor | None:
        """Positions that the model would not count by itself."""
        if positions is None:
            return None
        positions = positions[:, -length:]
        plain = (positions == positions.new_tensor(range(past, past + length))).all()
        return None if mask is None and bool(plain) else positions

    def _with_auxiliary(self, loss: Tensor) -> Tensor:
        more = self.core.auxiliary_loss() if self.training else None
        return loss if more is None else loss + more


__all__ = ["LongspanForCausalLM"]
