"""The cost of models with a memory, when the memory is full."""

from longspan.attention.mechanisms import relative
from longspan.models.compressive import CompressiveTransformer
from longspan.models.cost.tally import Tally, products, read
from longspan.models.transformer_xl import TransformerXL
from longspan.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from longspan.nn.compression import Compression
from longspan.nn.memory_layer import MemoryLayer, Reach
from longspan.nn.relative_multihead import RelativeAttention


@read.register
def _(model: TransformerXL, length: int, tally: Tally) -> None:
    options, reach = model.options, model.reach
    by_age = isinstance(model, CompressiveTransformer) and model.options.time == "true" and model.options.slots > 0
    distances = reach.furthest + 1 if by_age else reach.slots + reach.memory + min(length, reach.segment)
    encoded = distances if options.clamp is None else min(distances, options.clamp + 1)
    if isinstance(model.embedding, AdaptiveEmbedding):
        _embed(model.embedding, tally, length)
    for layer in model.layers:
        assert isinstance(layer, MemoryLayer)
        _attention(layer, reach, tally, length, distances, encoded, by_age)
        if layer.compression is not None:
            _compression(layer, layer.compression, reach, tally, length, distances if by_age else None)
        tally.norm(layer.around_attention.norm, length, options.width)
        tally.transition(layer.feedforward, length)
        tally.norm(layer.around_feedforward.norm, length, options.width)
    tally.norm(model.norm, length, options.width)
    if isinstance(model.head, AdaptiveSoftmax):
        _softmax(model.head, tally, length, options.width)
    else:
        tally.output(options.width, options.vocabulary, length)
    full = f"{reach.memory} memories" + (f" and {reach.slots} compressed ones" if reach.slots else "")
    tally.notes.append(f"with {full} in front, in segments of {reach.segment}")


def _attention(
    layer: MemoryLayer, reach: Reach, tally: Tally, length: int, distances: int, encoded: int, by_age: bool
) -> None:
    attention, past = layer.attention, reach.slots + reach.memory
    width, inner = attention.q.in_features, attention.q.out_features
    flops = products(attention.q, length) + products(attention.kv, length + past)
    flops += products(attention.r, encoded) + products(attention.out, length)
    # The input of each projection (a copy for the output), the distances and, below, keys and values.
    floats = (length + past + encoded) * width + length * inner + distances * inner
    for segment in reach.pieces(length, 0):
        keys = past + segment
        floats += 2 * keys * inner
        cost = relative.cost(
            segment,
            keys,
            attention.heads,
            attention.head_dim,
            window=reach.window,
            distance_count=distances if by_age else None,
        )
        tally.add("attention", *cost)
    if layer.around_attention.norm_position == "pre":
        tally.norm(layer.around_attention.norm, past, width)
    tally.add("attention: projections", flops, floats)


def _compression(
    layer: MemoryLayer, compression: Compression, reach: Reach, tally: Tally, length: int, distances: int | None
) -> None:
    """Compressing the oldest memories after each segment, and in training the reconstruction loss."""
    attention, sizes = layer.attention, reach.pieces(length, 0)
    inner, width = attention.q.out_features, attention.q.in_features
    for index, segment in enumerate(sizes):
        slots = segment // compression.ratio
        flops, floats = 0, slots * width
        if compression.convolution is not None:
            flops += 2 * slots * compression.ratio * width * width
        if compression.kind == "most_used":  # it computes the scores again
            keys, sizes_of_heads = reach.slots + reach.memory + segment, (attention.heads, attention.head_dim)
            flops += relative.cost(segment, keys, *sizes_of_heads, distance_count=distances, values=False).flops
        if layer.loss == "autoencoding" and slots:
            flops += 2 * slots * compression.ratio * width * width
            floats += slots * compression.ratio * width
        elif layer.loss == "attention" and slots:
            flops += _content(attention, segment, slots)
            floats += 3 * segment * inner + 2 * slots * inner
        if index + 1 < len(sizes):
            flops += products(attention.kv, slots)
        tally.add("compression", flops, floats)


def _content(attention: RelativeAttention, segment: int, slots: int) -> int:
    """Attention by content to the oldest memories, as many as the segment's tokens, and to their slots."""
    inner = attention.q.out_features
    projected = products(attention.q, segment) * 2 + products(attention.kv, segment + slots)
    return projected + 2 * segment * (segment + slots) * 2 * inner


def _embed(layer: AdaptiveEmbedding, tally: Tally, tokens: int) -> None:
    """Counted as if all tokens were in the head, whose projection is the widest."""
    if len(layer.projections):
        tally.add("embedding", 2 * tokens * layer.projections[0].numel(), tokens * layer.projections[0].shape[1])


def _softmax(layer: AdaptiveSoftmax, tally: Tally, tokens: int, width: int) -> None:
    """Log-probabilities of all tokens."""
    flops, floats = products(layer.choice, tokens), tokens * (width + len(layer.bands) - 1)
    for table in layer.tables:
        size, table_width = table.shape
        flops += 2 * tokens * size * table_width
        floats += 2 * tokens * size  # within its band, and over all tokens
    for projection in layer.projections:
        flops += 2 * tokens * projection.numel()
        floats += tokens * projection.shape[1]
    tally.add("output", flops, floats)


__all__: list[str] = []
