"""Kernels: how a softmax or a linear-attention sum is computed once it is known which keys each query reads.

- `flash`: torch's fused CPU kernel; output and log-sum-exp, and their backward pass.
- `flash_dropout`: the same with dropout on the attention weights, which the fused kernel lacks.
- `sdpa`: torch's `scaled_dot_product_attention`, with second derivatives on the CPU.
- `multi_source_softmax`: one softmax over several sources of keys, each with its layout. Most mechanisms call this.
- `query_chunks`: the same with ordinary operations on any device, a chunk of queries at a time.
- `tiled_softmax`: softmax over scores that are not products of queries and keys (Synthesizer's tables and factors).
- `running`: running maxima, and ranks within groups, also for exported programs.
- `top_k`: the largest scores of each row, faster than `torch.topk`.
- `flex`: torch's FlexAttention on CUDA, for mechanisms that are softmax attention under a mask.
- `linear_scan/`: linear attention; φ(q)·Σ φ(k)vᵀ, causal or full, with decay or gates.
"""
