"""Prepare a data set: download missing files, check them, count, tokenise."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.data.npz_files import read_npz
from longspan.data.sets import download
from longspan.data.sets import named as named_sets
from longspan.data.sets.prepared_tokens import Sizes, fingerprint, write_sizes
from longspan.data.sets.sources import sources
from longspan.data.text import text_files
from longspan.data.text.pieces import pieces
from longspan.data.text.text_files import DAMAGED, open_bytes
from longspan.data.text.token_files import SHARD, write_shards
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.parsing import refusing

LEARNED_FROM = 1 << 26  # characters that a tokenizer is learned from


@dataclass
class Counted:
    """One file of a set."""

    split: str
    path: Path
    checked: bool  # its checksum was compared
    counts: dict[str, int]

    def plain(self) -> dict[str, Any]:
        return {"split": self.split, "path": str(self.path), "checked": self.checked, **self.counts}


def obtain(name: str, root: Path | None, *, show: download.Show = lambda came, total: None) -> list[Counted]:
    """The files of a set, downloaded if missing; a wrong checksum is an error."""
    found, here = named_sets.find(name), named_sets.paths(name, root)
    if named_sets.is_generated(found) or not named_sets.can_download(found):
        named_sets.files(name, root)
    counted = []
    for split, path in here.items():
        source = sources().get(found.files[split])
        if not path.is_file():
            assert source is not None
            download.fetch(source, path, show=show)
        elif source is not None:
            _check(path, source.sha256)
        counted.append(Counted(split, path, source is not None, count(path)))
    return counted


def _check(path: Path, sha256: str) -> None:
    try:
        seen = download.digest(path)
    except (OSError, *DAMAGED) as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if seen != sha256:
        raise InvalidInput(f"{path} is not the file that is known: its checksum is {seen[:16]}…, not {sha256[:16]}…")


def count(path: Path) -> dict[str, int]:
    """Examples, or lines, words and characters of a file, by its ending."""
    if path.suffix == ".npz":
        labels = read_npz(path, ("y",))["y"]
        if labels.ndim != 1:
            raise InvalidInput(f"{path}: y must be a row of labels, not {labels.shape}")
        return {"examples": len(labels)}
    if "-ubyte" in path.name:
        with refusing(path), open_bytes(path) as file:
            return {"examples": int.from_bytes(file.read(8)[4:])}
    lines = words = characters = 0
    for line in text_files.lines(path):
        lines, words, characters = lines + 1, words + len(line.split()), characters + len(line) + 1
    return {"lines": lines, "words": words, "characters": characters}


def tokenise(
    counted: list[Counted],
    out: Path,
    *,
    learned: TokenizerOptions,
    tokenizer: Tokenizer | None = None,
    shard: int = SHARD,
) -> Tokenizer:
    """Tokenise texts into shards `out`/SPLIT, with the tokenizer beside them.

    The tokenizer is learned from the training text unless given. No text is ever whole in memory.
    """
    if tokenizer is None:
        first = next((each for each in counted if each.split == "train"), counted[0])
        tokenizer = learn(learned, _beginning(first.path))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(out)
    sizes = {each.split: Sizes() for each in counted}
    for each in counted:
        parts = _encoded(each.path, tokenizer, sizes[each.split])
        made = write_shards(
            out / each.split, parts, vocabulary=tokenizer.size, made_with=fingerprint(tokenizer), size=shard
        )
        each.counts["tokens"] = len(made)
    write_sizes(out, sizes)
    return tokenizer


def _encoded(path: Path, tokenizer: Tokenizer, sizes: Sizes) -> Iterator[tuple[list[int], bool]]:
    """The ids of each piece, and whether it begins a document; adds to `sizes`."""
    for number, piece in enumerate(pieces(path)):
        sizes.add(piece)
        yield tokenizer.encode(piece, special=False).ids, number == 0


def _beginning(path: Path) -> Iterator[str]:
    seen = 0
    for piece in pieces(path):
        yield piece
        seen += len(piece)
        if seen >= LEARNED_FROM:
            return


__all__ = ["Counted", "count", "obtain", "tokenise"]
