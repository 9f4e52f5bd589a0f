"""Find a model in the local cache of Hugging Face by its name, HuggingFaceTB/SmolLM2-135M. Nothing is downloaded.

The cache is a folder with one folder for each model: `models--owner--name`. In it, `refs/main` holds the commit of a
revision, `snapshots/COMMIT` has the files of that commit, and these are links to `blobs`, where the bytes are. A
download that was interrupted leaves links without a blob, or files that are missing, and `*.incomplete` blobs.
"""

import os
import re
from pathlib import Path

from longspan.errors import InvalidInput, suggest
from longspan.hub.formats.safetensors_files import INDEX, ONE, shards
from longspan.models.folder import CONFIG

MAIN = "main"  # the revision of a name without one
# NAME or OWNER/NAME, and @REVISION: a branch, a tag, refs/pr/1 or a commit
NAME = re.compile(r"(?:(?P<owner>\w[\w.-]*)/)?(?P<name>\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SHORTEST_COMMIT = 7  # letters of a commit that are enough to name it
SHOWN = 3  # missing files that an error lists


def folder() -> Path:
    """The cache folder, as Hugging Face's own tools choose it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "huggingface" / "hub"


def is_name(text: str) -> bool:
    """Whether a text can be the name of a model: name, owner/name, with or without @revision."""
    match = NAME.fullmatch(text)
    return match is not None and ".." not in text and "--" not in text


def is_cached(text: str) -> bool:
    """Whether the cache has a folder for a model of this name, whole or not."""
    return is_name(text) and _repository(text).is_dir()


def find(text: str) -> Path:
    """The folder with the files of a model, which has been checked for files that are missing.

    >>> find("HuggingFaceTB/SmolLM2-135M@v1.0")
    """
    repository, name, revision = _repository(text), text.partition("@")[0], text.partition("@")[2] or MAIN
    if not repository.is_dir():
        raise InvalidInput(f"{absent(text)}; {download(text)}")
    snapshot = repository / "snapshots" / _commit(repository, name, revision)
    if not snapshot.is_dir():
        raise InvalidInput(f"{_half(text)}: {snapshot} is not there; {download(text)}")
    _check_files(text, repository, snapshot)
    return snapshot


def absent(text: str) -> str:
    """That a model is not in the cache, and where it was looked for."""
    return f"no model {text.partition('@')[0]} in the local Hugging Face cache {folder()}"


def download(text: str) -> str:
    """How to get a model."""
    name, _, revision = text.partition("@")
    chosen = f" --revision {revision}" if revision else ""
    return f"longspan downloads no models: `hf download {name}{chosen}` does (pip install huggingface_hub)"


def _repository(text: str) -> Path:
    return folder() / f"models--{text.partition('@')[0].replace('/', '--')}"


def _commit(repository: Path, name: str, revision: str) -> str:
    """The commit of a revision: of a branch or tag, or the one whose first letters these are."""
    reference = repository / "refs" / revision
    if reference.is_file():
        with reference.open("rb") as file:
            commit = file.read(64).decode("ascii", "replace").strip()
        if COMMIT.fullmatch(commit) is None:
            raise InvalidInput(f"{reference} must hold a commit of 40 letters, not {commit!r}; {download(name)}")
        return commit
    snapshots = _names(repository / "snapshots")
    if len(revision) >= SHORTEST_COMMIT:
        matching = [commit for commit in snapshots if commit.startswith(revision)]
        if len(matching) == 1:
            return matching[0]
    references = repository / "refs"
    known = sorted(str(path.relative_to(references)) for path in references.rglob("*") if path.is_file())
    if not known and not snapshots:
        raise InvalidInput(f"{_half(name)}: {repository} has no snapshots yet; {download(name)}")
    there = ", ".join([*known, *(commit[:12] for commit in snapshots)])
    hint = suggest(revision, known) if known and revision != MAIN else f"give {name}@REVISION"
    raise InvalidInput(f"the cache {folder()} has no revision {revision!r} of {name}; it has {there}: {hint}")


def _names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []


def _half(text: str) -> str:
    return f"{text} is only half downloaded"


def _check_files(text: str, repository: Path, snapshot: Path) -> None:
    """Refuses a snapshot without a file that loading needs, and names the file."""
    missing = sorted(path.name for path in snapshot.iterdir() if path.is_symlink() and not path.exists())
    files = {path.name for path in snapshot.iterdir() if path.is_file()}
    if not any(name.endswith(".gguf") for name in files):
        missing += [CONFIG] if CONFIG not in files and CONFIG not in missing else []
        if INDEX in files:
            missing += [path.name for path in _listed(snapshot) if path.name not in {*files, *missing}]
        elif ONE not in files and not any(name.endswith((".bin", ".safetensors", ".pt")) for name in files):
            missing += [] if ONE in missing else [ONE]
    if not missing:
        return
    listed = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
    unfinished = sum(1 for _ in repository.glob("blobs/*.incomplete"))
    begun = f" ({unfinished} unfinished in {repository / 'blobs'})" if unfinished else ""
    raise InvalidInput(f"{_half(text)}: {snapshot} lacks {listed}{begun}; {download(text)}")


def _listed(snapshot: Path) -> list[Path]:
    """The shards that the index names, there or not."""
    return list(shards(snapshot, INDEX, ".safetensors", present=False))


__all__ = ["absent", "download", "find", "folder", "is_cached", "is_name"]
