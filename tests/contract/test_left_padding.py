"""Mechanisms that say so read a row with padding on its left as if the padding were not there."""

import pytest
import torch

from longspan.attention import find, names
from longspan.audit import resolve
from longspan.audit.subjects import append

CASES = [
    (name, index)
    for name in names()
    if find(name).supports.left_padding
    for index, subject in enumerate(resolve(name))
    if subject.module.supports.left_padding and subject.module.causal
]


@pytest.mark.parametrize(("name", "index"), CASES)
@pytest.mark.parametrize("padding", [1, 7])
def test_left_padding_changes_nothing(name: str, index: int, padding: int):
    subject = resolve(name)[index].fresh()
    alone = subject.sample(2, 20, seed=1)
    noise = subject.sample(2, padding, seed=2)
    mask = torch.ones(2, padding + 20, dtype=torch.bool)
    mask[:, :padding] = False
    expected = subject.run(alone)
    torch.testing.assert_close(subject.run(append(noise, alone), mask)[:, padding:], expected, rtol=0, atol=1e-10)
