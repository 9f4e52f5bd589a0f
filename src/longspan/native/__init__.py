"""Functions in C for what torch has no fast kernel for, compiled on this machine at their first use.

The compiler is the system's (`CC`, else cc, gcc or clang); the result is kept in longspan's cache folder, by source,
compiler and processor. Without a compiler, or with LONGSPAN_NATIVE=0, `library` gives None and callers take torch's
kernels.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from longspan import files

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math")
LINK = ("-shared", "-fPIC", "-lm")
THREADS = "-fopenmp"  # torch's own threads, as both load libgomp.so.1
SECONDS = 60


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The functions of `name`.c; None if they cannot be compiled here."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = find_compiler()
    if compiler is None or os.environ.get("LONGSPAN_NATIVE") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled(source, compiler)))
    except OSError:
        return None


def find_compiler() -> list[str] | None:
    """The command of a C compiler: CC, cc, gcc or clang; None without one."""
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def _compiled(source: Path, compiler: list[str]) -> Path:
    """The compiled library of a source, from the cache or made now. Raises OSError if neither is possible."""
    parts = [source.read_text(encoding="utf-8"), *compiler, shutil.which(compiler[0]) or "", *FLAGS, THREADS, *LINK]
    key = hashlib.sha256("\n".join([*parts, _processor()]).encode()).hexdigest()[:16]
    folder = files.cache() / "native"
    target = folder / f"{source.stem}-{key}.so"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in (folder, target):
        if path.exists() and path.stat().st_uid not in (0, os.getuid()):
            raise OSError(f"{path} belongs to another user")  # whose code would run here
    if target.is_file():
        return target
    with files.replacing(target) as temporary:
        _compile(source, compiler, temporary)
    return target


def _compile(source: Path, compiler: list[str], target: Path) -> None:
    """With threads if the compiler has them; the simpler commands are tried after that."""
    complete = [*FLAGS, THREADS]
    for flags in (complete, [*FLAGS], [flag for flag in FLAGS if not flag.startswith("-march")]):
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "library.so"
            command = [*compiler, *flags, str(source), "-o", str(made), *LINK]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
            except (subprocess.SubprocessError, OSError):
                continue
            shutil.copyfile(made, target)
            return
    raise OSError(f"{source.name} could not be compiled with {' '.join(compiler)}")


def _processor() -> str:
    """What `-march=native` depends on: machine and processor flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"


__all__ = ["find_compiler", "library"]
