"""States follow their module's device; `meta`, the device without values, represents all others."""

import pytest
import torch
from forms import SUBJECTS, Inputs, identity, trained
from torch import Tensor

from longspan.audit.subjects import MechanismSubject
from longspan.nn.multihead import MultiHead

STREAMING = [subject for subject in SUBJECTS if subject.module.causal and subject.module.supports.streaming]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_forward_on_meta(subject: MechanismSubject, masked: bool) -> None:
    module = trained(subject, torch.float32).to("meta")
    inputs = Inputs(subject, length=40, dtype=torch.float32).to("meta")
    out = inputs.run(module, masked=masked)
    assert out.device.type == "meta" and out.shape == inputs.heads()[2].shape and out.dtype == torch.float32


def wrapped(subject: MechanismSubject) -> MultiHead:
    torch.manual_seed(0)
    return MultiHead(16, trained(subject, torch.float32)).eval()


def in_pieces(attention: MultiHead, x: Tensor) -> Tensor:
    state, outs = attention.start(len(x)), []
    for piece in x.split([9, 1, 7, 6], dim=1):
        out, state = attention.extend(piece, state)
        outs.append(out)
    return torch.cat(outs, 1)


@pytest.mark.parametrize("subject", STREAMING, ids=identity)
def test_states_follow_the_type_of_the_module(subject: MechanismSubject) -> None:
    attention = wrapped(subject).double()
    x = torch.randn(2, 23, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(in_pieces(attention, x), attention(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("subject", STREAMING, ids=identity)
def test_states_follow_the_device_of_the_module(subject: MechanismSubject) -> None:
    attention = wrapped(subject).to("meta")
    out = in_pieces(attention, torch.empty(2, 23, 16, device="meta"))
    assert out.device.type == "meta" and out.shape == (2, 23, 16)


@pytest.mark.parametrize("subject", [s for s in STREAMING if s.name not in ("reformer", "routing")], ids=identity)
def test_decoding_under_autocast(subject: MechanismSubject) -> None:
    attention = wrapped(subject)
    x = torch.randn(2, 23, 16, generator=torch.Generator().manual_seed(1))
    expected = attention(x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = in_pieces(attention, x)
    assert (found - expected).norm() < 0.05 * expected.norm()
