"""Models with memory or recurrence: Transformer-XL, Compressive, Universal.

These rows join the table with their families: `presets.PRESETS` lists `recurrence.ROWS` once the registry has them.
"""

from longspan.models.presets.row import Preset, rows, sizes

# Transformer-XL

_XL = Preset(model="transformer_xl", paper="Dai et al. 2019", options={})
_CHARACTERS = {"vocabulary": 204, "scale": True, "dropout": 0.1}
_WORDS = {"vocabulary": 267735, "cutoffs": (20000, 40000, 200000)}

# The Compressive Transformer

_COMPRESSIVE = Preset(
    model="compressive",
    paper="Rae et al. 2020",
    options=sizes(24, 1024, 16),
    remarks="width, heads and hidden are Transformer-XL's; the paper prints only layers and memories",
)

_UNIVERSAL = Preset(
    model="universal",
    paper="Dehghani et al. 2018",
    options={**sizes(6, 1024, 16), "vocabulary": 37000},
    lengths=(512,),
    remarks="one block of encoder and decoder each, applied 6 times",
)

ROWS: dict[str, Preset] = {
    **rows(
        _XL,
        {
            "transformer-xl-enwik8-12": {
                "options": {**_CHARACTERS, **sizes(12, 512, 8), "segment": 512, "memory": 512},
                "parameters": "41M",
                "exact": 41_055_436,
                "lengths": (512,),
                "remarks": "evaluation: segment 80, memory 2100, clamp 820, same_length",
            },
            "transformer-xl-enwik8-24": {
                "options": {**_CHARACTERS, **sizes(24, 1024, 8, 3072), "segment": 768, "memory": 768},
                "parameters": "277M",
                "exact": 277_231_820,
                "lengths": (768,),
                "remarks": "evaluation: segment 128, memory 3800, clamp 1000, same_length",
            },
            "transformer-xl-wt103-base": {
                "options": {
                    **_WORDS,
                    **sizes(16, 410, 10, 2100),
                    "head_dim": 41,
                    "segment": 150,
                    "memory": 150,
                },
                "parameters": "151M",
                "lengths": (150,),
                "remarks": "evaluation: segment 64, memory 640, clamp 400, same_length",
            },
            "transformer-xl-wt103-large": {
                "options": {
                    **_WORDS,
                    **sizes(18, 1024, 16),
                    "divisor": 4,
                    "untie": True,
                    "segment": 384,
                    "memory": 384,
                },
                "parameters": "257M",
                "lengths": (384,),
                "remarks": "the sizes add up to 285M; evaluation: segment 128, memory 1600, clamp 1000, same_length",
            },
        },
    ),
    **rows(
        _COMPRESSIVE,
        {
            "compressive-pg19": {
                "options": {"layers": 36, "vocabulary": 32000, "segment": 512, "memory": 512, "slots": 512, "ratio": 2},
                "lengths": (512,),
            },
            "compressive-enwik8": {
                "options": {
                    **sizes(24, 1024, 8, 3072),
                    "vocabulary": 204,
                    "segment": 768,
                    "memory": 768,
                    "slots": 1152,
                    "ratio": 3,
                },
                "lengths": (768,),
                "remarks": f"{_COMPRESSIVE.remarks}; evaluation: slots 3072",
            },
            "compressive-wt103": {
                "options": {
                    **_WORDS,
                    "layers": 18,
                    "segment": 512,
                    "memory": 512,
                    "slots": 512,
                    "ratio": 4,
                    "divisor": 4,
                },
                "lengths": (512,),
                "remarks": f"{_COMPRESSIVE.remarks}; evaluation: memory 500, slots 1500",
            },
        },
    ),
    **rows(
        _UNIVERSAL,
        {
            "universal-base": {},
            "universal-adaptive": {
                "options": {"halting": True},
                "remarks": f"{_UNIVERSAL.remarks}, with halting at most 12 times",
            },
        },
    ),
}
