"""Task heads: masked tokens, labels of texts and of tokens, answers, choices, images; and plain hidden states."""

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import (
    BaseModelOutput,
    ImageClassifierOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from longspan import config as options_of
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.finetune import default_head
from longspan.hub.transformers_models.base import LongspanPreTrainedModel, accepted, key_mask
from longspan.hub.transformers_models.configuration import LongspanConfig
from longspan.models.base import Model, TextHeads, TextStates
from longspan.models.image_base import ImageHeads
from longspan.models.registry import find
from longspan.nn.heads import Head

LABELLED = ("classify", "regress", "tag")


class _Headed(LongspanPreTrainedModel):
    """A class that reads one head; a model without it gets a new one."""

    ability: ClassVar[type[Model]] = TextHeads
    core: Any

    def prepare(self, config: LongspanConfig) -> None:
        if config.model is None:
            return
        kind = find(config.model)
        if not issubclass(kind, self.ability):
            return  # which is refused by name
        heads = config.heads()
        task = self.head_task(config)
        found = [head for head in heads if head.task == task]
        labels = {"labels": config.num_labels} if task in LABELLED else {}
        head = found[0] if found else default_head(kind, Head(task=task, **labels))
        if found and labels and head.labels != config.num_labels:
            head = replace(head, **labels, names=None)
        heads = [head if other.task == task else other for other in heads] if found else [*heads, head]
        config.options["tasks"] = [options_of.plain(head) for head in heads]

    def head_task(self, config: LongspanConfig) -> str:
        assert self.task is not None
        return self.task

    def read(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        given: dict[str, Any],
    ) -> Tensor:
        """The output of the class's head."""
        self.check_plain(given)
        if input_ids is None:
            raise InvalidInput(f"{type(self).__name__} reads input_ids")
        kinds = token_type_ids if self.core.segment_kinds else None
        inputs = accepted(self.core.outputs, key_mask=key_mask(attention_mask), segments=kinds, positions=position_ids)
        output: Tensor = self.core.outputs(input_ids, **inputs)[self.head_task(self.config)]
        return output

    def add_auxiliary(self, loss: Tensor) -> Tensor:
        more = self.core.auxiliary_loss() if self.training else None
        return loss if more is None else loss + more


class _Labelled(_Headed):
    """A class with logits and labels."""

    output: ClassVar[Any]

    def loss_of(self, logits: Tensor, labels: Tensor, given: dict[str, Any]) -> Tensor:
        loss: Tensor = self.loss_function(logits, labels, self.config, **given)
        return loss

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **given: Any,
    ) -> Any:
        logits = self.read(input_ids, attention_mask, token_type_ids, position_ids, given)
        loss = None if labels is None else self.add_auxiliary(self.loss_of(logits, labels, given))
        return self.output(loss=loss, logits=logits)


class LongspanForMaskedLM(_Labelled):
    """The token behind each mask."""

    task, output = "masked", MaskedLMOutput

    def loss_of(self, logits: Tensor, labels: Tensor, given: dict[str, Any]) -> Tensor:
        loss: Tensor = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **given)
        return loss


class LongspanForSequenceClassification(_Labelled):
    """A label for each text, or numbers if `problem_type` is "regression"."""

    output = SequenceClassifierOutput

    def head_task(self, config: LongspanConfig) -> str:
        tasks = [head.task for head in config.heads()]
        regresses = "regress" in tasks and "classify" not in tasks
        return "regress" if regresses or config.problem_type == "regression" else "classify"

    def prepare(self, config: LongspanConfig) -> None:
        super().prepare(config)
        if config.model is not None and self.head_task(config) == "regress":
            config.problem_type = "regression"

    def loss_of(self, logits: Tensor, labels: Tensor, given: dict[str, Any]) -> Tensor:
        loss: Tensor = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **given)
        return loss


class LongspanForTokenClassification(_Labelled):
    """A label for each token."""

    task, output = "tag", TokenClassifierOutput


class LongspanForQuestionAnswering(_Headed):
    """Where an answer starts and ends."""

    task = "span"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **given: Any,
    ) -> QuestionAnsweringModelOutput:
        spans = self.read(input_ids, attention_mask, token_type_ids, position_ids, given)
        starts, ends = spans.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.add_auxiliary(self.loss_function(starts, ends, start_positions, end_positions, **given))
        return QuestionAnsweringModelOutput(loss=loss, start_logits=starts, end_logits=ends)


class LongspanForMultipleChoice(_Headed):
    """A score for each of several texts, (batch, choices, length), of which one is right."""

    task = "choose"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **given: Any,
    ) -> MultipleChoiceModelOutput:
        if input_ids is None or input_ids.dim() != 3:
            raise InvalidInput(f"{type(self).__name__} reads input_ids (batch, choices, length)")
        rows = [None if x is None else x.flatten(0, 1) for x in (input_ids, attention_mask, token_type_ids)]
        scores = self.read(rows[0], rows[1], rows[2], None, given).unflatten(0, input_ids.shape[:2])
        loss = None if labels is None else self.add_auxiliary(cross_entropy(scores, labels))
        return MultipleChoiceModelOutput(loss=loss, logits=scores)


class LongspanForImageClassification(_Headed):
    """A label for each image."""

    ability = ImageHeads
    task = "classify"
    main_input_name = "pixel_values"

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **given: Any) -> ImageClassifierOutput:
        self.check_plain(given)
        logits = self.core.outputs(pixel_values)["classify"]
        loss = None
        if labels is not None:
            loss = self.add_auxiliary(self.loss_function(labels, logits, self.config, **given))
        return ImageClassifierOutput(loss=loss, logits=logits)


class LongspanModel(LongspanPreTrainedModel):
    """The hidden states of a text."""

    ability = TextStates
    core: TextStates

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **given: Any
    ) -> BaseModelOutput:
        hidden = bool(given.pop("output_hidden_states", False))
        self.check_plain(given)
        if input_ids is None:
            raise InvalidInput(f"{type(self).__name__} reads input_ids")
        if given.get("past_key_values") is not None:
            raise Unsupported(f"{type(self).__name__} reads whole texts; for steps use AutoModelForCausalLM")
        mask = key_mask(attention_mask)
        if not hidden:
            return BaseModelOutput(last_hidden_state=self.core.text_states(input_ids, key_mask=mask))
        states = self.core.layer_states(input_ids, key_mask=mask)
        return BaseModelOutput(last_hidden_state=states[-1], hidden_states=tuple(states))


__all__ = [
    "LongspanForImageClassification",
    "LongspanForMaskedLM",
    "LongspanForMultipleChoice",
    "LongspanForQuestionAnswering",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
]
