"""Llama and the models that share its architecture."""

from longspan.models.presets.row import Preset, rows, sizes

_LLAMA = Preset(
    model="decoder",
    paper="Touvron et al. 2023",
    options={
        "norm_position": "pre",
        "norm": "rms",
        "eps": 1e-6,
        "activation": "swiglu",
        "bias": False,
        "position": "rotary",
        "scale": False,
        "dropout": 0.0,
        "tied": False,
        "init": "normal",
        "vocabulary": 32000,
        "max_length": 2048,
    },
    lengths=(2048,),
)
_LLAMA3 = {"vocabulary": 128256, "max_length": 8192, "eps": 1e-5, "rotary_base": 500000.0}
_LONG = {"kind": "llama3", "low": 1.0, "high": 4.0, "original_length": 8192}  # Llama 3.1 and 3.2
_TINY = {"max_length": 512, "vocabulary": 512, "tied": True, "eps": 1e-5}

ROWS: dict[str, Preset] = {
    **rows(
        _LLAMA,
        {
            "llama-7b": {"options": sizes(32, 4096, 32, 11008), "parameters": "6.7B", "exact": 6_738_415_616},
            "llama-13b": {"options": sizes(40, 5120, 40, 13824), "parameters": "13.0B", "exact": 13_015_864_320},
            "llama-33b": {"options": sizes(60, 6656, 52, 17920), "parameters": "32.5B", "exact": 32_528_943_616},
            "llama-65b": {"options": sizes(80, 8192, 64, 22016), "parameters": "65.2B", "exact": 65_285_660_672},
            "llama2-7b": {
                "options": {**sizes(32, 4096, 32, 11008), "eps": 1e-5, "max_length": 4096},
                "parameters": "7B",
                "exact": 6_738_415_616,
                "lengths": (4096,),
            },
            "llama2-70b": {
                "options": {**sizes(80, 8192, 64, 28672), "kv_heads": 8, "eps": 1e-5, "max_length": 4096},
                "parameters": "70B",
                "exact": 68_976_648_192,
                "lengths": (4096,),
            },
            "llama3-8b": {
                "paper": "Grattafiori et al. 2024",
                "options": {**sizes(32, 4096, 32, 14336), "kv_heads": 8, **_LLAMA3},
                "parameters": "8B",
                "exact": 8_030_261_248,
                "lengths": (8192,),
            },
            "llama3-70b": {
                "paper": "Grattafiori et al. 2024",
                "options": {**sizes(80, 8192, 64, 28672), "kv_heads": 8, **_LLAMA3},
                "parameters": "70B",
                "exact": 70_553_706_496,
                "lengths": (8192,),
            },
            "llama3.1-8b": {
                "paper": "Grattafiori et al. 2024",
                "options": {
                    **sizes(32, 4096, 32, 14336),
                    "kv_heads": 8,
                    **_LLAMA3,
                    "max_length": 131072,
                    "rotary_scaling": {**_LONG, "factor": 8.0},
                },
                "parameters": "8B",
                "exact": 8_030_261_248,
                "lengths": (131072,),
            },
            "llama3.2-1b": {
                "paper": "Grattafiori et al. 2024",
                "options": {
                    **sizes(16, 2048, 32, 8192),
                    "kv_heads": 8,
                    **_LLAMA3,
                    "tied": True,
                    "max_length": 131072,
                    "rotary_scaling": {**_LONG, "factor": 32.0},
                },
                "parameters": "1.23B",
                "exact": 1_235_814_400,
                "lengths": (131072,),
            },
            "tinyllama-1.1b": {
                "paper": "Zhang et al. 2024",
                "options": {**sizes(22, 2048, 32, 5632), "kv_heads": 4, "eps": 1e-5},
                "parameters": "1.1B",
                "exact": 1_100_048_384,
            },
            "smollm2-135m": {
                "paper": "Allal et al. 2025",
                "options": {
                    **sizes(30, 576, 9, 1536),
                    "kv_heads": 3,
                    "vocabulary": 49152,
                    "max_length": 8192,
                    "rotary_base": 100000.0,
                    "eps": 1e-5,
                    "tied": True,
                },
                "parameters": "135M",
                "exact": 134_515_008,
                "lengths": (8192,),
            },
            "stories260k": {
                "paper": "Karpathy 2023",
                "options": {**sizes(5, 64, 8, 172), "kv_heads": 4, **_TINY},
                "parameters": "260K",
                "exact": 260_032,
                "lengths": (512,),
                "remarks": "trained on TinyStories (Eldan & Li 2023)",
            },
        },
    ),
}
