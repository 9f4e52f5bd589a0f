"""What precision "auto" chooses, and why."""

from pathlib import Path

import pytest

from longspan import precision


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "CPU_FLAGS", path)
    monkeypatch.setattr(precision, "_cpu_flags", precision._cpu_flags.__wrapped__)
    monkeypatch.setattr(precision, "bfloat16_runs", precision.bfloat16_runs.__wrapped__)
    return path


def test_without_the_flags_it_is_float32(flags: Path) -> None:
    flags.write_text("processor : 0\nflags : fpu avx2 avx512f\n")
    expected = ("float32", "the processor has neither avx512_bf16 nor amx_bf16")
    assert precision.choose_precision() == expected
    flags.unlink()
    assert precision.choose_precision() == expected


@pytest.mark.parametrize(("half", "chosen"), [(0.001, "bfloat16"), (0.003, "float32")])
def test_with_the_flags_the_trial_decides(
    flags: Path, monkeypatch: pytest.MonkeyPatch, half: float, chosen: str
) -> None:
    flags.write_text("flags : fpu amx_bf16\n")
    monkeypatch.setattr(precision, "_trial", lambda: (0.002, half))
    text = f"a product took {half * 1000:.0f} ms in bfloat16 and 2 ms in float32"
    assert precision.choose_precision() == (chosen, text)


def test_a_machine_that_dies_of_bfloat16_is_found_without_dying(flags: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PRODUCT", "import os; os.kill(os.getpid(), 4)")
    flags.write_text("flags : fpu avx512_bf16\n")
    assert precision.bfloat16_runs()  # no AMX: nothing is tried
    flags.write_text("flags : fpu avx512_bf16 amx_bf16\n")
    assert not precision.bfloat16_runs()
    chosen, reason = precision.choose_precision()
    assert chosen == "float32" and "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in reason


def test_the_trial_measures_both() -> None:
    assert all(0 < seconds < 10 for seconds in precision._trial())
