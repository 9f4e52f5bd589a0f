"""Experts against a loop over tokens."""

import pytest
import torch

from longspan.errors import InvalidOption, Unsupported
from longspan.models import build
from longspan.nn.experts import ExpertLayer, Experts

SIZES = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64, "dropout": 0.0}


def layer(**given) -> ExpertLayer:
    torch.manual_seed(0)
    made = ExpertLayer(6, 5, Experts(**{"count": 4, "active": 2, "limit": 0.5, **given})).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("limit", [0.5, None])
def test_each_token_is_read_by_its_experts(limit: float | None):
    experts = layer(limit=limit)
    x = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    expected = []
    for token in x.flatten(0, 1):
        logits = experts.router.weight @ token + experts.router.bias
        best = logits.argsort(descending=True)[:2].tolist()
        shares = torch.stack([logits[e] for e in best]).softmax(0)
        total = torch.zeros(6, dtype=torch.float64)
        for share, e in zip(shares, best):
            inner = token @ experts.gate_up[e] + experts.gate_up_bias[e]
            gate, value = inner[0::2], inner[1::2]
            if limit is not None:
                gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
            gated = (value + 1) * gate * torch.sigmoid(1.702 * gate)
            total = total + share * (gated @ experts.down[e] + experts.down_bias[e])
        expected.append(total)
    expected = torch.stack(expected).view_as(x)
    torch.testing.assert_close(experts(x), expected)
    parameters = [x, *experts.parameters()]
    for own, other in zip(
        torch.autograd.grad(experts(x).square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
    ):
        torch.testing.assert_close(own, other)


def test_a_traced_program_reads_all_experts_with_the_same_result():
    experts = layer()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    compiled = torch.compile(experts, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), experts(x))
    assert experts.to("meta")(x.to("meta")).shape == x.shape


def test_options_that_do_not_fit():
    with pytest.raises(InvalidOption, match="5 of 4 experts cannot read a token"):
        Experts(count=4, active=5)
    with pytest.raises(Unsupported, match="experts have biases"):
        build("decoder", **SIZES, experts={"count": 4}, bias=False)


def test_a_model_with_experts_trains_and_decodes():
    model = build("decoder", **SIZES, experts={"count": 4, "active": 1}, init="normal", init_std=0.5).double()
    ids = torch.randint(0, 11, (2, 9))
    model(ids).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert float(model.stack.blocks[0].feedforward.down.detach().std()) == pytest.approx(0.5, rel=0.2)
    with torch.no_grad():
        state, parts = model.start(2), []
        for token in ids.split(1, 1):
            logits, state = model.extend(token, state)
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts, 1), model(ids))
