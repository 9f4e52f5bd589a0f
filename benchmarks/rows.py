"""The rows of `benchmarks.attention`: mechanisms, their options, and their speed goals (forward, with backward)."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    mechanism: str
    goal: tuple[float, float]
    options: dict[str, Any] = field(default_factory=dict)
    causal: bool = False
    layer: bool = False  # measure a layer of width 512 with projections and their gradients


ROWS = {
    "softmax": Row("softmax", (1.0, 1.0)),
    "window, causal 256": Row("window", (10.0, 9.0), {"window": 255}, causal=True),
    "window, ±128": Row("window", (9.0, 8.0), {"window": 128}),
    "longformer, ±128, 16 globals": Row("longformer", (7.0, 6.5), {"window": 128}),
    "etc, ±128, 16 globals": Row("etc", (6.0, 6.0), {"radius": 128, "global_tokens": 16, "labels": 0}),
    "etc with relative labels": Row("etc", (6.0, 6.0), {"radius": 128, "global_tokens": 16}),
    "bigbird, 64, 3 random": Row("bigbird", (4.5, 4.5)),
    "sparse, strided 64": Row("sparse", (7.0, 6.0), {"stride": 64}, causal=True),
    "sparse, fixed 64": Row("sparse", (7.0, 6.0), {"pattern": "fixed", "stride": 64, "summary": 8}, causal=True),
    "image_local 1D, 256 + 256": Row("image_local", (6.0, 5.0), {"query_block": 256, "memory": 256}, causal=True),
    "axial 64×64 rows, layer": Row("axial", (2.2, 2.7), {"width": 64}, layer=True),
    "axial 64×64 columns, layer": Row("axial", (2.2, 2.7), {"width": 64, "axis": 0}, layer=True),
    "memory_compressed, stride 3": Row("memory_compressed", (3.5, 3.0), {"stride": 3}, causal=True),
    "inducing, 64 points": Row("inducing", (15.0, 12.0), {"points": 64}),
    "reformer, 4 rounds": Row("reformer", (2.8, 3.6), {"rounds": 4, "chunk": 64}),
    "reformer, causal": Row("reformer", (2.2, 2.8), {"rounds": 4, "chunk": 64}, causal=True),
    "routing, window 128": Row("routing", (6.5, 14.0), {"window": 128}),
    "sinkhorn, block 128": Row("sinkhorn", (5.0, 5.0), {"block": 128}),
    "sinkhorn, causal": Row("sinkhorn", (5.0, 5.0), {"block": 128}, causal=True),
    "synthesizer, dense": Row("synthesizer", (1.0, 1.0), {"form": "dense"}),
    "synthesizer, random": Row("synthesizer", (1.0, 1.0), {"form": "random"}),
    "synthesizer, factors dense": Row("synthesizer", (1.0, 1.0), {"form": "factorised_dense"}),
    "synthesizer, factors random": Row("synthesizer", (1.0, 1.0), {"form": "factorised_random"}),
    "linformer, k 256": Row("linformer", (4.5, 5.0), {"rank": 256}),
    "performer, 256 features": Row("performer", (5.0, 6.5)),
    "performer, causal": Row("performer", (3.3, 3.9), causal=True),
    "linear": Row("linear", (26.0, 40.0)),
    "linear, causal": Row("linear", (10.5, 14.0), causal=True),
    "cosformer": Row("cosformer", (10.0, 10.0)),
    "cosformer, causal": Row("cosformer", (5.0, 5.0), causal=True),
    "retention": Row("retention", (5.0, 5.0), causal=True),
    "gated_linear": Row("gated_linear", (3.0, 3.0), causal=True),
    "hedgehog": Row("hedgehog", (5.0, 5.0)),
    "hedgehog, causal": Row("hedgehog", (3.0, 3.0), causal=True),
    "window_linear, window 63": Row("window_linear", (2.0, 2.0), causal=True),
    "nystrom, 64 landmarks": Row("nystrom", (18.0, 15.0), {"landmarks": 64, "kernel": 0}),
    "nystrom, kernel 33": Row("nystrom", (18.0, 15.0), {"landmarks": 64, "kernel": 33}),
}
