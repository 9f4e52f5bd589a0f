"""Encoders with tables narrower than their states: ALBERT, and ELECTRA's discriminators and pairs."""

from longspan.models.presets.row import DROPOUT, WEIGHTS, Options, Preset, rows, sizes

_BERT: Options = {**WEIGHTS, "embedding_norm": True, "segments": 2, "max_length": 512, "eps": 1e-12, "padding": 0}

# ALBERT

_ALBERT = Preset(
    model="encoder",
    paper="Lan et al. 2020",
    options={
        **_BERT,
        **DROPOUT,
        "vocabulary": 30000,
        "embedding_width": 128,
        "embedding_projection": True,
        "groups": 1,
        "tasks": [{"task": "pool", "activation": "tanh"}],
    },
    lengths=(512,),
    remarks=(
        "one block for all layers, which saves weights but no computation; the second release (v2) has no dropout, "
        "more text, and 10M steps (base) or 3M (others) instead of 125k"
    ),
)

# ELECTRA

_ELECTRA = Preset(
    model="encoder",
    paper="Clark et al. 2020",
    options={**_BERT, **DROPOUT, "activation": "gelu", "vocabulary": 30522},
    lengths=(512,),
    remarks="the body of the discriminator; checkpoints also have the detection head",
)
_PAIR = Preset(
    model="electra",
    paper="Clark et al. 2020",
    options={"mask": 103},
    lengths=(512,),
    remarks="generator and discriminator, as in pre-training; they share their tables",
)
_SIZES = {"small": sizes(12, 256, 4), "base": sizes(12, 768, 12), "large": sizes(24, 1024, 16)}

ROWS: dict[str, Preset] = {
    **rows(
        _ALBERT,
        {
            "albert-base": {"options": sizes(12, 768, 12), "parameters": "12M", "exact": 11_683_584},
            "albert-large": {"options": sizes(24, 1024, 16), "parameters": "18M", "exact": 17_683_968},
            "albert-xlarge": {"options": sizes(24, 2048, 16), "parameters": "60M", "exact": 58_724_864},
            "albert-xxlarge": {
                "options": {**sizes(12, 4096, 64), "dropout": 0.0, "attention_dropout": 0.0},
                "parameters": "235M",
                "exact": 222_595_584,
                "remarks": f"{_ALBERT.remarks}; the paper removes dropout at this size",
            },
        },
    ),
    **rows(
        _ELECTRA,
        {
            "electra-small": {
                "options": {**_SIZES["small"], "embedding_width": 128},
                "parameters": "14M",
                "exact": 13_483_008,
            },
            "electra-base": {"options": _SIZES["base"], "parameters": "110M", "exact": 108_891_648},
            "electra-large": {"options": _SIZES["large"], "parameters": "335M", "exact": 334_092_288},
        },
    ),
    **rows(
        _PAIR,
        {
            "electra-small-pair": {
                "options": _SIZES["small"],
                "remarks": f"{_PAIR.remarks}; the released small model has a generator of full width",
            },
            "electra-base-pair": {
                "options": {**_SIZES["base"], "embedding_width": None, "generator_fraction": 1 / 3},
            },
            "electra-large-pair": {"options": {**_SIZES["large"], "embedding_width": None}},
        },
    ),
}
