"""From the files of a set to what training reads: downloaded where they are missing, checked, counted, tokenised."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data import download, sets, text
from longspan.data.learning import Learned, learn
from longspan.data.sources import SOURCES
from longspan.data.tokenizer import Tokenizer
from longspan.data.tokens import SHARD, write_shards
from longspan.errors import InvalidInput

PIECE = 1 << 20  # characters that are cut into tokens at once
LEARNED_FROM = 1 << 26  # characters of a text that a tokenizer is learned from


@dataclass
class Counted:
    """One file of a set."""

    split: str
    path: Path
    checked: bool  # against the checksum that is known of it
    counts: dict[str, int]

    def plain(self) -> dict[str, Any]:
        return {"split": self.split, "path": str(self.path), "checked": self.checked, **self.counts}


def obtain(name: str, root: Path | None, *, show: download.Show = lambda came, total: None) -> list[Counted]:
    """The files of a set, downloaded where they are missing and an address is known; a wrong checksum is an error."""
    found, here = sets.find(name), sets.paths(name, root)
    if sets.is_generated(found) or not sets.can_download(found):
        sets.files(name, root)
    counted = []
    for split, path in here.items():
        source = SOURCES.get(found.files[split])
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
    except (EOFError, OSError) as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if seen != sha256:
        raise InvalidInput(f"{path} is not the file that is known: its checksum is {seen[:16]}…, not {sha256[:16]}…")


def count(path: Path) -> dict[str, int]:
    """What can be counted of a file, by how its name ends."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {"examples": len(arrays["y"])}
    if "-ubyte" in path.name:
        with text.open_bytes(path) as file:
            return {"examples": int.from_bytes(file.read(8)[4:])}
    lines = words = characters = 0
    for line in text.lines(path):
        lines, words, characters = lines + 1, words + len(line.split()), characters + len(line) + 1
    return {"lines": lines, "words": words, "characters": characters}


def tokenise(
    counted: list[Counted], out: Path, *, learned: Learned, tokenizer: Tokenizer | None = None, shard: int = SHARD
) -> Tokenizer:
    """Cuts texts into tokens and writes them to shards `out`/SPLIT, with the tokenizer beside them.

    The tokenizer is learned from the training text unless one is given. No text is ever whole in memory.
    """
    if tokenizer is None:
        first = next((each for each in counted if each.split == "train"), counted[0])
        tokenizer = learn(learned, _beginning(first.path))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(out)
    made_with = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
    for each in counted:
        parts = (
            (tokenizer.encode(piece, special=False).ids, number == 0) for number, piece in enumerate(pieces(each.path))
        )
        made = write_shards(out / each.split, parts, vocabulary=tokenizer.size, made_with=made_with, size=shard)
        each.counts["tokens"] = len(made)
    return tokenizer


def _beginning(path: Path) -> Iterator[str]:
    seen = 0
    for piece in pieces(path):
        yield piece
        seen += len(piece)
        if seen >= LEARNED_FROM:
            return


def pieces(path: Path, size: int = PIECE) -> Iterator[str]:
    """A text in pieces of about `size` characters, cut where tokens end: before a space, or the end of a line."""
    held = ""
    for part in text.blocks(path, size):
        held += part
        if len(held) < size:
            continue
        cut = _border(held)
        yield held[:cut]
        held = held[cut:]
    if held:
        yield held


def _border(held: str) -> int:
    for pattern in (r"\S (?=\S)", r"\S(?=\s)"):
        # Looked for in the last part first: almost always it is there.
        for start in (max(0, len(held) - 1000), 1):
            found = [match.start() + 1 for match in re.finditer(pattern, held[start:])]
            if found and start + found[-1] < len(held):
                return start + found[-1]
    return len(held)


__all__ = ["Counted", "count", "obtain", "pieces", "tokenise"]
