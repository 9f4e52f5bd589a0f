"""The pytest fixture, used as another project would use it: in a process of its own."""

import subprocess
import sys
from pathlib import Path

OTHER_PROJECT = """
import pytest
import torch
from torch import nn


class Mean(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.project, self.causal = nn.Linear(8, 8), causal

    def forward(self, x):
        x = self.project(x)
        return x.cumsum(dim=1) if self.causal else x + x.mean(dim=1, keepdim=True)


def test_right(longspan_audit):
    certificate = longspan_audit(Mean(causal=True), causal=True, order=1)
    assert certificate.passed


def test_wrong(longspan_audit):
    longspan_audit(Mean(causal=False), causal=True)


def test_misspelt(longspan_audit):
    with pytest.raises(ValueError, match="did you mean 'causal'"):
        longspan_audit(Mean(causal=True), casual=True)


def test_not_measured(longspan_audit):
    longspan_audit(Mean(causal=True), streaming=True)


def test_reading(longspan_audit):
    longspan_audit(Mean(causal=True), width=8, length=20)
"""


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_another_project_gets_a_readable_failure(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(OTHER_PROJECT)
    output = run(tmp_path, "-q")
    assert "3 passed" in output and "2 failed" in output, output
    assert "Mean: 4 of 7 claims failed\n" in output
    assert "Mean: 0 of 3 claims failed, 1 could not be measured\n" in output
    assert "FAIL  causal_perturbation: measured" in output
    assert "later inputs change no earlier output: worst: inputs after" in output
    assert "pass  determinism" not in output  # only what failed


def test_the_plugin_is_cheap_for_those_who_do_not_use_it(tmp_path: Path) -> None:
    """Every pytest run on the machine loads it, so it must not load torch."""
    (tmp_path / "test_nothing.py").write_text("import sys\n\ndef test():\n    assert 'torch' not in sys.modules\n")
    assert "1 passed" in run(tmp_path, "-q")
