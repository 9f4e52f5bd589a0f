"""Models with memory or recurrence: Transformer-XL, Compressive, Universal, LSTM and GRU, ELMo."""

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

# Recurrent layers

_SEQ2SEQ = Preset(model="seq2seq", paper="", options={}, lengths=(50,))

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
                "exact": 151_107_538,
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
                "exact": 285_205_322,
                "lengths": (384,),
                "remarks": (
                    "the sizes of the release; the printed 257M would be 16 of its 18 layers (257,919,818); "
                    "evaluation: segment 128, memory 1600, clamp 1000, same_length"
                ),
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
            "universal-base": {"exact": 67_280_896},
            "universal-adaptive": {
                "options": {"halting": True},
                "exact": 67_280_896 + 2 * 1025,
                "remarks": f"{_UNIVERSAL.remarks}, with halting at most 12 times",
            },
        },
    ),
    "lstm-medium": Preset(
        model="recurrent",
        paper="Zaremba et al. 2014",
        options={"vocabulary": 10000, "width": 650, "layers": 2, "dropout": 0.5, "init_bound": 0.05},
        exact=19_780_400,
        lengths=(35,),
        remarks="the medium model, for the Penn Treebank's 10000 words; torch has two biases per gate",
    ),
    **rows(
        _SEQ2SEQ,
        {
            "seq2seq-sutskever": {
                "paper": "Sutskever et al. 2014",
                "options": {"vocabulary": 80000, "source_vocabulary": 160000},
                "parameters": "384M",
                "exact": 384_144_000,
                "lengths": (),
                "remarks": "4 layers of 1000 on each side, the source reversed; torch has two biases per gate",
            },
            "seq2seq-bahdanau": {
                "paper": "Bahdanau et al. 2015",
                "options": {
                    "vocabulary": 30000,
                    "embedding": 620,
                    "layers": 1,
                    "cell": "gru",
                    "bidirectional": True,
                    "reverse_source": False,
                    "decoder": "bahdanau",
                    "init": "bahdanau",
                },
                "exact": 80_451_000,
                "remarks": "RNNsearch-50; torch has two biases per gate, and the later form of the GRU",
            },
            "seq2seq-luong": {
                "paper": "Luong et al. 2015",
                "options": {
                    "vocabulary": 50000,
                    "decoder": "luong",
                    "score": "general",
                    "input_feeding": True,
                    "dropout": 0.2,
                    "init_bound": 0.1,
                },
                "exact": 221_064_000,
                "remarks": "global attention with the general score; the paper's best model has reach='local_p'",
            },
        },
    ),
    "elmo-original": Preset(
        model="elmo",
        paper="Peters et al. 2018",
        options={},
        parameters="93.6M",
        lengths=(20,),
        remarks=(
            "93,600,864 parameters are trained, as torch's second biases stay 0; without the output layer of 793471 "
            "words; trained on 20 words at a time"
        ),
    ),
}
