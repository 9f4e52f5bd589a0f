"""Adagrad on dense and sparse gradients, and the norm of both."""

import math

import pytest
import torch
from torch import nn

from longspan.errors import InvalidOption
from longspan.train.adagrad import Adagrad
from longspan.train.optim import Optimizer, clip_gradients


def test_it_equals_that_of_torch_on_dense_and_sparse_gradients():
    torch.manual_seed(0)
    tables = [nn.Parameter(torch.randn(6, 3, dtype=torch.float64)) for _ in range(3)]
    for other in tables[1:]:
        other.data.copy_(tables[0].data)
    theirs = torch.optim.Adagrad([tables[0]], lr=0.1, eps=1e-8)
    dense, sparse = (Adagrad([{"params": [table], "lr": 0.1}], eps=1e-8) for table in tables[1:])
    for ids in ([0, 2, 2], [2, 5, 1], [0, 0, 0]):
        for table, optimizer in zip(tables, (theirs, dense, sparse)):
            optimizer.zero_grad()
            rows = nn.functional.embedding(torch.tensor(ids), table, sparse=optimizer is sparse)
            (rows**3).sum().backward()
            optimizer.step()
        torch.testing.assert_close(tables[1], tables[0])
        torch.testing.assert_close(tables[2], tables[0])


def test_sparse_gradients_have_the_norm_of_dense_ones_and_are_clipped():
    torch.manual_seed(0)
    tables = [nn.Parameter(torch.ones(5, 2, dtype=torch.float64)) for _ in range(2)]
    for table, sparse in zip(tables, (False, True)):
        nn.functional.embedding(torch.tensor([1, 1, 3]), table, sparse=sparse).sum().backward()
    dense, sparse = (clip_gradients([table], 0.5) for table in tables)
    assert float(dense) == pytest.approx(math.sqrt(2 * 4 + 2)) and float(sparse) == pytest.approx(float(dense))
    torch.testing.assert_close(tables[1].grad.to_dense(), tables[0].grad)
    assert float(tables[0].grad.norm()) == pytest.approx(0.5)


def test_the_kinds_of_optimizers():
    model = nn.Linear(2, 2)
    assert type(Optimizer(kind="adagrad").build(model)) is torch.optim.Adagrad
    model.sparse_gradients = True  # then only the rows of a batch change
    assert type(Optimizer(kind="sgd", decay=0).build(model)) is torch.optim.SGD
    assert type(Optimizer(kind="adagrad", decay=0).build(model)) is Adagrad
    with pytest.raises(InvalidOption, match="sparse gradients allow no weight decay and no momentum; give decay = 0"):
        Optimizer(kind="adagrad").build(model)
    with pytest.raises(InvalidOption, match="adamw takes no sparse gradients"):
        Optimizer().build(model)
