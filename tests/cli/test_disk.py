"""Disks that are full, read-only or broken, really so: one line that names the file, and nothing half-written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests.hub.folders import bert
from tests.train.starting import environment, recipe

from longspan.cli.failures import explain
from longspan.cli.main import main

SIZE = 1 << 20
PAGE = 4096


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    root = tmp_path_factory.mktemp("inputs")
    bert(root / "bert")
    recipe(root)
    return root


@pytest.fixture
def disk(tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """A file system of a megabyte, gone afterwards."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    capsys.readouterr()
    yield place
    subprocess.run(["umount", place], check=True)


def leave(disk: Path, pages: int) -> None:
    """Fill the disk up to this many pages."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail
    ballast.write_bytes(bytes((free - pages) * PAGE))


def entries(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def refused(disk: Path, arguments: Sequence[str], capsys: pytest.CaptureFixture[str], pages: int) -> bool:
    """Whether a command fails with this much room; then with one line that names a file of the disk."""
    leave(disk, pages)
    code = main([each.format(disk=disk) for each in arguments])
    err = capsys.readouterr().err
    if code != 2:
        assert code == 0, err
        return False
    lines = [line for line in err.splitlines() if line.startswith("longspan: ")]
    assert len(lines) == 1 and str(disk) in lines[0] and "No space left on device" in lines[0], err
    assert "Traceback" not in err
    return True


COMMANDS = {
    "embed": ["embed", "{inputs}/bert", *map(str, range(200)), "--out", "{disk}/vectors.npy"],
    "convert": ["convert", "{inputs}/bert", "{disk}/new", "--to", "longspan"],
    "convert-huggingface": ["convert", "{inputs}/bert", "{disk}/new"],
    "tokenize": ["tokenize", "learn", "{inputs}/text.txt", "--size", "600", "--out", "{disk}/tokenizer"],
    "data": ["data", "prepare", "generated", "--kind", "bytes", "--data", "{disk}", "--out", "{disk}/tokens"],
    "data-out": ["data", "prepare", "generated", "--kind", "bytes", "--data", "{inputs}", "--out", "{disk}/tokens"],
    "audit": ["audit", "torch.nn:Identity", "--width", "8", "--html", "{disk}/audit.html"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(name, disk, inputs, capsys):
    arguments = [each.replace("{inputs}", str(inputs)) for each in COMMANDS[name]]
    failures = 0
    for pages in (0, 1, 3, 8, 21):
        before = entries(disk) | {"ballast"}
        if not refused(disk, arguments, capsys, pages):
            break
        failures += 1
        assert entries(disk) == before
    assert failures


def test_train_before_its_first_save(disk, inputs, capsys):
    arguments = ["train", str(inputs / "small.toml"), "--out", "{disk}/run", "--train.steps", "1"]
    failures = 0
    for pages in (1, 2, 4):
        failures += refused(disk, arguments, capsys, pages)
        assert not [path for path in entries(disk) if path.endswith(".part")]
    assert failures
    (disk / "ballast").unlink()
    assert main([each.format(disk=disk) for each in arguments]) == 0  # what was left does not disturb


def test_arena(disk, capsys, monkeypatch):
    monkeypatch.setenv("LONGSPAN_CACHE", str(disk / "cache"))
    arguments = ["arena", "--tasks", "recall", "--models", "linear", "--no-speed", "--seeds", "1", "--workers", "1"]
    for pages in (0, 2):
        assert refused(disk, [*arguments, "--budget", "7s", "--out", "{disk}/arena"], capsys, pages)
        assert not [path for path in entries(disk) if path.endswith(".part")]


def test_a_report_that_cannot_be_written(disk, capsys, monkeypatch):
    monkeypatch.setattr("longspan.cli.profile._measure", lambda cases, processes: [])
    for flag, name in (("--out", "profile.json"), ("--html", "profile.html")):
        assert refused(disk, ["profile", "--mechanisms", "linear", flag, f"{{disk}}/{name}"], capsys, 0)
        assert entries(disk) == {"ballast"}


# Read-only, unreadable, missing


@pytest.mark.parametrize("name", COMMANDS)
def test_a_read_only_disk(name, disk, inputs, capsys):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    arguments = [each.replace("{inputs}", str(inputs)).format(disk=disk) for each in COMMANDS[name]]
    assert main(arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("longspan: ")]
    assert str(disk) in line and "Read-only file system" in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["train", "{inputs}"], "to continue a run: longspan resume {inputs}"),
        (["train", "{inputs}/bert/none.toml"], "none.toml"),
        (["train", "/proc/self/mem"], "/proc/self/mem cannot be read: Input/output error"),
        (["tokenize", "learn", "{inputs}", "--out", "{inputs}/new"], "{inputs}"),
        (["tokenize", "learn", "/proc/self/mem", "--out", "{inputs}/new"], "/proc/self/mem is cut short or damaged"),
        (["embed", "{inputs}/bert", "--file", "/proc/self/mem"], "/proc/self/mem: Input/output error"),
        (["embed", "{inputs}/bert", "a", "--out", "{inputs}/text.txt/a.npy"], "{inputs}/text.txt"),
        (["resume", "{inputs}/text.txt"], "{inputs}/text.txt"),
        (["evaluate", "{inputs}/text.txt"], "{inputs}/text.txt"),
        (["show", "{inputs}/small.toml"], "small.toml"),
        (["arena", "--out", "{inputs}/text.txt", "--tasks", "recall", "--models", "linear"], "{inputs}/text.txt"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_read_or_written_is_one_line(arguments, reason, inputs, capsys):
    capsys.readouterr()
    code = main([each.format(inputs=inputs) for each in arguments])
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and reason.format(inputs=inputs) in err, err


def test_a_configuration_that_is_nested_too_deeply(inputs, tmp_path, capsys):
    for name in ("config.json", "tokenizer_config.json"):
        folder = tmp_path / name
        shutil.copytree(inputs / "bert", folder)
        (folder / name).write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
        assert main(["embed", str(folder), "a"]) == 2
        assert f"{folder / name} is not readable JSON: it is nested too deep" in capsys.readouterr().err


@pytest.mark.parametrize("allocate", [lambda: bytes(1 << 62), lambda: torch.empty(1 << 60)], ids=["python", "torch"])
def test_memory_that_runs_out(allocate):
    def use(path: Path) -> None:
        allocate()

    with pytest.raises((MemoryError, RuntimeError)) as raised:
        use(Path("weights"))
    line = "out of memory while working on weights; use a smaller batch, text or model"
    assert explain(raised.value, ["list"]) == line


@pytest.mark.parametrize("arguments", [["--version"], ["list", "--json"]], ids=" ".join)
def test_output_that_cannot_be_written(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "longspan", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("longspan: standard output: No space left on device")


# Modes


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_files_have_the_mode_that_the_umask_gives(umask, mode, inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    before = os.umask(umask)
    try:
        assert main(["embed", str(inputs / "bert"), "a", "--out", str(tmp_path / "vectors.npy")]) == 0
        assert main(["data", "prepare", "generated", "--kind", "bytes", "--out", str(tmp_path / "tokens")]) == 0
        assert main(["train", str(inputs / "small.toml"), "--out", str(tmp_path / "run"), "--train.steps", "1"]) == 0
    finally:
        os.umask(before)
    modes = {str(path): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert len(modes) > 8
    assert {path: oct(found) for path, found in modes.items() if found != mode} == {}
