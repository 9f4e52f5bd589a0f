"""Swaps inside plain torch modules with `nn.MultiheadAttention`."""

import pytest
import torch
from torch import nn

import longspan
from longspan.errors import InvalidOption, Unsupported


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3).double().eval()


X = torch.randn(2, 9, 16, dtype=torch.float64)
PADDING = torch.arange(9) >= torch.tensor([[9], [6]])


@pytest.mark.parametrize("padding", [None, PADDING])
def test_a_wide_window_gives_the_same_outputs(padding: torch.Tensor | None) -> None:
    model = encoder()
    swapped = longspan.swap(model, "window:window=9", layers="1-").model
    kinds = [type(layer.self_attn) for layer in swapped.layers]
    assert kinds == [nn.MultiheadAttention, longspan.MultiheadAttention, longspan.MultiheadAttention]
    real = slice(None) if padding is None else ~padding
    with torch.no_grad():  # here torch would take its fused path, if it still could
        ours = swapped(X, src_key_padding_mask=padding)
    theirs = model(X, src_key_padding_mask=padding)
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-10, rtol=0)
    assert all(isinstance(layer.self_attn, nn.MultiheadAttention) for layer in model.layers)


def test_softmax_stays_torchs_own() -> None:
    swapped = longspan.swap(encoder(), "softmax").model
    assert all(type(layer.self_attn) is nn.MultiheadAttention for layer in swapped.layers)


def test_a_decoder_layer_is_causal_and_keeps_its_cross_attention() -> None:
    model = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double().eval()
    swapped = longspan.swap(model, "window:window=9").model
    assert swapped.self_attn.mechanism.causal and type(swapped.multihead_attn) is nn.MultiheadAttention
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    ours, theirs = (net(X, X, tgt_mask=mask, tgt_is_causal=True) for net in (swapped, model))
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


def test_weights_of_a_mechanism_are_started_and_named() -> None:
    swapped = longspan.swap(encoder(), "nystrom", length=16)
    assert swapped.layers[0].untrained == ["mechanism.filters"]
    assert swapped.model.layers[0].self_attn.mechanism.filters.count_nonzero() == 0


def test_refusals_name_the_layer() -> None:
    with pytest.raises(Unsupported, match=r"layer 0 \(layers.0.self_attn\): reformer needs more than queries, keys"):
        longspan.swap(encoder(), "reformer")
    with pytest.raises(Unsupported, match=r"layer 0 \(layers.0.self_attn\): linformer has no causal form; these can"):
        longspan.swap(encoder(), "linformer", causal=True)
    with pytest.raises(Unsupported, match=r"Linear has no nn\.MultiheadAttention that reads its own sequence"):
        longspan.swap(nn.Linear(2, 2), "window")
    with pytest.raises(InvalidOption, match="out: not for torch modules"):
        longspan.swap(encoder(), "window", out="somewhere")
    with pytest.raises(Unsupported, match="a torch module has no folder format here"):
        longspan.swap(encoder(), "window").save("somewhere")
