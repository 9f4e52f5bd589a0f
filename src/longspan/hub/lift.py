"""Turn a BERT-like checkpoint into an ETC (Ainslie et al. 2020, section 3.4)."""

import torch

from longspan import config
from longspan.data.text.sentence_tokens import sentence_options
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.models.encoder import Encoder
from longspan.models.etc_model import EtcModel
from longspan.models.lift_encoder import left_out, lift, lifted_options, untrained


def lift_to_etc(pretrained: Pretrained) -> Pretrained:
    """An ETC with the weights of an encoder and its tokenizer; a folder of longspan's keeps it.

    `fresh` names what is new and untrained, `unused` what the encoder had and ETC has not: absolute positions and
    next-sentence prediction. Everything else is copied, projections into both inputs.

    >>> lift_to_etc(hub.load("bert-base-uncased")).model.save("etc-base")
    """
    encoder, kind = pretrained.model, pretrained.family or pretrained.model.name
    if not isinstance(encoder, Encoder):
        raise Unsupported(f"an ETC is made from an encoder such as BERT or RoBERTa, and this is {kind}")
    if pretrained.tokenizer is None:
        raise InvalidInput("the folder has no tokenizer, and an ETC needs to know the tokens that end sentences")
    options = {**lifted_options(encoder), **sentence_options(pretrained.tokenizer)}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the same labels at each conversion
        model = EtcModel(config.make(EtcModel.Options, options, "etc_model")).to(encoder.dtype)
    lift(encoder, model)
    return Pretrained(
        model.eval(),
        labels=pretrained.labels,
        fresh=untrained(encoder, model),
        unused=left_out(encoder, model),
        tokenizer=pretrained.tokenizer,
        path=pretrained.path,
    )


__all__ = ["lift_to_etc"]
