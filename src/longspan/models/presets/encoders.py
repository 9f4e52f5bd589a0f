"""BERT, and encoders that differ from it in training only; each has the pooler of its checkpoints."""

from longspan.models.presets.row import DROPOUT, WEIGHTS, Preset, rows, sizes

POOLER = {"task": "pool", "activation": "tanh", "dropout": 0.0}
_BODY = {**WEIGHTS, **DROPOUT, "activation": "gelu", "embedding_norm": True, "eps": 1e-12}
_BERT = Preset(
    model="encoder",
    paper="Devlin et al. 2019",
    options={
        **_BODY,
        "vocabulary": 30522,
        "padding": 0,
        "segments": 2,
        "max_length": 512,
        "tasks": [POOLER],
    },
    lengths=(128, 512),
    remarks="with the pooler, without the heads for masked tokens and sentence pairs",
)
_ROBERTA = Preset(
    model="encoder",
    paper="Liu et al. 2019",
    options={
        **_BERT.options,
        "eps": 1e-5,
        "vocabulary": 50265,
        "padding": 1,
        "segments": 1,
        "position_offset": 2,
        "count_real": True,
    },
    lengths=(512,),
    remarks="with the checkpoints' pooler, which pre-training did not train, and their single segment row",
)

ROWS: dict[str, Preset] = {
    **rows(
        _BERT,
        {
            "bert-base": {"options": sizes(12, 768, 12), "parameters": "110M", "exact": 109_482_240},
            "bert-large": {"options": sizes(24, 1024, 16), "parameters": "340M", "exact": 335_141_888},
            "bert-base-cased": {
                "options": {**sizes(12, 768, 12), "vocabulary": 28996},
                "parameters": "110M",
                "exact": 108_310_272,
            },
        },
    ),
    **rows(
        _ROBERTA,
        {
            "roberta-base": {"options": sizes(12, 768, 12), "parameters": "125M", "exact": 124_645_632},
            "roberta-large": {"options": sizes(24, 1024, 16), "parameters": "355M", "exact": 355_359_744},
            "camembert-base": {
                "paper": "Martin et al. 2020",
                "options": {**sizes(12, 768, 12), "vocabulary": 32005},
                "parameters": "110M",
                "exact": 110_621_952,
            },
            "xlm-roberta-base": {
                "paper": "Conneau et al. 2020",
                "options": {**sizes(12, 768, 12), "vocabulary": 250002},
                "parameters": "270M",
                "exact": 278_043_648,
            },
        },
    ),
    "distilbert": Preset(
        model="encoder",
        paper="Sanh et al. 2019",
        options={**_BODY, **sizes(6, 768, 12), "vocabulary": 30522, "padding": 0, "max_length": 512},
        parameters="66M",
        exact=66_362_880,
        lengths=(512,),
    ),
}
