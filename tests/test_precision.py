"""What precision "auto" chooses, and why."""

from pathlib import Path

import pytest

from longspan import precision


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "CPU_FLAGS", path)
    monkeypatch.setattr(precision, "has_bfloat16", precision.has_bfloat16.__wrapped__)
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


def test_the_trial_measures_both() -> None:
    assert all(0 < seconds < 10 for seconds in precision._trial())
