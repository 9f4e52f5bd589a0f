"""Models with learned patterns, low-rank attention and kernels."""

from typing import Any

from longspan.models.presets.row import BASE, ROBERTA, Options, Preset, rows, sizes

# Learned patterns

_ROUTING = Preset(
    model="decoder",
    paper="Roy et al. 2020",
    options={"norm_position": "pre", "activation": "geglu", "dropout": 0.0},
    remarks="sizes of the release; positions are absolute here, and relative in the release",
)


def _routing(clusters: int, window: int, local_heads: int, local_window: int) -> dict[str, Any]:
    sizes = {"clusters": clusters, "window": window, "local_heads": local_heads, "local_window": local_window}
    return {"name": "routing", **sizes, "block": window}


_REFORMER = Preset(
    model="decoder",
    paper="Kitaev et al. 2020",
    options={
        "vocabulary": 256,
        "norm_position": "pre",
        "position": "axial",
        "dropout": 0.0,
        "feedforward_chunk": 4096,
        "reversible": True,
        "tied": False,
    },
)
# As in the checkpoints on Hugging Face's hub: no biases in attention, and one in the output layer.
_RELEASED: Options = {
    "query_bias": False,
    "output_bias": False,
    "head_bias": True,
    "eps": 1e-12,
    "scale": False,
    "init": "normal",
}


def _local(chunk: int, dropout: float) -> dict[str, Any]:
    return {"name": "image_local", "dropout": dropout, "query_block": chunk, "memory": chunk}


def _hashed(rounds: int, chunk: int, buckets: int | tuple[int, ...], dropout: float) -> dict[str, Any]:
    sizes = {"rounds": rounds, "chunk": chunk, "buckets": buckets}
    return {"name": "reformer", "dropout": dropout, **sizes, "eps": 1e-6}


_SINKHORN: Options = {"name": "sinkhorn", "block": 64, "iterations": 7, "temperature": 0.75}

ROWS: dict[str, Preset] = {
    **rows(
        _ROUTING,
        {
            "routing-wt103": {
                "options": {
                    **sizes(14, 1024, 16, 3072),
                    "vocabulary": 267735,
                    "dropout": 0.4,
                    "attention": [_routing(8, 512, 8, 256)],
                },
                "lengths": (4096,),
                "remarks": f"{_ROUTING.remarks}; embeddings of full width here, factorised by 256 in the release",
            },
            "routing-enwik8": {
                "options": {
                    **sizes(12, 1024, 8, 3072),
                    "vocabulary": 256,
                    "attention": [_routing(16, 512, 4, 256)],
                },
                "lengths": (8192,),
            },
            "routing-enwik8-12k": {
                "options": {
                    **sizes(12, 1024, 8, 3072),
                    "vocabulary": 256,
                    "attention": [_routing(48, 256, 4, 128)],
                },
                "lengths": (12288,),
            },
            "routing-pg19": {
                "options": {
                    **sizes(22, 1032, 8, 4096),
                    "vocabulary": 98000,
                    "attention": [{"name": "window", "window": 256}] * 21 + [_routing(16, 512, 6, 256)],
                },
                "parameters": "490M",
                "lengths": (8192,),
                "remarks": f"{_ROUTING.remarks}; routing in the last layer only; about 98000 sub-words",
            },
        },
    ),
    **rows(
        _REFORMER,
        {
            "reformer-enwik8": {
                "options": {
                    **sizes(12, 1024, 8),
                    **_RELEASED,
                    "vocabulary": 258,
                    "dropout": 0.2,
                    "hidden_dropout": 0.2,
                    "axes": (128, 512),
                    "axis_widths": (256, 768),
                    "max_length": 65536,
                    "attention": [_local(128, 0.2), _local(128, 0.2), _hashed(4, 256, 512, 0.1), _local(128, 0.2)],
                },
                "exact": 149_182_722,
                "lengths": (65536,),
                "remarks": "the released checkpoint: local, local, hashed, local, three times; strictly causal here",
            },
            "reformer-crime": {
                "options": {
                    **sizes(6, 256, 2, 512),
                    **_RELEASED,
                    "head_dim": 64,
                    "vocabulary": 320,
                    "dropout": 0.05,
                    "hidden_dropout": 0.05,
                    "axes": (512, 1024),
                    "axis_widths": (64, 192),
                    "max_length": 524288,
                    "attention": [_local(64, 0.05), _hashed(1, 64, (64, 128), 0.0)],
                },
                "exact": 2_748_224,
                "lengths": (524288,),
                "remarks": "the released checkpoint: a novel as one text of half a million sub-words",
            },
            "reformer-imagenet64": {
                "options": {
                    **sizes(12, 1024, 8),
                    "axes": (64, 64, 3),
                    "axis_widths": (384, 384, 256),
                    "max_length": 12288,
                    "attention": [{"name": "reformer", "rounds": 4, "chunk": 64, "buckets": (12, 32)}],
                },
                "lengths": (12288,),
                "remarks": "4 rounds; the widths of the three position tables are not published",
            },
        },
    ),
    **rows(
        BASE,
        {
            "sinkhorn-base": {
                "paper": "Tay et al. 2020b",
                "options": {"max_length": 2048, "attention": [_SINKHORN]},
                "lengths": (2048,),
                "remarks": "base sizes of the Transformer and 32000 sub-words; blocks of 64",
            },
            "synthesizer-dense": {
                "paper": "Tay et al. 2020a",
                "options": {"max_length": 512, "attention": [{"name": "synthesizer", "form": "dense"}]},
                "lengths": (512,),
                "remarks": "base sizes of the Transformer and 32000 sub-words",
            },
            "synthesizer-random": {
                "paper": "Tay et al. 2020a",
                "options": {"max_length": 512, "attention": [{"name": "synthesizer", "form": "random"}]},
                "lengths": (512,),
                "remarks": "base sizes of the Transformer and 32000 sub-words",
            },
            "synthesizer-factorised": {
                "paper": "Tay et al. 2020a",
                "options": {
                    "max_length": 512,
                    "attention": [{"name": "synthesizer", "form": "factorised_random", "rank": 8}],
                },
                "lengths": (512,),
                "remarks": "base sizes of the Transformer and 32000 sub-words",
            },
            "synthesizer-mixture": {
                "paper": "Tay et al. 2020a",
                "options": {"max_length": 512, "attention": [{"name": "synthesizer", "form": ("random", "dot")}]},
                "lengths": (512,),
                "remarks": "random and dot product in one softmax; base sizes of the Transformer and 32000 sub-words",
            },
            "performer-protein": {
                "paper": "Choromanski et al. 2020",
                "options": {
                    **sizes(36, 512, 8, 1024),
                    "vocabulary": 30,
                    "max_length": 8192,
                    "attention": [{"name": "performer", "kind": "relu", "features": 256}],
                },
                "lengths": (1024, 8192),
                "remarks": "unidirectional, for TrEMBL: 36 layers of 8 heads, width 512, hidden 1024; the ReLU kernel",
            },
            "performer-imagenet64": {
                "paper": "Choromanski et al. 2020",
                "options": {
                    **sizes(6, 512, 8, 2048),
                    "vocabulary": 256,
                    "max_length": 12288,
                    "attention": [{"name": "performer", "kind": "positive", "features": 256}],
                },
                "lengths": (12288,),
                "remarks": "6 layers, compared in the paper with a Reformer of 12; positive features",
            },
            "linear-mnist": {
                "paper": "Katharopoulos et al. 2020",
                "options": {
                    **sizes(8, 256, 8),
                    "vocabulary": 256,
                    "max_length": 784,
                    "attention": [{"name": "linear"}],
                },
                "lengths": (784,),
                "remarks": "256 classes of pixels here, a mixture of logistics there",
            },
            "linear-cifar10": {
                "paper": "Katharopoulos et al. 2020",
                "options": {
                    **sizes(16, 256, 8),
                    "vocabulary": 256,
                    "max_length": 3072,
                    "attention": [{"name": "linear"}],
                },
                "lengths": (3072,),
                "remarks": "256 classes of pixels here, a mixture of logistics there",
            },
        },
    ),
    **{
        f"linformer-{length}": Preset(
            model="encoder",
            paper="Wang et al. 2020b",
            options={
                **ROBERTA,
                "max_length": length,
                "attention": [{"name": "linformer", "rank": rank, "sharing": "layerwise"}],
            },
            lengths=(length,),
            remarks="the body of RoBERTa-base, with one projection for the whole network",
        )
        for length, rank in ((512, 128), (1024, 256))
    },
}
