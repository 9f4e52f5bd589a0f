"""The commands as a user types them: output, exit codes, and what is said of wrong input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.attention import names
from longspan.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_shows_every_mechanism(capsys):
    code, out, err = run(capsys, "list")
    assert code == 0 and not err
    assert all(name in out for name in names())
    code, out, _ = run(capsys, "list", "--json")
    assert [row["name"] for row in json.loads(out)] == names()


@pytest.mark.parametrize("name", names())
def test_show_tells_all_options_with_help_and_limits(capsys, name):
    code, out, _ = run(capsys, "show", name, "--json")
    row = json.loads(out)
    assert code == 0 and row["name"] == name and row["paper"] and row["order"] and row["summary"]
    for option in row["options"]:
        assert option["help"] and option["type"]
    code, out, _ = run(capsys, "show", name)
    assert code == 0
    assert all(option["name"] in out for option in row["options"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "windw"], ["windw", "did you mean 'window'"]),
        (["show"], ["NAME"]),
        (["audit"], ["--all"]),
        (["audit", "windw"], ["windw", "window"]),
        (["audit", "window", "--all"], ["--all"]),
        (["audit", "no.such.module:thing"], ["no.such.module"]),
        (["audit", "json:lods"], ["lods", "loads"]),
        (["audit", "json:JSONDecoder"], ["torch.nn.Module", "JSONDecoder"]),
        (["audit", "window", "--causal"], ["window", "claims"]),
        (["audit", "window", "--out", "/no/such/folder/a.json"], ["/no/such/folder"]),
        (["audit", "window", "--html", "/"], ["folder"]),
        (["audit", "torch.nn:Identity", "--order", "nine"], ["--order", "nine"]),
        (["audit", "window", "--workers", "0"], ["--workers", "0"]),
        (["audit", "window", "--cusal"], ["--cusal"]),
        (["audit", "torch.nn:MultiheadAttention"], ["cannot be called without arguments", "wrapped in a function"]),
        (["audit", "torch.nn:Identity", "--width", "8", "--causal-mask"], ["takes no causal mask"]),
        (["audit", "torch.nn:Identity", "--width", "8", "--long-length", "9"], ["--long-length must be at least 66"]),
        (["lst"], ["lst", "list"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out
    assert err.count("\n") == 1 and "Traceback" not in err
    for word in words:
        assert word in err


@pytest.fixture
def modules(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        """
from torch import nn

class Mean(nn.Module):  # a running mean: causal
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        steps = x.new_ones(x.shape[1]).cumsum(0)
        return self.linear(x).cumsum(1) / steps[:, None]

class Whole(Mean):  # a mean over everything: not causal
    def forward(self, x):
        return self.linear(x) + x.mean(1, keepdim=True)
"""
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_audit_measures_claims_of_other_peoples_modules(capsys, modules):
    code, out, err = run(
        capsys, "audit", "mine:Mean", "--causal", "--width", "8", "--out", "a.json", "--html", "a.html"
    )
    assert code == 0 and not err, err
    assert "pass" in out and "FAIL" not in out and "causal" in out
    (certificate,) = json.loads((modules / "a.json").read_text())
    assert certificate["passed"] and certificate["subject"] == "mine:Mean"
    assert {finding["check"] for finding in certificate["findings"]} >= {"causal_perturbation", "causal_gradient"}
    assert "mine:Mean" in (modules / "a.html").read_text()

    code, out, _ = run(capsys, "audit", "mine:Whole", "--causal", "--width", "8")
    assert code == 1 and "FAIL" in out


def test_an_audit_that_could_not_measure_a_claim_says_so_and_exits_with_3(capsys, modules):
    code, out, err = run(capsys, "audit", "mine:Mean", "--streaming", "--html", "a.html")
    assert code == 3 and not err, err
    assert "mine:Mean not measured" in out and "FAIL" not in out and "nan" not in out
    assert "2 of 3 claims hold, 1 not measured; 0 of 1 targets pass" in out
    assert "2 of 3 findings pass, 0 fail, 1 not measured" in (modules / "a.html").read_text()

    code, out, _ = run(capsys, "audit", "mine:Whole", "--causal", "--streaming")
    assert code == 1 and "mine:Whole FAIL" in out  # a failure outweighs what was not measured


def test_audit_with_the_causal_mask_of_a_module(capsys, modules):
    line = "def encoder(): return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)"
    (modules / "mine.py").write_text(f"from torch import nn\n\n{line}\n")
    short = ("--causal", "--padding", "--length", "16", "--long-length", "40")
    code, out, _ = run(capsys, "audit", "mine:encoder", *short)
    assert code == 1 and "--causal-mask" in " ".join(out.split())
    code, out, _ = run(capsys, "audit", "mine:encoder", *short, "--causal-mask")
    assert code == 0 and "10 of 10 claims hold; 1 of 1 targets pass" in out


@pytest.mark.slow
def test_several_targets_side_by_side_are_printed_in_their_order(capsys, modules):
    code, out, err = run(capsys, "audit", "mine:Whole", "mine:Mean", "--causal", "--width", "8", "--workers", "2")
    assert code == 1 and not err
    assert out.index("mine:Whole FAIL") < out.index("mine:Mean pass") and "1 of 2 targets pass" in out


def test_help_of_every_command_has_an_example(capsys):
    for command in ("list", "show", "audit"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0 and f"longspan {command}" in out.split("Examples")[1]


@pytest.mark.slow
def test_the_installed_script_and_the_module_are_the_same():
    for start in ([str(Path(sys.executable).with_name("longspan"))], [sys.executable, "-m", "longspan"]):
        done = subprocess.run([*start, "show", "windw"], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith(
            "longspan: no attention, model or preset is called 'windw'"
        )


def test_whoever_reads_the_output_may_stop_reading():
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", "show", "gpt2", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
