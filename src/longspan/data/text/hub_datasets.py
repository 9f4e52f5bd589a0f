"""Data sets of the package `datasets` (Hugging Face) as tables, from this machine only: `hf:NAME[@CONFIG][:SPLIT]`.

NAME is a folder that `save_to_disk` wrote, a folder of Parquet, Arrow, CSV or JSON files, or the name of a data set in
the local cache. Nothing is downloaded, and nothing is written to the cache.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput, LongspanError, Unsupported, suggest

PREFIX = "hf:"
SPLIT = "train"  # unless the name says another
SAVED = {"dataset_dict.json": "splits", "state.json": "one"}  # files that `save_to_disk` writes
WORD = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class HubName:
    """The parts of `hf:NAME@CONFIG:SPLIT`."""

    name: str
    config: str | None = None
    split: str | None = None

    @classmethod
    def read(cls, text: str) -> "HubName":
        rest = text.removeprefix(PREFIX)
        before, colon, split = rest.rpartition(":")
        if not colon or not WORD.fullmatch(split) or Path(rest).exists():
            before, split = rest, ""
        name, at, config = before.rpartition("@")
        if not at or Path(before).exists():
            name, config = before, ""
        if not name:
            raise InvalidInput(f"{text!r} names no data set: give {PREFIX}FOLDER or {PREFIX}NAME, and :SPLIT if needed")
        return cls(name, config or None, split or None)

    def absolute(self) -> str:
        """The same text, with the whole path of a folder."""
        name = os.path.abspath(self.name) if Path(self.name).exists() else self.name  # noqa: PTH100
        config, split = f"@{self.config}" if self.config else "", f":{self.split}" if self.split else ""
        return f"{PREFIX}{name}{config}{split}"


def is_hub_dataset(path: Path | str) -> bool:
    """Whether a path is a name with `hf:`, or a folder that `save_to_disk` wrote."""
    if str(path).startswith(PREFIX):
        return True
    path = Path(path)
    return path.is_dir() and any((path / file).is_file() for file in SAVED)


def read_dataset(path: Path | str) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """The columns of a data set, and its rows; classes by their names, nested fields as `outer.inner`."""
    named, datasets = HubName.read(str(path)), _package(path)
    with _explaining(path):
        found = _open(named, datasets, str(path))
        features, records = found.features, iter(found)
        first = list(islice(records, 1))  # files of text do not say their columns
        columns = _columns(features) if features is not None else [name for row in first for name in _flat(row, None)]
    return columns, _rows(chain(first, records), features, path)


def _rows(records: Iterator[Mapping[str, Any]], features: Any, path: Path | str) -> Iterator[Mapping[str, Any]]:
    with _explaining(path):
        for record in records:
            yield _flat(record, features)


def _package(path: Path | str) -> Any:
    try:
        return import_module("datasets")
    except ImportError:
        raise Unsupported(
            f"{path}: data sets of Hugging Face are read by the package datasets, which is not installed: "
            "pip install longspan[hf-tools]"
        ) from None


@contextmanager
def _explaining(path: Path | str) -> Iterator[None]:
    """Errors of the package as one line."""
    try:
        yield
    except LongspanError:
        raise
    except Exception as error:  # the package raises many kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidInput(f"{path} cannot be read as a data set: {lines[0]}") from None


def _open(named: HubName, datasets: Any, text: str) -> Any:
    folder = Path(named.name)
    if (folder / "dataset_dict.json").is_file():
        splits = datasets.load_from_disk(str(folder))
        return splits[_chosen(named.split, list(splits), text)]
    if (folder / "state.json").is_file():
        if named.split is not None:
            raise InvalidInput(f"{text}: {folder} is one data set without splits; leave out :{named.split}")
        return datasets.load_from_disk(str(folder))
    if folder.is_dir():
        return _files(folder, named, datasets, text)
    cached = _cached(named, datasets, text)
    if cached is not None:
        return cached
    snapshot = _snapshot(named.name)
    if snapshot is not None:
        return _files(snapshot, named, datasets, text)
    raise InvalidInput(
        f"{text}: there is no folder {named.name!r}, and no data set of this name in {_cache(datasets)}; nothing is "
        "downloaded: fetch it with `datasets.load_dataset`, or give the folder of `save_to_disk`"
    )


def _chosen(split: str | None, splits: list[str], text: str) -> str:
    """The split that was asked for; by default the only one, or `train`."""
    if split is None:
        if len(splits) == 1 or SPLIT in splits:
            return splits[0] if len(splits) == 1 else SPLIT
        raise InvalidInput(f"{text} has the splits {', '.join(splits)}: name one, such as {text}:{splits[0]}")
    if split not in splits:
        raise InvalidInput(f"{text} has no split {split!r}: {suggest(split, splits)}")
    return split


def _files(folder: Path, named: HubName, datasets: Any, text: str) -> Any:
    """A folder of files, read in place."""
    known = [file for file in folder.rglob("*") if file.suffix in (".parquet", ".arrow", ".csv", ".json", ".jsonl")]
    if not known:
        raise InvalidInput(
            f"{text}: {folder} has no Parquet, Arrow, CSV or JSON files, and no data set was saved in it"
        )
    splits = datasets.load_dataset(str(folder), named.config, streaming=True)
    return splits[_chosen(named.split, list(splits), text)]


def _cache(datasets: Any) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE)


def _cached(named: HubName, datasets: Any, text: str) -> Any:
    """The Arrow files that `load_dataset` has prepared for a name; None if there are none."""
    root = _cache(datasets) / named.name.replace("/", "___")
    records = sorted(root.glob("*/*/*/dataset_info.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        return None
    configs = sorted({record.parents[2].name for record in records})
    config = named.config or (configs[0] if len(configs) == 1 else "default")
    if config not in configs:
        hint = f"{text.partition(':')[0]}:{named.name}@{configs[0]}"
        raise InvalidInput(f"{text}: it has the configurations {', '.join(configs)}; name one, such as {hint}")
    folder = next(record.parent for record in reversed(records) if record.parents[2].name == config)
    by_split: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.arrow")):
        matched = re.fullmatch(r".*?-([A-Za-z_.0-9]+?)(-\d{5}-of-\d{5})?", file.stem)
        if matched is not None:
            by_split.setdefault(matched[1], []).append(file)
    if not by_split:
        raise InvalidInput(f"{text}: {folder} has no data: it was not fetched to the end; load it again with datasets")
    chosen = by_split[_chosen(named.split, list(by_split), text)]
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(file)) for file in chosen])


def _snapshot(name: str) -> Path | None:
    """The newest files of a data set's repository in the cache of huggingface_hub."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    snapshots = cache / f"datasets--{name.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*/"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


# Fields


def _columns(features: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    for name, feature in features.items():
        inner = _columns(feature) if isinstance(feature, Mapping) else [""]
        names.extend(f"{name}.{part}" if part else name for part in inner)
    return names


def _flat(record: Mapping[str, Any], features: Any) -> dict[str, Any]:
    """The fields of a row, nested ones under `outer.inner`, and classes by their names."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        feature = None if features is None else features[name]
        if isinstance(value, Mapping):
            inner = _flat(value, feature if isinstance(feature, Mapping) else None)
            fields.update({f"{name}.{part}": each for part, each in inner.items()})
        else:
            fields[name] = _named(value, feature)
    return fields


def _named(value: Any, feature: Any) -> Any:
    if isinstance(value, list):
        inner = getattr(feature, "feature", None)
        return [_named(each, inner) for each in value]
    names = getattr(feature, "names", None)
    if names and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return value


__all__ = ["PREFIX", "HubName", "is_hub_dataset", "read_dataset"]
