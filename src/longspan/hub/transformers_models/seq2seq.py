"""Encoder–decoders: a source is read once, and its beams share what was read."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers import GenerationMixin
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.transformers_models.base import LongspanPreTrainedModel, key_mask
from longspan.hub.transformers_models.state_cache import LongspanCache, own_state
from longspan.models.base import EncoderDecoder
from longspan.nn.loss import IGNORED


@dataclass
class ReadSource(ModelOutput):  # type: ignore[misc]
    """A source that was read, as generation carries it: beams repeat the rows, not what was read."""

    last_hidden_state: Tensor | None = None
    rows: Tensor | None = None
    state: Any = None

    def begin(self) -> Any:
        """The state before the first token of each row."""
        assert self.rows is not None
        plain = len(self.rows) == int(self.rows[-1]) + 1
        return self.state if plain else self.state.select(self.rows)


class SourceReader(nn.Module):
    """What `get_encoder` gives: it reads a source once, for any number of targets."""

    main_input_name = "input_ids"

    def __init__(self, core: EncoderDecoder) -> None:
        super().__init__()
        self.core = (core,)  # in a tuple: its weights stay the model's

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **given: Any) -> ReadSource:
        core, seen = self.core[0], []
        encoder = getattr(core, "encoder", None)
        hook = encoder.register_forward_hook(lambda _, args, out: seen.append(out)) if encoder is not None else None
        try:
            state = core.start(len(input_ids), source=input_ids, source_mask=key_mask(attention_mask))
        finally:
            if hook is not None:
                hook.remove()
        states = seen[-1] if seen and isinstance(seen[-1], Tensor) else None
        return ReadSource(states, torch.arange(len(input_ids), device=input_ids.device), state)


class LongspanForConditionalGeneration(LongspanPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model that reads a source and writes a target."""

    ability = EncoderDecoder
    core: EncoderDecoder
    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_encoder(self, modality: str | None = None) -> SourceReader:
        return SourceReader(self.core)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The targets moved on by one token; their padding is not counted in the loss."""
        begin = self.config.decoder_start_token_id
        if begin is None:
            raise InvalidInput("config.decoder_start_token_id must say which token a target begins with")
        padding = self.config.pad_token_id
        ids = labels.masked_fill(labels == IGNORED, 0 if padding is None else padding)
        return pad(ids[:, :-1], (1, 0), value=begin)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **given: Any,
    ) -> Seq2SeqLMOutput:
        self.check_plain(given)
        state = own_state(past_key_values, type(self).__name__)
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if decoder_input_ids is None:
            raise InvalidInput(f"{type(self).__name__} reads decoder_input_ids or labels")
        if decoder_attention_mask is not None and not bool(decoder_attention_mask[:, 0].all()):
            raise Unsupported(f"{type(self).__name__} takes targets padded on the right only")
        if state is None and encoder_outputs is None and not use_cache:
            if input_ids is None:
                raise InvalidInput(f"{type(self).__name__} reads input_ids, the source")
            logits = self.core(input_ids, decoder_input_ids, source_mask=key_mask(attention_mask))
        else:
            if state is None:
                state = self._begin(input_ids, attention_mask, encoder_outputs)
            logits, state = self.core.extend(decoder_input_ids, state)
            if isinstance(past_key_values, LongspanCache):
                past_key_values.state = state
            elif use_cache:
                past_key_values = LongspanCache(state)
        loss = None
        if labels is not None:
            how = "mean" if num_items_in_batch is None else "sum"
            loss = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction=how)
            loss = loss if num_items_in_batch is None else loss / num_items_in_batch
            more = self.core.auxiliary_loss() if self.training else None
            loss = loss if more is None else loss + more
        states = getattr(encoder_outputs, "last_hidden_state", None)
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, past_key_values=past_key_values, encoder_last_hidden_state=states
        )

    def _begin(self, input_ids: Tensor | None, attention_mask: Tensor | None, encoder_outputs: Any) -> Any:
        if isinstance(encoder_outputs, ReadSource):
            return encoder_outputs.begin()
        if encoder_outputs is not None:
            raise Unsupported(
                f"{type(self).__name__} cannot read a source from its hidden states; pass get_encoder()(ids, mask)"
            )
        if input_ids is None:
            raise InvalidInput(f"{type(self).__name__} reads input_ids, the source")
        return self.get_encoder()(input_ids, attention_mask).begin()


__all__ = ["LongspanForConditionalGeneration", "ReadSource"]
