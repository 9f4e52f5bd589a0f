"""`to_transformers`: a class of transformers around a model of ours that is there, and its folder."""

from pathlib import Path
from typing import Any

from longspan.errors import UnknownName, Unsupported, suggest
from longspan.hub.load_checkpoint import load
from longspan.hub.pretrained import Pretrained
from longspan.hub.transformers_models import heads
from longspan.hub.transformers_models.auto import register_models
from longspan.hub.transformers_models.causal import LongspanForCausalLM
from longspan.hub.transformers_models.configuration import LongspanConfig
from longspan.hub.transformers_models.seq2seq import LongspanForConditionalGeneration
from longspan.models.base import CausalModel, EncoderDecoder, Model, TextStates
from longspan.models.image_base import ImageHeads

TASKS: dict[str, Any] = {
    "masked": heads.LongspanForMaskedLM,
    "classify": heads.LongspanForSequenceClassification,
    "regress": heads.LongspanForSequenceClassification,
    "tag": heads.LongspanForTokenClassification,
    "span": heads.LongspanForQuestionAnswering,
    "choose": heads.LongspanForMultipleChoice,
    "next": LongspanForCausalLM,
    "target": LongspanForConditionalGeneration,
    "states": heads.LongspanModel,
}
ROLES = ("bos", "eos", "pad")


def wrap(source: Model | Pretrained | Path | str, task: str | None) -> Any:
    """The class for the task around the model, which it shares."""
    register_models()
    if isinstance(source, (str, Path)):
        source = load(source)
    pretrained = Pretrained(source) if isinstance(source, Model) else source
    model = pretrained.model
    kind = _kind(model, task)
    config = LongspanConfig.of(model, **_token_ids(pretrained), **_labels(pretrained))
    shell = kind(config, core=model)
    return shell.train(model.training)


def _kind(model: Model, task: str | None) -> Any:
    if task is not None and task not in TASKS:
        raise UnknownName(f"no task is called {task!r}: {suggest(task, TASKS)}")
    if isinstance(model, ImageHeads):
        if task not in (None, "classify"):
            raise Unsupported(f"a {model.name} reads images; its task is 'classify', not {task!r}")
        return heads.LongspanForImageClassification
    trained = [head.task for head in getattr(model.options, "tasks", None) or () if head.task in TASKS]
    if task is not None:
        if task not in ("next", "target", "states", *trained):
            told = f"its heads are for {', '.join(trained)}" if trained else "it has no task heads"
            raise Unsupported(
                f"this {model.name} has no head for {task!r}: {told}; AutoModelFor….from_pretrained(FOLDER) adds one"
            )
        return TASKS[task]
    if isinstance(model, EncoderDecoder):
        return LongspanForConditionalGeneration
    if trained:
        return TASKS[trained[0]]
    if isinstance(model, CausalModel):
        return LongspanForCausalLM
    if isinstance(model, TextStates):
        return heads.LongspanModel
    raise Unsupported(f"transformers has no class for a {model.name}: it neither reads texts nor images with a head")


def _token_ids(pretrained: Pretrained) -> dict[str, Any]:
    known = {f"{role}_token_id": pretrained.config.get(f"{role}_token_id") for role in ROLES}
    tokenizer = pretrained.tokenizer
    if tokenizer is not None:
        for role in ROLES:
            token = tokenizer.special.get(role)
            known[f"{role}_token_id"] = (
                known[f"{role}_token_id"] if token is None else tokenizer.inner.token_to_id(token)
            )
    start = pretrained.config.get("decoder_start_token_id")
    known["decoder_start_token_id"] = known["bos_token_id"] if start is None else start
    return {key: value for key, value in known.items() if value is not None}


def _labels(pretrained: Pretrained) -> dict[str, Any]:
    names = pretrained.labels
    return {} if not names else {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


__all__ = ["wrap"]
