"""Ctrl-C from the first moment on: one line and exit code 130, whatever is being imported or read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.starting import environment

# A process that imports this sends itself SIGINT when a certain module is looked for, or right after it was executed.
HOOK = """
import os, signal, sys

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STOP_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Hook())
"""
# In place of the signal to itself: to all processes of the group, by whichever worker comes first.
FIRST_WORKER = """
            try:
                os.mkdir(__file__ + ".sent")
            except FileExistsError:
                return None
            os.killpg(0, signal.SIGINT)
"""
STARTS = {"module": ["-m", "longspan"], "script": ["-c", "from longspan.cli.main import run; run()"]}


def stopped(tmp_path: Path, module: str, start: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    known = environment(STOP_AT=module)
    known["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{known['PYTHONPATH']}"
    return subprocess.run([sys.executable, *STARTS[start], *arguments], capture_output=True, text=True, env=known)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("longspan.cli.commands", ["list"]),
        ("cyclopts", ["list"]),
        ("rich", ["--help"]),
        ("longspan.cli.attention", ["show", "window"]),
        ("torch", ["show", "window"]),
        ("numpy", ["show", "window"]),  # which torch imports from C, and goes on without
        ("safetensors", ["embed", "/", "text"]),
    ],
)
def test_ctrl_c_while_modules_are_imported(tmp_path, module, arguments):
    start = "script" if module in ("cyclopts", "torch") else "module"
    done = stopped(tmp_path, module, start, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "longspan: stopped\n")


def test_ctrl_c_while_worker_processes_start(tmp_path):
    """A terminal sends the signal to all of them, once; the workers say nothing."""
    hook = HOOK.replace("os.kill(os.getpid(), signal.SIGINT)", FIRST_WORKER)
    hook = hook.replace('name == os.environ["STOP_AT"]', 'name == "torch" and "multiprocessing.spawn" in sys.modules')
    (tmp_path / "sitecustomize.py").write_text(hook)
    known = environment()
    known["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{known['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "longspan", "audit", "window", "linear", "--workers", "2"],
        capture_output=True,
        text=True,
        env=known,
        start_new_session=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "longspan: stopped\n")


def test_ctrl_c_while_input_is_awaited(tmp_path):
    """The process says on a pipe that it reads: from then on it waits."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class CellProgress:\n"
        "    def read(self):\n"
        "        os.write(1, b'reading')\n"
        "        return sys.__stdin__.buffer.read()\n"
        "class Standard:\n"
        "    buffer = CellProgress()\n"
        "sys.stdin = Standard()\n"
    )
    known = environment()
    known["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{known['PYTHONPATH']}"
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", "embed", "/", "--file", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=known,
    )
    assert process.stdout.read(7) == b"reading"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGINT, b"longspan: stopped\n")
