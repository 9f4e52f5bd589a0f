"""An auditor must be right about models that others released."""

import pytest

from longspan.audit import Certificate, Claims, audit, resolve

# x-transformers' dependencies script functions, which torch is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def failed(certificate: Certificate) -> set[str]:
    return {finding.check for finding in certificate.failed}


def test_big_bird_sees_the_future() -> None:
    certificate = audit("other_models:big_bird", Claims(causal=True))
    assert {"causal_perturbation", "causal_gradient", "prefix"} <= failed(certificate)
    # One short batch changes its attention for good (field report).
    assert "determinism" in failed(certificate)


def test_gpt2_is_causal_ignores_padding_and_streams() -> None:
    certificate = audit("other_models:gpt2", Claims(causal=True, padding=True, streaming=True, any_length=True))
    assert certificate.passed, certificate.table(failed_only=True)
    assert {finding.check for finding in certificate.findings} == {
        "padding_content",
        "padding_amount",
        "causal_perturbation",
        "causal_gradient",
        "prefix",
        "training_padding",
        "training_causal",
        "running_statistics",
        "streaming",
        "streaming_masked",
        "batch_invariance",
        "determinism",
        "lengths",
    }
    streamed = next(finding for finding in certificate.findings if finding.check == "streaming")
    # Two layers of keys and values for two rows of 64 tokens, in float32.
    assert f"{2 * 2 * 2 * 64 * 32 * 4} after 64" in streamed.detail


def test_gpt2_is_quadratic() -> None:
    certificate = audit("other_models:gpt2", Claims(order=1))
    assert failed(certificate) == {"order"}
    assert audit("other_models:gpt2", Claims(order=2)).passed


def test_an_x_transformers_decoder_is_causal_and_ignores_padding() -> None:
    certificate = audit("other_models:x_decoder", Claims(causal=True, padding=True))
    assert certificate.passed, certificate.table(failed_only=True)


def test_streaming_of_x_transformers_is_not_measured() -> None:
    certificate = audit("other_models:x_decoder", Claims(streaming=True))
    assert certificate.verdict == "not measured"
    (streaming,) = certificate.not_measured
    assert streaming.check == "streaming" and "no known way to read in chunks" in streaming.detail


def test_bert_ignores_padding_and_is_not_causal() -> None:
    certificate = audit("other_models:bert", Claims(causal=True, padding=True))
    assert failed(certificate) == {"causal_perturbation", "causal_gradient", "prefix", "training_causal"}


def test_xlnet_puts_the_length_first_and_is_measured_all_the_same() -> None:
    certificate = audit("other_models:xlnet", Claims(causal=True, padding=True))
    assert failed(certificate) == {"causal_perturbation", "causal_gradient", "prefix", "training_causal"}
    assert certificate.not_measured == ()


def test_the_order_is_measured_within_the_positions_that_a_model_has() -> None:
    (subject,) = resolve("other_models:bert", Claims(order=2))
    most = subject.module.config.max_position_embeddings
    assert max(subject.growth_lengths) <= most
    assert audit(subject).passed
