"""PyTorch's own layers: their names for masks, and True in a padding mask that drops a key."""

import pytest
import torch
from torch import Tensor, nn

from longspan.audit import Certificate, Claims, Reading, audit, resolve
from longspan.audit.external import find_causal, find_mask
from longspan.audit.targets import subjects_of
from longspan.errors import InvalidInput, InvalidOption

SMALL = Reading(length=16, long_length=40)
CAUSAL = Reading(length=16, long_length=40, causal_mask=True)


def encoder_layer(batch_first: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=batch_first)


def attention(batch_first: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, batch_first=batch_first)


def encoder(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoder(encoder_layer(batch_first), 2, enable_nested_tensor=False)


def checks(certificate: Certificate, verdict: str) -> set[str]:
    return {finding.check for finding in certificate.findings if finding.verdict == verdict}


NOT_CAUSAL = {"causal_perturbation", "causal_gradient", "prefix", "training_causal"}


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("make", [encoder_layer, attention, encoder])
def test_padding_is_ignored_and_nothing_is_causal_without_a_causal_mask(make, batch_first: bool) -> None:
    certificate = audit(make(batch_first), Claims(padding=True, causal=True), reading=SMALL)
    assert checks(certificate, "fail") == NOT_CAUSAL
    assert certificate.not_measured == ()
    assert "is_causal=True; --causal-mask passes it" in certificate.failed[0].detail


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("make", [encoder_layer, attention, encoder])
def test_with_its_causal_mask_each_is_causal(make, batch_first: bool) -> None:
    certificate = audit(make(batch_first), Claims(causal=True), reading=CAUSAL)
    assert certificate.passed, certificate.table(failed_only=True)


def test_the_padding_masks_of_torch_drop_where_they_are_true() -> None:
    keep = torch.tensor([[True, True, False]])
    for make, name in (
        (encoder_layer, "src_key_padding_mask"),
        (encoder, "src_key_padding_mask"),
        (attention, "key_padding_mask"),
    ):
        mask = find_mask(make(), None, None)
        assert mask is not None and mask.name == name
        assert mask.arguments(keep)[name].tolist() == [[False, False, True]]


def test_the_output_is_that_of_a_direct_call() -> None:
    layer, keep = attention().eval(), torch.ones(2, 16, dtype=torch.bool)
    keep[0, 10:] = False
    (subject,) = subjects_of(layer, reading=CAUSAL)
    x = subject.sample(2, 16, seed=0)["x"]
    later = torch.ones(16, 16, dtype=torch.bool).triu(1)
    with torch.no_grad():
        expected, _ = layer(x, x, x, key_padding_mask=~keep, attn_mask=later, is_causal=True)
        found = subject.run({"x": x}, keep)
    assert torch.equal(found, expected)


def test_a_padding_mask_the_wrong_way_round_fails() -> None:
    reading = Reading(length=16, long_length=40, mask_keeps=True)
    assert "padding_content" in checks(audit(encoder_layer(), Claims(padding=True), reading=reading), "fail")


def test_a_mask_that_is_added_means_the_same_to_every_module() -> None:
    class Scaled(nn.Module):
        """As torch's function: True in a boolean mask keeps, the opposite of torch's modules."""

        def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=attn_mask)

    causal = find_causal(Scaled())
    assert causal is not None and not causal.flag
    added = causal.arguments(2, torch.float32)["attn_mask"]
    assert added.tolist() == [[0.0, float("-inf")], [0.0, 0.0]]
    reading = Reading(length=16, long_length=40, width=8, causal_mask=True)
    assert audit(Scaled(), Claims(causal=True), reading=reading).passed


def test_a_flag_alone_is_enough() -> None:
    class Flag(nn.Module):
        def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=is_causal)

    certificate = audit(Flag(), Claims(causal=True), reading=Reading(width=8, length=16, causal_mask=True))
    assert certificate.passed, certificate.table(failed_only=True)


def test_a_causal_mask_for_a_module_that_takes_none_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"Linear takes no causal mask that is known \(src_mask, attn_mask"):
        audit(nn.Linear(8, 8), Claims(causal=True), reading=CAUSAL)


def test_a_recurrent_network_with_the_length_first() -> None:
    torch.manual_seed(0)
    certificate = audit(nn.GRU(8, 8), Claims(causal=True), reading=SMALL)
    assert certificate.passed, certificate.table(failed_only=True)


def test_an_inner_layer_does_not_say_how_a_wrapper_is_called() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = attention(batch_first=False)

        def forward(self, x: Tensor) -> Tensor:
            x = x.transpose(0, 1)
            return self.self_attn(x, x, x)[0].transpose(0, 1)

    (subject,) = subjects_of(Wrapper(), reading=SMALL)
    assert subject.batch_first
    assert audit(subject).passed


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ({"length": 3}, "length must be at least 8, not 3"),
        ({"length": 20, "long_length": 20}, "long_length must be at least 22, not 20"),
        ({"width": 0}, "width must be at least 1, not 0"),
    ],
)
def test_impossible_sizes_are_refused(reading: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Reading(**reading)


def test_a_requested_length_that_a_module_refuses_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="other_models:bert cannot be called on samples of length 200"):
        resolve("other_models:bert", reading=Reading(long_length=200))
