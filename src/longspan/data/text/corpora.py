"""Corpora for pre-training: documents of sentences, read from text files and stored as ids.

A user's file has one sentence per line and an empty line between documents. In WikiText a document is an article: it
begins at a first-level heading between empty lines. Headings are dropped. A sentence ends at a token `.`, `!` or `?`,
with the closing quote or bracket after it. Marks inside words (`role @-@ playing`) are undone, and `<unk>` becomes the
tokenizer's unknown token.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from longspan.data.sets import named as named_sets
from longspan.data.text import text_files
from longspan.data.text.row_texts import RowTexts
from longspan.data.text.tables import is_table
from longspan.data.text.token_files import TokenFile, write_tokens
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption

Document = list[str]  # its sentences
UNKNOWN = "<unk>"  # in WikiText
HEADING = re.compile(r"= .* =")
TITLE = re.compile(r"= [^=].*[^=] =|= [^=] =")
MARK = re.compile(r" @(.)@ ")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
ENDS, CLOSING = {".", "!", "?"}, {")", "'", "''", "]"}
WORDS, DOCUMENTS = ".words", ".documents"
MANY = 2048  # sentences encoded together


def plain_documents(path: Path, encoding: str | None = None) -> Iterator[Document]:
    """One sentence per line, an empty line between documents."""
    with text_files.hinting():
        for document in text_files.documents(path, encoding):
            yield [line.strip() for line in document.split("\n")]


def row_documents(path: Path, column: str = "text", encoding: str | None = None) -> Iterator[Document]:
    """The rows of a table or the files of a folder, each a document; its lines and its sentences are sentences."""
    for text in RowTexts(path, column, encoding).texts():
        yield [part for line in text.split("\n") for part in SENTENCE.split(line.strip()) if part]


def wikitext_documents(path: Path) -> Iterator[Document]:
    """The articles of a file of WikiText."""
    held: Document = []
    before, line = "", ""
    for after in chain(text_files.lines(path), [""]):
        after = after.strip()
        # A line of an article may look like a heading; real headings are between empty lines.
        if HEADING.fullmatch(line) and not before and not after:
            if TITLE.fullmatch(line) and held:
                yield held
                held = []
        elif line:
            held.extend(sentences(line))
        before, line = line, after
    if held:
        yield held


def sentences(paragraph: str) -> Document:
    """The sentences of a paragraph whose tokens are separated by spaces."""
    words = MARK.sub(r"\1", f" {paragraph} ").split()
    found: Document = []
    begin, quotes, ended = 0, 0, False
    for index, word in enumerate(words):
        closes = word in CLOSING or (word == '"' and quotes % 2 == 1)
        if ended and not closes:
            found.append(" ".join(words[begin:index]))
            begin, quotes, ended = index, 0, False
        quotes += word == '"'
        # `c . 1200` and initials end no sentence.
        ended = ended or (word in ENDS and index > begin and not (word == "." and len(words[index - 1]) == 1))
    if begin < len(words):
        found.append(" ".join(words[begin:]))
    return found


READERS: dict[str, Callable[[Path], Iterator[Document]]] = {"wikitext2": wikitext_documents}


class Corpus:
    """The ids of all sentences, and where words and documents begin."""

    def __init__(self, path: Path) -> None:
        self.tokens = TokenFile(path)  # its borders are those of sentences
        self.begins = np.memmap(path.with_suffix(WORDS), np.uint8, "r")  # 1: a word begins at this id
        self.documents = np.fromfile(path.with_suffix(DOCUMENTS), dtype="<u8").astype(np.int64)  # first sentences
        # The starts of sentences and the end of the last one; the same for documents, counted in sentences.
        self.borders = np.append(self.tokens.borders, len(self.tokens))
        self.firsts = np.append(self.documents, len(self.tokens.borders))

    def __len__(self) -> int:
        return len(self.documents)

    def fingerprint(self) -> str:
        return f"{self.tokens.sha256[:16]}, {len(self.tokens.borders)} sentences of {len(self)} documents"


def write_corpus(path: Path, documents: Iterable[Document], tokenizer: Tokenizer, source: str) -> Corpus:
    """Tokenises documents as they come; an error names `source` if they are empty."""
    firsts: list[int] = []
    count = 0

    def encoded() -> Iterator[list[int]]:
        nonlocal count
        for many in _bundles(documents):
            found = tokenizer.encode_many(
                [_known(sentence, tokenizer) for document in many for sentence in document],
                special=False,
                allow=[] if tokenizer.unk is None else [tokenizer.special["unk"]],
            )
            own = iter(found)
            for document in many:
                first = count
                for each in (next(own) for _ in document):
                    if each.ids:
                        count += 1
                        words.write(_begins(each.words))
                        yield each.ids
                if count > first:
                    firsts.append(first)

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(WORDS).open("wb") as words:
        write_tokens(path, encoded(), vocabulary=tokenizer.size)
    if not firsts:
        raise InvalidInput(f"{source} is empty: it has no sentences")
    np.asarray(firsts, dtype="<u8").tofile(path.with_suffix(DOCUMENTS))
    return Corpus(path)


def _bundles(documents: Iterable[Document]) -> Iterator[list[Document]]:
    held: list[Document] = []
    for document in documents:
        held.append(document)
        if sum(map(len, held)) >= MANY:
            yield held
            held = []
    if held:
        yield held


def _known(sentence: str, tokenizer: Tokenizer) -> str:
    return sentence if tokenizer.unk is None else sentence.replace(UNKNOWN, tokenizer.special["unk"])


def _begins(words: list[int | None]) -> bytes:
    """1 for each token that begins a word; a token without a word, such as the unknown one, is its own word."""
    return bytes(word is None or at == 0 or word != words[at - 1] for at, word in enumerate(words))


def read_documents(
    name: str | None,
    given: dict[str, str | None],
    root: Path | None,
    share: float,
    *,
    column: str = "text",
    encoding: str | None = None,
) -> dict[str, Callable[[], Iterator[Document]]]:
    """The documents of each split of a set, or of the user's files; by default the last ones are held out.

    A file of the user's is text, a table with the texts in `column`, or a folder of text files.

    They come as functions, so that a file can be read twice (to learn a tokenizer, and to tokenise it) and is never
    whole in memory.
    """
    if (name is None) == (given["train"] is None):
        raise InvalidOption("[task] names a set, or a file to train on: one of the two")
    if name is not None:
        if name not in READERS:
            raise InvalidOption(f"{name} has no documents of sentences; sets that have: {', '.join(READERS)}")
        read, paths = READERS[name], named_sets.files(name, root)
    else:
        read = _of_user(column, encoding)
        paths = {split: Path(file) for split, file in given.items() if file is not None}
    found = {split: _reading(read, path) for split, path in paths.items()}
    if "held_out" not in found:
        count = sum(1 for _ in read(paths["train"]))
        cut = round(count * (1 - share))
        if not 0 < cut < count:
            raise InvalidInput(
                f"{paths['train']} has {count} documents, too few to hold some out: an empty line ends a document; "
                "or give held_out, another file"
            )
        found["train"] = _reading(read, paths["train"], 0, cut)
        found["held_out"] = _reading(read, paths["train"], cut)
    return found


def _of_user(column: str, encoding: str | None) -> Callable[[Path], Iterator[Document]]:
    def read(path: Path) -> Iterator[Document]:
        return row_documents(path, column, encoding) if is_table(path) else plain_documents(path, encoding)

    return read


def _reading(
    read: Callable[[Path], Iterator[Document]], path: Path, start: int = 0, stop: int | None = None
) -> Callable[[], Iterator[Document]]:
    def some() -> Iterator[Document]:
        for number, document in enumerate(read(path)):
            if stop is not None and number >= stop:
                return
            if number >= start:
                yield document

    return some


__all__ = [
    "READERS",
    "TITLE",
    "Corpus",
    "Document",
    "plain_documents",
    "read_documents",
    "row_documents",
    "sentences",
    "wikitext_documents",
    "write_corpus",
]
