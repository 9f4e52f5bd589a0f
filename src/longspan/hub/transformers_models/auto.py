"""Registers the classes with transformers' Auto classes, and our tokenizers' class for their folders."""

from functools import cache

import transformers

from longspan.hub.transformers_models import heads
from longspan.hub.transformers_models.causal import LongspanForCausalLM
from longspan.hub.transformers_models.configuration import MODEL_TYPE, LongspanConfig
from longspan.hub.transformers_models.seq2seq import LongspanForConditionalGeneration

CLASSES = {
    "AutoModel": heads.LongspanModel,
    "AutoModelForCausalLM": LongspanForCausalLM,
    "AutoModelForMaskedLM": heads.LongspanForMaskedLM,
    "AutoModelForSequenceClassification": heads.LongspanForSequenceClassification,
    "AutoModelForTokenClassification": heads.LongspanForTokenClassification,
    "AutoModelForQuestionAnswering": heads.LongspanForQuestionAnswering,
    "AutoModelForMultipleChoice": heads.LongspanForMultipleChoice,
    "AutoModelForSeq2SeqLM": LongspanForConditionalGeneration,
    "AutoModelForImageClassification": heads.LongspanForImageClassification,
}


@cache
def register_models() -> None:
    transformers.AutoConfig.register(MODEL_TYPE, LongspanConfig)
    for name, kind in CLASSES.items():
        getattr(transformers, name).register(LongspanConfig, kind)
    transformers.AutoTokenizer.register(LongspanConfig, fast_tokenizer_class=transformers.PreTrainedTokenizerFast)


__all__ = ["CLASSES", "register_models"]
