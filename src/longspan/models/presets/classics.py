"""The Transformer, and language models that are its decoder: GPT, GPT-2 and GPT-3."""

from longspan.models.presets.row import DROPOUT, WEIGHTS, Preset, rows, sizes

# The Transformer

_TRANSFORMER = Preset(
    model="transformer",
    paper="Vaswani et al. 2017",
    options={"vocabulary": 37000},
    lengths=(512,),
    remarks="37000 sub-words shared by English and German; source, target and output share one matrix",
)

# GPT

_GPT2 = Preset(
    model="decoder",
    paper="Radford et al. 2019",
    options={
        **WEIGHTS,
        **DROPOUT,
        "norm_position": "pre",
        "residual_init": True,
        "vocabulary": 50257,
        "max_length": 1024,
    },
    lengths=(1024,),
)
_BANDS = [{"name": "softmax"}, {"name": "window", "window": 256}]
_GPT3 = Preset(
    model="decoder",
    paper="Brown et al. 2020",
    options={**_GPT2.options, "max_length": 2048, "attention": _BANDS},
    lengths=(2048,),
    remarks="dense and banded layers alternate; the width of the band is not published: 256 here",
)

ROWS: dict[str, Preset] = {
    **rows(
        _TRANSFORMER,
        {
            "transformer-base": {"options": sizes(6, 512, 8), "parameters": "65M", "exact": 63_082_496},
            "transformer-big": {
                "options": {**sizes(6, 1024, 16), "dropout": 0.3},
                "parameters": "213M",
                "exact": 214_245_376,
            },
        },
    ),
    "gpt": Preset(
        model="decoder",
        paper="Radford et al. 2018",
        options={**WEIGHTS, **DROPOUT, **sizes(12, 768, 12), "vocabulary": 40478, "max_length": 512},
        parameters="117M",
        exact=116_534_784,
        lengths=(512,),
    ),
    **rows(
        _GPT2,
        {
            "gpt2": {
                "options": sizes(12, 768, 12),
                "parameters": "117M",
                "exact": 124_439_808,
                "remarks": "the paper's 117M is a mistake, later corrected to 124M",
            },
            "gpt2-medium": {
                "options": sizes(24, 1024, 16),
                "parameters": "345M",
                "exact": 354_823_168,
                "remarks": "the paper's 345M is a mistake, later corrected to 355M",
            },
            "gpt2-large": {"options": sizes(36, 1280, 20), "parameters": "762M", "exact": 774_030_080},
            "gpt2-xl": {"options": sizes(48, 1600, 25), "parameters": "1542M", "exact": 1_557_611_200},
        },
    ),
    **rows(
        _GPT3,
        {
            "gpt3-small": {"options": sizes(12, 768, 12), "parameters": "125M"},
            "gpt3-medium": {"options": sizes(24, 1024, 16), "parameters": "350M"},
            "gpt3-large": {"options": sizes(24, 1536, 16), "parameters": "760M"},
            "gpt3-xl": {
                "options": sizes(24, 2048, 16),
                "parameters": "1.3B",
                "remarks": f"{_GPT3.remarks}; 16 heads of 128, because the printed 24 heads do not give the width 2048",
            },
            "gpt3-2.7b": {"options": sizes(32, 2560, 32), "parameters": "2.7B"},
            "gpt3-6.7b": {"options": sizes(32, 4096, 32), "parameters": "6.7B"},
            "gpt3-13b": {
                "options": sizes(40, 5120, 40),
                "parameters": "13.0B",
                "remarks": f"{_GPT3.remarks}; width 5120, because the printed 5140 is not 40 heads of 128",
            },
            "gpt3-175b": {"options": sizes(96, 12288, 96), "parameters": "175.0B"},
        },
    ),
}
