"""Reading in any chunks whatever, under any mask, gives what reading at once gives."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import registry
from longspan.audit.behaviour import stream
from longspan.audit.finding import difference, spread
from longspan.audit.subjects import AuditSubject
from longspan.audit.targets import resolve

STREAMING = [subject for name in registry.names() for subject in resolve(name) if subject.claims.streaming]


@functools.cache
def _mask(kind: str, length: int) -> Tensor | None:
    place = torch.arange(length).expand(2, length)
    short = torch.tensor([[length - length // 3], [max(1, length // 2)]])
    random = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) < 0.5
    return {"none": None, "right": place < short, "left": place >= length - short, "random": random}[kind]


@pytest.mark.parametrize("subject", STREAMING, ids=lambda s: f"{s.name}-{s.form.replace(', ', '-')}")
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=9),
    kind=st.sampled_from(["none", "right", "left", "random"]),
)
def test_any_chunking_is_the_parallel_pass(subject: AuditSubject, sizes: list[int], kind: str) -> None:
    length = sum(sizes)
    mask = _mask(kind, length) if subject.claims.padding else None
    sample = subject.sample(2, length, seed=length)
    with torch.no_grad():
        whole = subject.run(sample, mask)
        chunks, _ = stream(subject, sample, sizes, mask)
    assert difference(chunks, whole, spread(whole)) <= subject.near


@pytest.mark.parametrize("subject", STREAMING, ids=lambda s: f"{s.name}-{s.form.replace(', ', '-')}")
def test_a_selected_state_continues_like_those_rows(subject: AuditSubject) -> None:
    """Beam search reorders states, and continues one row in several ways."""
    rows = torch.tensor([1, 1, 0])
    sample = subject.sample(2, 20, seed=0)
    chosen = {name: part[rows] for name, part in sample.items()}
    with torch.no_grad():
        whole = subject.run(chosen)
        _, states = stream(subject, {name: _positions(part, 0, 11) for name, part in sample.items()}, [11])
        rest = {name: _positions(part, 11, 20) for name, part in chosen.items()}
        out, _ = subject.extend(rest, states[-1].select(rows))
    assert difference(out, whole[:, 11:], spread(whole)) <= subject.near


def _positions(part: Tensor, start: int, stop: int) -> Tensor:
    return part[:, :, start:stop] if part.dim() == 4 else part[:, start:stop]
