"""GPT's input for tasks (Radford et al. 2018, section 3.3 and figure 1), and its auxiliary loss.

    one text          start  text  extract
    entailment        start  premise  delimiter  hypothesis  extract
    similarity        both orders of the pair; the two states at `extract` are added before the linear layer
    multiple choice   start  context  delimiter  choice  extract, for each choice; a softmax over their scores

The three tokens are new: their embeddings are learned with the task. A head reads the state at `extract`, the last
token. The auxiliary loss is that of language modelling on the same tokens (section 3.2):
L3 = L2 + lm_weight · L1. As in the released code, L1 of a text is the mean over its tokens after the first, and L1 of
a pair in both orders, or of several choices, the mean over these.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.tokenizers.template import with_template
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.models.base import CausalTextHeads, Model
from longspan.tasks.base import TaskLoss, head_output
from longspan.tasks.masked_metrics import wide
from longspan.tasks.text_inputs import TextTaskOptions, flat, read

START, DELIMITER, EXTRACT = "<start>", "<delimiter>", "<extract>"
FORMATS = ("family", "gpt")


@dataclass(frozen=True, kw_only=True)
class GptTaskOptions(TextTaskOptions):
    """The options of tasks that causal models can learn in GPT's format."""

    format: str = option(
        "family",
        "tokens around texts: those of the model's family, or gpt: start, delimiter and extract tokens, which are "
        "added to the vocabulary (causal models)",
        choices=FORMATS,
    )
    lm_weight: float = option(
        0.0, "weight of the language-model loss on the task's texts, for causal models; GPT has 0.5", low=0
    )


def prepare_tokenizer(tokenizer: Tokenizer, options: GptTaskOptions) -> Tokenizer:
    """The tokenizer with the tokens and templates of the format."""
    if options.format != "gpt":
        return tokenizer
    return with_template(
        tokenizer,
        [START, DELIMITER, EXTRACT],
        single=f"{START}:0 $A:0 {EXTRACT}:0",
        pair=f"{START}:0 $A:0 {DELIMITER}:0 $B:0 {EXTRACT}:0",
    )


@dataclass(frozen=True)
class TaskReader:
    """Reads batches for a task: the outputs of its head, and the auxiliary loss if it has a weight.

    `causal` says that texts are in GPT's format, which only a causal model can use.
    """

    task: str
    causal: bool = False
    lm_weight: float = 0.0

    @classmethod
    def of(cls, task: str, options: GptTaskOptions) -> "TaskReader":
        return cls(task, options.format == "gpt", options.lm_weight)

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """The output of the head, in float32 at least."""
        self._check(model)
        return wide(read(model, batch, self.task))

    def outputs_and_language(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The output of the head, and the auxiliary loss summed over examples; None without a weight."""
        if not self.lm_weight:
            return self.outputs(model, batch), None
        reader, rows = CausalTextHeads.require(model, self.task), flat(batch)
        segments = rows["segments"] if reader.segment_kinds else None
        outputs, logits = reader.outputs_and_logits(rows["ids"], key_mask=rows["mask"], segments=segments)
        nats = language_nats(logits, rows["ids"], rows["mask"])
        per_example = torch.unflatten(nats, 0, (len(batch["ids"]), -1)).mean(1)
        return wide(head_output(reader, outputs, self.task)), per_example.sum()

    def loss(self, loss: Tensor, language: Tensor | None) -> TaskLoss:
        """The loss of the task with the auxiliary one."""
        if language is None:
            return TaskLoss(loss, {})
        return TaskLoss(loss + self.lm_weight * language, {self.task: loss.detach(), "language": language.detach()})

    def _check(self, model: Model) -> None:
        if self.causal:
            CausalTextHeads.require(model, self.task)


def language_nats(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """For each row, the mean loss of its real tokens after the first."""
    nats = cross_entropy(wide(logits[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    real = mask[:, 1:]
    return (torch.unflatten(nats, 0, real.shape) * real).sum(1) / real.sum(1).clamp(min=1)


__all__ = ["DELIMITER", "EXTRACT", "START", "GptTaskOptions", "TaskReader", "language_nats", "prepare_tokenizer"]
