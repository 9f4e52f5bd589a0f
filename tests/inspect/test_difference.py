"""A mechanism beside exact attention: the numbers against their formulas on whole maps."""

import numpy as np
import pytest
import torch
from tests.models.every import of_kind
from torch import Tensor

from longspan.audit.settings import small
from longspan.errors import InvalidOption, UnknownName
from longspan.inspect.looking import look
from longspan.inspect.records import Errors, decode
from longspan.inspect.tiles import tile
from longspan.models.base import Model
from longspan.nn.attention_calls import AttentionCall, visiting

LENGTH = 45
IDS = [(7 * i * i + 3 * i) % 11 for i in range(LENGTH)]


def model_with(name: str, **options: object) -> Model:
    setting = {"name": name, **small(name)[0]}
    return of_kind("encoder", attention=setting, layers=1, max_length=64, **options).eval()


def call_of(model: Model) -> AttentionCall:
    calls: list[AttentionCall] = []
    with visiting(model, calls.append), torch.no_grad():
        model(torch.tensor([IDS]))
    return calls[0]


def by_formula(ours: Tensor, exact: Tensor, values: Tensor, rows: slice = slice(None)) -> Errors:
    ours, exact = ours[rows].double(), exact[rows].double()
    change = ours - exact
    kl = None if bool((ours < 0).any()) else float((exact * (exact.log() - ours.log())).sum(-1).mean())
    return Errors(
        kl=kl,
        variation=float(change.abs().sum(-1).mean() / 2),
        output=float((change @ values.double()).norm() / (exact @ values.double()).norm()),
        top1=float((ours.argmax(-1) == exact.argmax(-1)).double().mean()),
        nowhere=float((ours.abs() * (exact < 1e-4)).sum(-1).mean()),
    )


def check(got: Errors, expected: Errors) -> None:
    for name in ("kl", "variation", "output", "top1", "nowhere"):
        own, true = getattr(got, name), getattr(expected, name)
        assert (own is None) == (true is None), name
        if own is not None:
            assert own == pytest.approx(true, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("name", ["linear", "performer", "linformer", "nystrom", "window", "synthesizer"])
def test_errors_are_those_of_the_formulas(name: str):
    model = model_with(name)
    call = call_of(model)
    record = look(model, IDS, against="softmax")
    q, k, v = call.q[0], call.k[0], call.v[0]
    exact, ours = (q @ k.mT / 8**0.5).softmax(-1), call.mechanism.weights(call.q, call.k, **call.extras)[0]
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    signed = bool((ours < 0).any())
    for head in record.modules[0].heads:
        number, difference = head.index, head.difference
        assert difference is not None
        expected = by_formula(ours[number], exact[number], v[number])
        check(difference.errors, expected if not signed else Errors(None, *list(vars(expected).values())[1:]))
        check(difference.control, by_formula(exact[number][:, order], exact[number], v[number]))
        assert len(difference.blocks) == 8
        for block, begin in zip(difference.blocks, range(0, LENGTH, 6)):
            part = by_formula(ours[number], exact[number], v[number], slice(begin, begin + 6))
            assert block.variation == pytest.approx(part.variation, rel=1e-4)
        everything = np.arange(LENGTH)
        np.testing.assert_allclose(tile(difference.exact_detail, everything, everything), exact[number], atol=1e-6)
        change = (ours[number] - exact[number]).detach().numpy()
        level = difference.change.levels[0]
        got = decode(level.max, difference.change.scale) - decode(level.low, difference.change.scale)
        np.testing.assert_allclose(got, change, rtol=0.03, atol=2e-6)


def test_exact_attention_has_no_error():
    record = look(of_kind("decoder").eval(), IDS, against="softmax")
    for module in record.modules:
        for head in module.heads:
            errors, control = head.difference.errors, head.difference.control
            assert errors.kl < 1e-6 and errors.variation < 1e-6 and errors.output < 1e-5 and errors.top1 == 1
            assert control.variation > 0.05


def test_a_window_never_reads_far_keys_so_its_divergence_is_infinite():
    (module,) = look(model_with("window"), IDS, against="softmax").modules
    assert {head.difference.errors.kl for head in module.heads} == {float("inf")}


def test_other_mechanisms_can_be_the_measure():
    (module,) = look(model_with("linear"), IDS, against="window").modules
    model = model_with("linear")
    call = call_of(model)
    from longspan.attention.registry import build

    other = build("window", heads=2, head_dim=8, max_length=64)
    ours, exact = call.mechanism.weights(call.q, call.k)[0], other.weights(call.q, call.k)[0]
    for head in module.heads:
        true = by_formula(ours[head.index], exact[head.index], call.v[0, head.index])
        assert head.difference.errors.variation == pytest.approx(true.variation, rel=1e-4)


def test_by_length():
    model = model_with("linear")
    by_length = look(model, IDS, against="softmax", lengths=[10, 45]).by_length
    assert by_length is not None and by_length.lengths == (10, 45)
    assert by_length.errors.shape == (2, 1, 2, 5)
    whole = look(model, IDS, against="softmax").modules[0].heads[1].difference.errors
    np.testing.assert_allclose(by_length.errors[1, 0, 1], list(vars(whole).values()), rtol=1e-5)


def test_what_cannot_be_compared():
    model = model_with("linear")
    with pytest.raises(InvalidOption, match="--against linformer has weights of its own, which this model lacks"):
        look(model, IDS, against="linformer")
    with pytest.raises(InvalidOption, match="--lengths compares with another mechanism by length: give --against"):
        look(model, IDS, lengths=[10])
    with pytest.raises(InvalidOption, match="--lengths must be from 2 to the 45 tokens of the text, not 46"):
        look(model, IDS, against="softmax", lengths=[46])
    with pytest.raises(UnknownName, match="softmaxx"):
        look(model, IDS, against="softmaxx")
