"""What all tests share: one thread, reproducible Hypothesis runs, and two ways to compare.

Everything here is handed out by fixtures of session scope, so that Hypothesis may use them too.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from torch import Tensor

import longspan
from longspan import precision

if TYPE_CHECKING:
    from longspan.models.base import Model

# A second checkout runs the tests of one tree against the code of another unless PYTHONPATH says otherwise.
assert Path(longspan.__file__).is_relative_to(Path(__file__).parents[1]), f"these tests are not of {longspan.__file__}"

# The real data of the project lie beside it where they lie at all; tests marked `data` say so where they do not.
BESIDE = Path(__file__).parents[2] / "shared" / "data"
if BESIDE.is_dir():
    os.environ.setdefault("LONGSPAN_DATA", str(BESIDE))

# oneDNN reads this before its first product, and processes that tests start inherit it.
if not precision.bfloat16_runs.__wrapped__():
    os.environ.setdefault(*precision.WITHOUT_AMX)

torch.set_num_threads(1)
settings.register_profile("longspan", deadline=None, derandomize=True, max_examples=40, print_blob=True)
settings.load_profile("longspan")

# What `make quick` runs of the contract, beside the tests of everything that is not a mechanism: enough to see at once
# that a mechanism has been broken, in under a minute.
QUICK_CHECKS = ("oracle", "causal_perturbation", "padding_content", "streaming", "lengths")
QUICK_FOLDERS = ("nn", "cli", "report")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what takes under a minute in all (make quick)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    quick = [item for item in items if _is_quick(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in quick])
    items[:] = quick


def _is_quick(item: pytest.Item) -> bool:
    if item.get_closest_marker("slow") or item.get_closest_marker("browser"):
        return False
    folder = item.path.parent
    if folder.name == "contract":
        return item.path.name == "test_contract.py" and any(item.name.endswith(f"-{name}]") for name in QUICK_CHECKS)
    return folder == Path(__file__).parent or folder.name in QUICK_FOLDERS


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands print does not depend on the terminal that the tests were started in."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def preset() -> "Callable[[str], Model]":
    """A preset by its name, without numbers; each is built once."""
    from longspan.models import build
    from longspan.models.cost import blank

    @cache
    def built(name: str) -> "Model":
        with blank():
            return build(name)

    return built


@pytest.fixture(scope="session")
def dense() -> Callable[..., Tensor]:
    """Masked softmax attention as it stands in a textbook: the truth for layouts and mechanisms."""

    def attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale
        if bias is not None:
            scores = scores + bias
        keep = keep.expand_as(scores)
        alive = keep.any(-1, keepdim=True)
        scores = scores.masked_fill(~keep, float("-inf")).masked_fill(~alive, 0.0)
        weights = scores.softmax(-1) * alive
        return torch.einsum("bhij,bhje->bhie", weights, v)

    return attention


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Two functions of the same tensors: equal values, and equal gradients of every tensor."""

    def check(
        one: Callable[..., Tensor], other: Callable[..., Tensor], *inputs: Tensor, tolerance: float = 1e-10
    ) -> None:
        results = []
        for run in (one, other):
            leaves = [x.detach().clone().requires_grad_() for x in inputs]
            out = run(*leaves)
            towards = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
            gradients = torch.autograd.grad((out * towards).sum(), leaves, materialize_grads=True)
            results.append((out.detach(), *gradients))
        for index, (a, b) in enumerate(zip(*results, strict=True)):
            what = "value" if index == 0 else f"gradient of input {index - 1}"
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda text, w=what: f"{w}: {text}")

    return check
