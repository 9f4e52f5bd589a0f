"""Folders of files: which files count, and the labels that the names of their folders are."""

from collections.abc import Sequence
from pathlib import Path

from longspan.data.text.text_files import PACKED
from longspan.errors import InvalidInput

TEXTS = (".txt", ".text", ".md")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
SHOWN = 3  # most names that an error lists


def folder_files(path: Path, endings: Sequence[str] = TEXTS) -> list[tuple[Path, str | None]]:
    """The files of a folder with one of `endings`, sorted, each with its label: the name of its folder.

    Files are either all in the folder itself, where they have no label, or all in folders inside it. Hidden files are
    ignored; any other file is an error, because it might be part of the data.
    """
    inside = _visible(path)
    folders = [entry for entry in inside if entry.is_dir()]
    files = [entry for entry in inside if not entry.is_dir()]
    top = [file for file in files if _ends(file) in endings]
    if folders and top:
        raise InvalidInput(
            f"{path} mixes folders ({_some(folders)}) and files ({_some(top)}): a file outside them has no label; "
            "move it, or remove it"
        )
    labelled = [(file, folder.name) for folder in folders for file in _visible(folder)] if folders else []
    pairs: list[tuple[Path, str | None]] = [*labelled] if folders else [(file, None) for file in files]
    chosen = [(file, label) for file, label in pairs if _ends(file) in endings]
    if not chosen:
        other = f"; it has {_some([file for file, _ in pairs])}" if pairs else ""
        if pairs and _ends(pairs[0][0]) in IMAGES:
            other += "; images are for the task images"
        raise InvalidInput(f"{path} has no file that ends in {', '.join(endings)}{other}")
    for file, _ in pairs:
        if file.is_dir():
            raise InvalidInput(f"{file} is a folder inside a folder of files; name the folder that holds the files")
        if _ends(file) not in endings:
            raise InvalidInput(
                f"{path} mixes formats: {chosen[0][0].name} and {file}; keep files of one format, "
                f"such as {endings[0]}, in it"
            )
    return chosen


def holds_images(path: Path) -> bool:
    """Whether the first file with a known ending, in a folder or in the folders inside it, is an image."""
    for entry in _visible(path):
        for file in _visible(entry) if entry.is_dir() else [entry]:
            if _ends(file) in (*IMAGES, *TEXTS):
                return _ends(file) in IMAGES
    return False


def _visible(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from None


def _ends(file: Path) -> str:
    return (Path(file.stem).suffix if file.suffix in PACKED else file.suffix).lower()


def _some(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths[:SHOWN]) + (", …" if len(paths) > SHOWN else "")


__all__ = ["IMAGES", "TEXTS", "folder_files", "holds_images"]
