"""The kernel in C for weights of 4 and 8 bits, held to a product of the rounded inputs written in torch."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan import native
from longspan.nn import packed_product
from longspan.nn.quantized import QuantizedLinear, join

# Where there is a compiler, a kernel that does not compile is a failure.
pytestmark = pytest.mark.skipif(native.find_compiler() is None, reason="no C compiler here")
BLOCK = packed_product.BLOCK


def rounded(x: Tensor) -> Tensor:
    """The inputs as the kernel sees them: 8 bits in blocks of 32, each with the step of its largest number."""
    width = x.shape[1]
    blocks = torch.nn.functional.pad(x, (0, -width % BLOCK)).double().unflatten(1, (-1, BLOCK))
    step = blocks.abs().amax(-1, keepdim=True) / 127
    numbers = torch.where(step > 0, (blocks / step).round(), 0.0)
    return (numbers * step).flatten(1)[:, :width]


def close(layer: QuantizedLinear, x: Tensor) -> None:
    """Equal but for float32 sums; an input halfway between two numbers may be rounded to either."""
    exact = rounded(x) @ layer.dequantised(torch.float64).T
    size = x.abs().double() @ layer.dequantised(torch.float64).T.abs()
    assert ((layer(x) - exact).abs() <= 1e-5 * size).all()


def test_where_there_is_a_compiler_there_is_a_kernel() -> None:
    assert packed_product.functions() is not None


@pytest.mark.parametrize("inputs", [32, 64, 96, 160, 576, 32 * 300])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_4_bits_are_the_product_of_rounded_inputs(inputs: int, rows: int) -> None:
    layer = QuantizedLinear.of(torch.randn(32, inputs), None, "4")
    assert layer.kernel == packed_product.NAME
    close(layer, torch.randn(rows, inputs))


@pytest.mark.parametrize("group", [64, 128, 256])
def test_4_bits_with_larger_groups(group: int) -> None:
    close(QuantizedLinear.of(torch.randn(16, 512), None, "4", group=group), torch.randn(3, 512))


@pytest.mark.parametrize("inputs", [1, 8, 31, 32, 50, 96, 576])
@pytest.mark.parametrize("rows", [1, 5])
def test_8_bits_are_the_product_of_rounded_inputs(inputs: int, rows: int) -> None:
    close(QuantizedLinear.of(torch.randn(19, inputs), None, "8"), torch.randn(rows, inputs))


@pytest.mark.parametrize("bits", ["4", "8"])
def test_the_largest_numbers_do_not_overflow(bits: str) -> None:
    """Sums of two products must fit 16 bits: all weights and inputs at their ends, of both signs."""
    for sign in (1.0, -1.0):
        layer = QuantizedLinear.of(torch.cat((torch.ones(16, 32), -torch.ones(16, 32)), 1), None, bits)
        layer.weight.fill_(255 if bits == "4" else -127)
        close(layer, torch.full((2, 64), sign * 3.0))


@pytest.mark.parametrize("bits", ["4", "8"])
def test_a_block_of_zeros_adds_nothing_and_large_inputs_cost_other_blocks_nothing(bits: str) -> None:
    layer, x = QuantizedLinear.of(torch.randn(16, 96), None, bits), torch.randn(1, 96)
    x[:, 32:64] = 0
    close(layer, x)
    x[:, 64:] *= 1e4
    close(layer, x)
    assert not layer(torch.zeros(1, 96)).any()


@pytest.mark.parametrize("bits", ["4", "8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(bits: str, bad: float) -> None:
    layer, x = QuantizedLinear.of(torch.randn(16, 64), None, bits), torch.randn(2, 64)
    x[1, 40] = bad
    out = layer(x)
    assert out[0].isfinite().all() and out[1].isnan().all()


@pytest.mark.parametrize("bits", ["4", "8"])
def test_rows_do_not_depend_on_each_other_nor_on_threads(bits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_product, "LARGE", 1)
    layer, x = QuantizedLinear.of(torch.randn(48, 64), None, bits), torch.randn(5, 64)
    together = layer(x)
    assert torch.equal(together, torch.cat([layer(row[None]) for row in x]))
    torch.set_num_threads(2)
    try:
        assert torch.equal(layer(x), together)
    finally:
        torch.set_num_threads(1)


def test_any_precision_layout_and_number_of_rows() -> None:
    layer, x = QuantizedLinear.of(torch.randn(16, 64), torch.randn(16), "4"), torch.randn(64, 3).T
    assert torch.equal(layer(x), layer(x.contiguous()))
    assert layer(x.double()).dtype == torch.float64 and layer(x.bfloat16()).dtype == torch.bfloat16
    assert layer(x[:0]).shape == (0, 16)


def test_a_joined_layer_has_a_kernel_of_its_own() -> None:
    layers = [QuantizedLinear.of(torch.randn(outputs, 64), None, "4") for outputs in (32, 16)]
    joined, x = join(layers), torch.randn(1, 64)
    assert joined is not None and torch.equal(joined(x), torch.cat([layer(x) for layer in layers], -1))


def test_a_recorded_graph_has_a_plain_product_for_any_number_of_rows() -> None:
    layer, x = QuantizedLinear.of(torch.randn(16, 64), None, "4"), torch.randn(2, 64)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    for rows in (1, 2, 50):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(program.module()(x), x @ layer.dequantised().T)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_layer_does_not_keep_the_output_of_its_example() -> None:
    layer = QuantizedLinear.of(torch.randn(16, 64), None, "8")
    traced, x = torch.jit.trace(layer, (torch.randn(2, 64),)), torch.randn(2, 64)
    torch.testing.assert_close(traced(x), x @ layer.dequantised().T)


def test_a_weight_whose_memory_is_exchanged_is_read_where_it_is() -> None:
    layer, x = QuantizedLinear.of(torch.randn(16, 64), None, "4"), torch.randn(1, 64)
    before = layer(x)
    layer.weight.data = layer.weight.clone()
    assert torch.equal(layer(x), before)


def test_the_compiled_file_is_kept_and_can_be_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    fresh = native.library.__wrapped__
    assert fresh("packed_product") is not None
    (kept,) = (tmp_path / "native").iterdir()
    before = kept.stat().st_mtime_ns
    assert fresh("packed_product") is not None and kept.stat().st_mtime_ns == before
    monkeypatch.setenv("LONGSPAN_NATIVE", "0")
    assert fresh("packed_product") is None


def test_a_file_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    fresh = native.library.__wrapped__
    assert fresh("packed_product") is not None
    (kept,) = (tmp_path / "native").iterdir()
    if os.getuid() == 0:
        os.chown(kept, 12345, -1)
    else:
        monkeypatch.setattr("os.getuid", lambda: 12345)
    assert fresh("packed_product") is None


def test_without_a_compiler_or_a_place_for_it_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = native.library.__wrapped__
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "file"))
    assert fresh("packed_product") is None
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "false")  # a compiler that fails
    assert fresh("packed_product") is None
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC")
    assert native.find_compiler() is None
    assert fresh("packed_product") is None
