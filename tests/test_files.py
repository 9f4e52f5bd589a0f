"""Written files are complete or absent, follow the umask, and errors name them."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from longspan import files


def test_a_file_is_replaced_when_all_of_it_is_written(tmp_path: Path):
    path = tmp_path / "a.txt"
    files.write_text(path, "one")
    with files.replacing(path) as part:
        part.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_after_a_failure_the_old_file_is_there_and_nothing_else(tmp_path: Path, error: BaseException):
    path = tmp_path / "a.txt"
    files.write_text(path, "one")
    with pytest.raises(type(error)), files.replacing(path) as part:
        part.write_text("half")
        raise error
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (OSError("1000 requested and 12 written"), errno.ENOSPC),
        (OSError(errno.EIO, "Input/output error"), errno.EIO),
    ],
)
def test_an_error_of_the_system_names_the_file(tmp_path: Path, error: Exception, number: int):
    path = tmp_path / "a.txt"
    with pytest.raises(OSError) as raised, files.replacing(path):
        raise error
    assert (raised.value.errno, raised.value.filename) == (number, str(path))
    assert raised.value.strerror == os.strerror(number) and not list(tmp_path.iterdir())


def test_an_error_about_another_file_keeps_its_name(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as raised, files.replacing(tmp_path / "a"):
        (tmp_path / "source").read_bytes()
    assert raised.value.filename == str(tmp_path / "source")


def test_a_folder_that_is_not_there_is_named_by_the_file(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as raised:
        files.write_text(tmp_path / "none" / "a", "")
    assert raised.value.filename == str(tmp_path / "none" / "a")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_is_what_the_umask_gives(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        with files.replacing(tmp_path / "weights") as part:
            save_file({"a": torch.ones(2)}, part)  # which makes a file of mode 0600
        files.write(tmp_path / "array", lambda file: np.save(file, np.arange(3)))
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.iterdir())] == [0o666 & ~umask] * 2
    assert load_file(tmp_path / "weights")["a"].tolist() == [1, 1] and np.load(tmp_path / "array").tolist() == [0, 1, 2]


def test_what_was_added_to_a_folder_is_removed_again(tmp_path: Path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").write_text("")
    with pytest.raises(RuntimeError), files.undone_on_error(tmp_path / "old"):
        (tmp_path / "old" / "new").mkdir()
        (tmp_path / "old" / "new" / "inner").write_text("")
        (tmp_path / "old.part").mkdir()
        raise RuntimeError
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["old", "old/kept"]
    with pytest.raises(RuntimeError), files.undone_on_error(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "c").mkdir(parents=True)
        raise RuntimeError
    assert not (tmp_path / "a").exists()
    with files.undone_on_error(tmp_path / "file"):
        (tmp_path / "file").write_text("")
    assert (tmp_path / "file").exists()


def test_unfinished_files_are_removed_by_a_process_that_ends_at_once(tmp_path: Path):
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "a") as part:
        assert part.exists()
        files.remove_unfinished()
        assert not part.exists()


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Renaming a file over /dev/full, as root can, would destroy the device."""
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_text("/dev/full", "text")
    assert caught.value.filename == "/dev/full"
    assert Path("/dev/full").is_char_device()
    files.write_text("/dev/null", "text")
    assert Path("/dev/null").is_char_device() and [path.name for path in Path("/dev").glob("*.part")] == []


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_text(tmp_path / "pipe", "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "file").read_text() == "new"
