"""Models with fixed patterns: Sparse, Memory Compressed, Longformer, LED, ETC, Big Bird."""

from dataclasses import replace
from typing import Any

from longspan.models.presets.row import BART, BASE, ROBERTA, Preset, rows, sizes

# Fixed patterns

_SPARSE = Preset(
    model="decoder",
    paper="Child et al. 2019",
    options={
        "vocabulary": 256,
        "norm_position": "pre",
        "activation": "gelu_sigmoid",
        "position": "axial_sum",
        "scale": False,
        "embedding_dropout": 0.0,
        "init": "fan_in",
        "init_std": 0.125,
        "residual_init": True,
        "tied": False,
        "zero_output": True,
    },
    remarks="init_std √0.125 is the reading of a later release",
)


def _growing(layers: int, windows: tuple[int, ...], dilations: tuple[int, ...]) -> list[dict[str, Any]]:
    """Longformer's language models: windows grow from bottom to top, and upper layers dilate 2 of their 8 heads.

    The paper's windows count both sides of a query, and causal ones have the left half only.
    """
    return [
        {
            "name": "window",  # the same as causal Longformer
            "window": windows[layer * len(windows) // layers] // 2,
            "dilation": (1,) * 6 + (1 + dilations[layer],) * 2,
        }
        for layer in range(layers)
    ]


_CHARACTERS = Preset(
    model="decoder",
    paper="Beltagy et al. 2020",
    options={"vocabulary": 204, "norm_position": "pre", "activation": "relu", "position": "relative", "dropout": 0.2},
    lengths=(2048, 23040, 32256),
    remarks=(
        "windows of the last training phase, 512 at the bottom to 8192 at the top (the printed table is shifted); "
        "positions are a bias per distance here, not Transformer-XL's matrix of width² per layer"
    ),
)
_WINDOWS = (512, 1024, 2048, 4096, 8192)

_ETC = Preset(
    model="etc_model",
    paper="Ainslie et al. 2020",
    options={**sizes(12, 768, 12), "vocabulary": 30522, "global_tokens": 256, "radius": 84, "labels": 12},
    lengths=(4096,),
    remarks="4096 long tokens and 256 global ones; without the heads of pre-training",
)

# Encoders that were initialised from RoBERTa, as in their checkpoints

_POOLER = {"task": "pool", "activation": "tanh"}
_LONGFORMER = Preset(
    model="encoder",
    paper="Beltagy et al. 2020",
    options={
        **ROBERTA,
        "eps": 1e-5,
        "segments": 1,
        "padding": 1,
        "count_real": True,
        "position_offset": 2,
        "max_length": 4096,
        "separator": 2,
        "attention": [{"name": "longformer", "window": 256}],
        "tasks": [_POOLER],
    },
    lengths=(4096,),
    remarks="as in its checkpoint: a pooler, one kind of segment, and two rows before position 0",
)
_BIGBIRD = Preset(
    model="encoder",
    paper="Zaheer et al. 2020",
    options={
        **ROBERTA,
        "vocabulary": 50358,
        "activation": "gelu_tanh",
        "eps": 1e-12,
        "segments": 2,
        "padding": 0,
        "max_length": 4096,
        "separator": 66,
        "attention": [{"name": "bigbird", "form": "itc", "block": 64, "window": 3, "random": 3}],
        "tasks": [_POOLER],
    },
    lengths=(4096,),
    remarks="ITC: the first and last block are global; as in its checkpoint: a pooler and two kinds of segments",
)

ROWS: dict[str, Preset] = {
    **rows(
        _SPARSE,
        {
            "sparse-enwik8": {
                "options": {
                    **sizes(30, 512, 8),
                    "axes": (96, 128),
                    "max_length": 12288,
                    "dropout": 0.4,
                    "attention": [{"name": "sparse", "pattern": "fixed", "stride": 128, "summary": 32}],
                },
                "parameters": "95M",
                "exact": 94_949_376,
                "lengths": (12288,),
            },
            "sparse-cifar10": {
                "options": {
                    **sizes(128, 256, 2, 512),
                    "key_dim": 64,
                    "axes": (32, 32, 3),
                    "max_length": 3072,
                    "dropout": 0.25,
                    "attention": [{"name": "sparse", "pattern": "strided", "stride": 128}],
                },
                "parameters": "59M",
                "exact": 59_196_672,
                "lengths": (3072,),
                "remarks": f"half-size feed-forward layers, queries and keys; stride not printed; {_SPARSE.remarks}",
            },
            "sparse-imagenet64": {
                "options": {
                    **sizes(48, 512, 16),
                    "axes": (64, 64, 3),
                    "max_length": 12288,
                    "dropout": 0.01,
                    "attention": [{"name": "sparse", "pattern": "strided", "stride": 128}],
                },
                "parameters": "152M",
                "exact": 151_644_672,
                "lengths": (12288,),
            },
        },
    ),
    "memory-compressed": replace(
        BASE,
        paper="Liu et al. 2018",
        options={
            **BASE.options,
            "layers": 5,
            "attention": [
                {"name": "memory_compressed", "layer": "local", "block": 256},
                {"name": "memory_compressed", "layer": "memory", "stride": 3},
            ],
        },
        lengths=(11000,),
        remarks=(
            "T-DMCA: a language model of source, separator and target as one text; layers LMLML; tensor2tensor's base "
            "sizes and 32000 sub-words; without its mixture of experts"
        ),
    ),
    **rows(
        _CHARACTERS,
        {
            "longformer-charlm-small": {
                "options": {
                    **sizes(12, 512, 8, 2048),
                    "attention": _growing(12, _WINDOWS, (0,) * 6 + (1, 1, 2, 2, 3, 3)),
                },
                "parameters": "41M",
            },
            "longformer-charlm-large": {
                "options": {
                    **sizes(30, 512, 8, 2048),
                    "attention": _growing(30, _WINDOWS, (0,) * 15 + (1,) * 5 + (2,) * 5 + (3,) * 5),
                    "dropout": 0.4,
                },
                "parameters": "102M",
            },
        },
    ),
    **rows(
        _LONGFORMER,
        {
            "longformer-base-4096": {"exact": 148_659_456},
            "longformer-large-4096": {"options": sizes(24, 1024, 16), "exact": 434_600_960},
        },
    ),
    "led-base": Preset(
        model="transformer",
        paper="Beltagy et al. 2020",
        options={
            **BART,
            **sizes(6, 768, 12),
            "source_length": 16384,
            "encoder_attention": [{"name": "longformer", "window": 512}],
            "source_global": "first",
        },
        exact=161_844_480,
        lengths=(16384,),
        remarks="BART's sizes and weights; its 1024 positions are repeated up to 16384; the first token is global",
    ),
    "led-large": Preset(
        model="transformer",
        paper="Beltagy et al. 2020",
        options={
            **BART,
            **sizes(12, 1024, 16),
            "source_length": 16384,
            "encoder_attention": [{"name": "longformer", "window": 512}],
            "source_global": "first",
        },
        exact=459_801_600,
        lengths=(16384,),
        remarks="BART's sizes and weights; its 1024 positions are repeated up to 16384; the first token is global",
    ),
    **rows(
        _ETC,
        {
            "etc-base": {"parameters": "166M", "exact": 165_823_488},
            "etc-base-shared": {
                "options": {"sharing": "all"},
                "parameters": "109M",
                "exact": 109_108_224,
                "remarks": f"the inputs share all weights of attention; {_ETC.remarks}",
            },
            "etc-large": {
                "options": {
                    **sizes(24, 1024, 16),
                    "vocabulary": 50265,
                    "radius": 169,
                    "labels": 24,
                    "label_vocabulary": 64,
                },
                "remarks": f"lifted from RoBERTa, so with its vocabulary; {_ETC.remarks}",
            },
        },
    ),
    **rows(
        _BIGBIRD,
        {
            "bigbird-base": {"exact": 127_468_800},
            "bigbird-large": {"options": sizes(24, 1024, 16), "exact": 359_123_968},
        },
    ),
}
