"""The table of models, and `build`. To add a model, write its file and its line here."""

from typing import Any

from longspan import config
from longspan.errors import UnknownName, suggest
from longspan.models import presets
from longspan.models.base import Model
from longspan.registry import Registry

MODELS: Registry[Model] = Registry(
    "model",
    "longspan.models",
    "longspan.models.base:Model",
    {
        "encoder": "longspan.models.encoder:Encoder",
        "decoder": "longspan.models.decoder:Decoder",
        "transformer": "longspan.models.transformer:Transformer",
        "recurrent": "longspan.models.classics.recurrent:RecurrentLanguageModel",
        "regressor": "longspan.models.classics.recurrent:SeriesRegressor",
        "series_transformer": "longspan.models.series:SeriesTransformer",
        "seq2seq": "longspan.models.classics.seq2seq:Seq2Seq",
        "elmo": "longspan.models.classics.elmo:Elmo",
        "word2vec": "longspan.models.classics.word2vec:Word2Vec",
        "etc_model": "longspan.models.etc_model:EtcModel",
        "universal": "longspan.models.universal:UniversalTransformer",
        "universal_decoder": "longspan.models.universal:UniversalDecoder",
        "universal_encoder": "longspan.models.universal:UniversalEncoder",
        "transformer_xl": "longspan.models.transformer_xl:TransformerXL",
        "vit": "longspan.models.vision.vit:VisionTransformer",
        "image_decoder": "longspan.models.vision.image_decoder:ImageDecoder",
        "axial_transformer": "longspan.models.vision.axial_transformer:AxialTransformer",
        "resnet": "longspan.models.vision.resnet:ResNet",
        "table_transformer": "longspan.models.table:TableTransformer",
        "set_transformer": "longspan.models.set_model:SetTransformer",
        "perceiver": "longspan.models.perceiver:Perceiver",
        "compressive": "longspan.models.compressive:CompressiveTransformer",
        "electra": "longspan.models.electra:Electra",
    },
)
names, find = MODELS.names, MODELS.find


def build(name: str, **options: Any) -> Model:
    """Builds a model or a preset by its name. `options` override those of a preset.

    >>> model = build("decoder", vocabulary=256, width=128, layers=2, attention=["softmax", "window"])
    >>> model = build("gpt2", dropout=0.0)
    """
    if name in presets.PRESETS:
        row = presets.find(name)
        model = find(row.model)
        return model.build(**{**row.options, **config.current_names(model.Options, options, name)})
    if name not in MODELS:
        raise UnknownName(f"no model or preset is called {name!r}: {suggest(name, [*names(), *presets.names()])}")
    return find(name).build(**options)
