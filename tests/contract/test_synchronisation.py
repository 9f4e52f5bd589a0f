"""On an accelerator no training or decoding step makes the host wait for a number, but for what is listed here.

`docs/speed.md` gives the reason for each. There is no accelerator here: CPU tensors take the path of one, and every
operation that reads numbers back is caught.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.attention import registry
from longspan.attention.devices import as_other_device
from longspan.attention.kernels import multi_source_softmax
from longspan.audit.subjects import MechanismSubject
from longspan.audit.targets import resolve
from longspan.models import build

aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default,  # item(), int(), bool() and `if tensor`
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
}
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}  # by booleans: as many as are True


class Reads(TorchDispatchMode):
    """Raises at an operation that needs the numbers of a tensor on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        boolean = func in INDEXES and any(isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1])
        if func in READS or boolean:
            raise AssertionError(f"{func} reads numbers back")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_reads() -> Iterator[None]:
    with as_other_device(), Reads():
        yield


SUBJECTS = [subject for name in registry.names() for subject in resolve(name)]
EACH = pytest.mark.parametrize("subject", SUBJECTS, ids=[f"{s.name}-{s.form.replace(', ', '-')}" for s in SUBJECTS])
ALLOWED = {"longformer-bidirectional"}  # how many tokens are global, once for all layers


@EACH
def test_a_training_step(subject: MechanismSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_source_softmax, "FEW", 0)
    subject = subject.rebuilt(dropout=0.1 if subject.module.supports.dropout else 0.0)
    subject.module.train()
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0, 30:] = False
    sample = subject.sample(2, 40, seed=1)
    for keep in (None, mask) if subject.module.supports.key_mask else (None,):

        def step(keep: Tensor | None = keep) -> None:
            leaves, out = subject.differentiable(sample, keep)
            torch.autograd.grad(out.sum(), list(leaves.values()), allow_unused=True)

        if f"{subject.name}-{subject.form.split(',')[0]}" in ALLOWED:
            with pytest.raises(AssertionError, match="reads numbers back"), no_reads():
                step()
            continue
        with no_reads():
            step()


@EACH
def test_decoding(subject: MechanismSubject) -> None:
    if not (subject.module.supports.streaming and subject.module.causal):
        return
    sample = subject.sample(2, 12, seed=1)
    with no_reads(), torch.no_grad():
        state = subject.start(2)
        for begin, end in ((0, 8), (8, 9), (9, 12)):
            part = {name: x[:, :, begin:end] if x.dim() == 4 else x[:, begin:end] for name, x in sample.items()}
            _, state = subject.extend(part, state)


def test_layers_count_global_tokens_once() -> None:
    model = build("encoder", vocabulary=20, width=16, layers=3, heads=2, attention="longformer").eval()
    ids, marks = torch.zeros(2, 12, dtype=torch.int64), torch.zeros(2, 12, dtype=torch.bool)
    marks[:, 0] = True
    seen: list[Any] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if func in READS:
                seen.append(func)
            return func(*args, **(kwargs or {}))

    with as_other_device(), Count(), torch.no_grad():
        model(ids, streams={"global_mask": marks})
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_model(name: str) -> None:
    model = build(name, vocabulary=20, width=16, layers=2, heads=2, max_length=32, position="learned")
    ids = torch.zeros(2, 12, dtype=torch.int64)
    with no_reads():
        model(ids, key_mask=torch.ones(2, 12, dtype=torch.bool)).sum().backward()
