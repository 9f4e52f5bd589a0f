"""Columns of a table as tokens: the embedding, missing and unknown values, and the order of columns."""

import math
from typing import Any

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.models.cost import blank, count
from longspan.models.table import TableTransformer
from longspan.nn.table_embedding import TableEmbedding

COLOURS = {"name": "colour", "kind": "category", "values": ("red", "blue")}
TINY: dict[str, Any] = {
    "columns": [{"name": "a"}, COLOURS, {"name": "b"}],
    "width": 16,
    "layers": 2,
    "heads": 2,
    "hidden": 24,
    "tasks": [{"task": "classify", "labels": 3}],
}
NAN = math.nan


def model_of(**options: Any) -> TableTransformer:
    torch.manual_seed(0)
    model = build("table_transformer", **{**TINY, **options}).double().eval()
    assert isinstance(model, TableTransformer)
    return model


def test_a_token_is_the_number_times_its_vector_or_the_row_of_its_category() -> None:
    torch.manual_seed(0)
    layer = TableEmbedding(2, (3, 2), 4).double()
    torch.nn.init.normal_(layer.missing)
    numbers, categories = torch.tensor([[1.5, NAN]], dtype=torch.float64), torch.tensor([[2, 0]])
    out = layer(numbers, categories)[0]
    expected = [
        layer.token,
        1.5 * layer.weight[0] + layer.bias[0],
        layer.missing[1] + layer.bias[1],
        layer.table[2] + layer.bias[2],  # rows 0 to 3 are those of the first column
        layer.table[4] + layer.bias[3],
    ]
    torch.testing.assert_close(out, torch.stack(expected))
    assert layer.tokens == 5 and not layer.table[4].any()  # missing and unknown categories start at 0


def test_the_row_does_not_depend_on_the_order_of_columns() -> None:
    """Columns have no positions: exchanging two with their weights changes nothing."""
    model = model_of()
    numbers, categories = torch.randn(4, 2, dtype=torch.float64), torch.tensor([[0], [1], [2], [1]])
    before = model.outputs(numbers, categories)["classify"]
    with torch.no_grad():
        for table in (model.embedding.weight, model.embedding.missing, model.embedding.bias):
            table[:2] = table[:2].flip(0).clone()
    torch.testing.assert_close(model.outputs(numbers.flip(1), categories)["classify"], before)


def test_every_column_matters_and_rows_do_not_mix() -> None:
    model = model_of(attention="softmax")
    numbers, categories = torch.randn(3, 2, dtype=torch.float64), torch.tensor([[1], [1], [2]])
    before = model.outputs(numbers, categories)["classify"]
    for column in range(2):
        changed = numbers.clone()
        changed[0, column] = NAN
        after = model.outputs(changed, categories)["classify"]
        assert not torch.allclose(after[0], before[0]) and torch.equal(after[1:], before[1:])
    after = model.outputs(numbers, torch.tensor([[2], [1], [2]]))["classify"]
    assert not torch.allclose(after[0], before[0])


def test_missing_numbers_have_no_gradient_through_their_value() -> None:
    model = model_of().train()
    numbers = torch.tensor([[NAN, 1.0]], dtype=torch.float64, requires_grad=True)
    model.outputs(numbers, torch.tensor([[1]]))["classify"].sum().backward()
    assert numbers.grad is not None and numbers.grad.isfinite().all() and numbers.grad[0, 0] == 0
    assert model.embedding.missing.grad is not None and model.embedding.missing.grad[0].any()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("attention", ["linear", "window", "performer"])
def test_any_mechanism_reads_columns(attention: str) -> None:
    assert model_of(attention=attention)(torch.zeros(2, 2).double(), torch.ones(2, 1).long()).shape == (2, 4, 16)


def test_parameters() -> None:
    width, hidden, columns = 192, 256, 8
    tokens = width * (1 + 3 * columns)  # of the row; weight, vector for missing values and bias of each column
    block = 4 * (width**2 + width) + 2 * (width * hidden + hidden) + hidden * width + width + 4 * width
    with blank():
        assert sum(count(build("ft-transformer")).values()) == tokens + 3 * block + 2 * width + width + 1


def test_wrong_columns_and_input_are_refused() -> None:
    with pytest.raises(InvalidOption, match="each column has a name of its own; they are a, a"):
        model_of(columns=[{"name": "a"}, {"name": "a"}])
    model = model_of()
    with pytest.raises(InvalidInput, match=r"expected \(batch, 2\) numbers and \(batch, 1\) categories, got \(3, 3\)"):
        model(torch.zeros(3, 3), torch.zeros(3, 1).long())
    with pytest.raises(InvalidInput, match=r"expected categories from 0 to \(2,\), got up to \[3\]"):
        model(torch.zeros(1, 2).double(), torch.tensor([[3]]))
    with pytest.raises(InvalidInput, match="expected as many rows of both, got 3 and 2"):
        model(torch.zeros(3, 2), torch.zeros(2, 1).long())
