"""Causal mechanisms made bidirectional: the same contract as every mechanism, and the arena's numbers."""

import pytest
import torch

from longspan.arena import settings
from longspan.arena.models import registry as arena_models
from longspan.arena.models.bidirectional import BidirectionalAttention, BidirectionalConfig
from longspan.attention import registry
from longspan.audit import behaviour, contract
from longspan.audit.subjects import MechanismSubject
from longspan.errors import InvalidOption, Unsupported

OPTIONS = {
    "retention": {},
    "gated_linear": {"width": 24},
    "sparse": {"stride": 8, "summary": 2},
    "window_linear": {"window": 5},
}
CHECKS = (
    contract.oracle,
    contract.oracle_gradients,
    contract.weights,
    contract.dead_rows,
    contract.cost,
    contract.refusals,
    behaviour.padding_content,
    behaviour.padding_amount,
    behaviour.batch_invariance,
    behaviour.determinism,
)


def build(name: str) -> BidirectionalAttention:
    torch.manual_seed(0)
    config = BidirectionalConfig(name, **OPTIONS[name])
    return config.build(heads=3, head_dim=8, causal=False, max_length=None, dropout=0.0)


def test_every_causal_mechanism_is_tested():
    assert set(OPTIONS) == {name for name in registry.names() if not registry.find(name).supports.bidirectional}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_fulfils_the_contract(name: str):
    subject = MechanismSubject(build(name), length=40)
    findings = [check(subject) for check in CHECKS if check.applies(subject.claims)]
    assert len(findings) >= 9 and [(f.check, f.detail) for f in findings if f.verdict != "pass"] == []


# Logits of a small model as this class first gave them, with the halves as plain causal mechanisms.
LOGITS = {
    "sparse": [-1.459502, 0.007203, -0.505724],
    "retention": [-0.758528, 0.424328, 0.212743],
    "gated_linear": [0.227569, -1.036354, 0.157779],
}


@pytest.mark.parametrize("name", LOGITS)
def test_the_arena_model_keeps_its_numbers(name: str):
    torch.manual_seed(0)
    sizes = settings.shell(2, 2, 16, 16, 24, dropout=0.0, attention_dropout=0.0)
    model = arena_models.build(name, sizes, length=12, vocabulary=9, classes=3).eval()
    ids = torch.randint(1, 9, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(12) < torch.tensor([12, 7, 3, 9])[:, None]
    torch.testing.assert_close(model(ids, key_mask=mask)[1], torch.tensor(LOGITS[name]), atol=1e-5, rtol=1e-4)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(InvalidOption, match="two at least, not 1"):
        BidirectionalConfig("retention").build(heads=1, head_dim=8, causal=False, max_length=None, dropout=0.0)
    with pytest.raises(Unsupported, match="bidirectional has no causal form"):
        BidirectionalConfig("retention").build(heads=2, head_dim=8, causal=True, max_length=None, dropout=0.0)
