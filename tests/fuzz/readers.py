"""Every reader of files: a small valid input, the files of it that are damaged, and how it is read."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_files import (
    a_recipe,
    a_release,
    a_run,
    a_series,
    a_store,
    a_table,
    an_arena,
    generated,
    prepared,
    some_images,
    some_texts,
)
from model_files import (
    HF,
    fairseq,
    llama_gguf,
    old_pickled,
    own,
    own_with_checksums,
    pickled,
    sharded,
    stories,
    theirs,
    universal,
)
from tokenizer_files import bpe, byte_pairs, learned, unigram, whole_words
from toy import trainer  # of tests/train; this is imported by a script

from longspan import hub
from longspan.arena.runs import process
from longspan.arena.runs.results import Folder, left
from longspan.arena.tasks import cifar, listops_expressions, shards
from longspan.arena.tasks.data_files import byte_rows
from longspan.arena.tasks.pathfinder import folders as pathfinder_folders
from longspan.data import read_tokenizer, series_files
from longspan.data.images.image_files import read_pictures
from longspan.data.sets.prepare import count
from longspan.data.sets.prepared_tokens import read_prepared
from longspan.data.text import tables, text_files
from longspan.data.text.parallel import read_pairs
from longspan.hub import generation_config
from longspan.hub.locate import locate
from longspan.measure.store import Store
from longspan.models.classics.word2vec import Word2Vec
from longspan.report import results as report
from longspan.tasks import answer, tag
from longspan.train import checkpoint, recipe, saving
from longspan.train.run import Run


@dataclass(frozen=True)
class Reader:
    """`make` writes a valid input to a folder; one of `files` is damaged; `read` must succeed or refuse."""

    name: str
    make: Callable[[Path], Any]
    files: Sequence[str]
    read: Callable[[Path], Any]


CHECKPOINT = "checkpoints/00000000"


def _load(folder: Path) -> None:
    found = hub.load(folder)
    if found.sentence is not None:
        assert isinstance(found.sentence.normalise, bool) and isinstance(found.sentence.pool, str)
    if found.tokenizer is not None:
        found.tokenizer.decode(found.tokenizer.encode("the cat sits on é").ids)


def _tokenizer(folder: Path) -> None:
    found = read_tokenizer(folder)
    if found is not None:
        found.decode(found.encode("the lower fox é jumps").ids)


def _convert(folder: Path, source: str) -> None:

    shutil.rmtree(folder / "new", ignore_errors=True)
    hub.convert(folder / source if source else folder, folder / "new")


def _recipe(folder: Path) -> None:
    found = recipe.read(folder / "recipe.toml")
    found.options()
    found.build_task()


def _run(folder: Path) -> None:
    run = Run(folder)
    run.rows()
    run.forget_after(1)
    recipe.of_run(run).options()
    checkpoint.newest(run.checkpoints)
    locate(folder)
    saving.restore(trainer(folder), folder / "checkpoints" / "00000000")


def _series(folder: Path) -> None:
    for name, decimal in (("a.csv", "."), ("b.csv", ","), ("c.jsonl", ".")):
        found = series_files.read(folder / name, series_files.Columns(decimal=decimal))
        past, _ = series_files.split_future(found)
        series_files.future_dates(series_files.complete(past, missing="linear", gaps="fill"), 3)


def _tables(folder: Path) -> None:
    for name in ("a.tsv", "b.csv", "c.jsonl", "d.tsv.gz"):
        list(tables.rows(folder / name, ["text", "label"]))
        count(folder / name)
        text_files.whole(folder / name)
        list(text_files.blocks(folder / name, 10))


def _texts(folder: Path) -> None:
    for name in ("a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt"):
        list(text_files.documents(folder / name))
        list(text_files.Part(folder / name).pieces())


def _prepared(folder: Path) -> None:
    found, _, _ = read_prepared(folder, 0.1)
    for tokens in found.values():
        tokens[0 : len(tokens)]
        tokens.document_of(0, len(tokens))


def _store(folder: Path) -> None:
    for row in Store(folder / "store.jsonl").all():
        if row.state == "done":
            assert row.least > 0


def _arena(folder: Path) -> None:
    held = Folder(folder)
    left(held.planned(), held.records(repair=False))
    report.read(folder)


READERS = [
    Reader("gguf", llama_gguf, ["model.gguf"], lambda at: _load(at / "model.gguf")),
    Reader("gguf-bpe", lambda at: llama_gguf(at, "gpt2"), ["model.gguf"], lambda at: _load(at / "model.gguf")),
    Reader("llama2c", stories, ["model.bin", "tokenizer.bin"], lambda at: _load(at / "model.bin")),
    Reader(
        "bert",
        theirs,
        [
            "config.json",
            "config.json",
            "model.safetensors",
            "vocab.txt",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
            "generation_config.json",
            "1_Pooling/config.json",
            "modules.json",
        ],
        _load,
    ),
    *(
        Reader(name, lambda at, name=name: theirs(at, name), ["config.json"], lambda at: hub.load(at, tokenizer=False))
        for name in HF
        if name != "bert"
    ),
    Reader("sharded", sharded, ["model.safetensors.index.json"], _load),
    Reader(
        "own",
        own,
        ["config.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"],
        _load,
    ),
    Reader("own-manifest", own_with_checksums, ["manifest.json"], lambda at: hub.load(at, tokenizer=False)),
    Reader("own-transformer", universal, ["config.json"], lambda at: hub.load(at, tokenizer=False)),
    Reader("generation", theirs, ["generation_config.json"], generation_config.read),
    Reader("pickles", pickled, ["pytorch_model.bin", "config.json"], lambda at: _convert(at, "")),
    Reader("old-pickles", old_pickled, ["pytorch_model.bin"], lambda at: _convert(at, "")),
    Reader("fairseq", fairseq, ["model.pt", "dict.txt"], lambda at: _convert(at, "model.pt")),
    Reader("byte-pairs", byte_pairs, ["vocab.json", "merges.txt", "tokenizer_config.json"], _tokenizer),
    Reader("whole-words", whole_words, ["vocab.txt"], _tokenizer),
    Reader(
        "tokenizer.json",
        learned,
        ["tokenizer.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"],
        _tokenizer,
    ),
    Reader("sentencepiece", unigram, ["spiece.model"], _tokenizer),
    Reader("sentencepiece-bpe", bpe, ["tokenizer.model"], _tokenizer),
    Reader("recipe", a_recipe, ["recipe.toml"], _recipe),
    Reader(
        "run",
        a_run,
        [
            "config.toml",
            "metrics.jsonl",
            f"{CHECKPOINT}/manifest.json",
            f"{CHECKPOINT}/progress.json",
            f"{CHECKPOINT}/progress.json",
            f"{CHECKPOINT}/random-0.safetensors",
            f"{CHECKPOINT}/model/model.safetensors",
        ],
        _run,
    ),
    Reader("series", a_series, ["a.csv", "b.csv", "c.jsonl"], _series),
    Reader("tables", a_table, ["a.tsv", "b.csv", "c.jsonl", "d.tsv.gz"], _tables),
    Reader("texts", some_texts, ["a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt"], _texts),
    Reader("pairs", some_texts, ["pairs.tsv"], lambda at: read_pairs(at / "pairs.tsv", at / "pairs.tsv")),
    Reader("columns", some_texts, ["pairs.tsv"], lambda at: list(byte_rows(at / "pairs.tsv", 2))),
    Reader("conll", some_texts, ["tags.conll"], lambda at: tag.sentences(at / "tags.conll")),
    Reader(
        "word2vec",
        some_texts,
        ["words.vec", "questions.txt"],
        lambda at: Word2Vec.read_text(at / "words.vec").evaluate(at / "questions.txt"),
    ),
    Reader("squad", some_texts, ["squad.json"], lambda at: answer.questions(at / "squad.json")),
    Reader("listops", some_texts, ["listops.tsv"], lambda at: listops_expressions.read_file(at / "listops.tsv")),
    Reader("arena", an_arena, ["results.jsonl", "results.jsonl", "grid.json"], _arena),
    Reader("cell", some_texts, ["cell.json"], lambda at: process.read(at / "cell.json")),
    Reader("cifar-npz", some_images, ["cifar.npz"], lambda at: cifar.read_arrays(at / "cifar.npz")),
    Reader("cifar-binary", some_images, ["batch.bin"], lambda at: cifar.read_binary(at / "batch.bin")),
    Reader("cifar-pickle", some_images, ["batch.py"], lambda at: cifar.read_pickled(at / "batch.py")),
    Reader(
        "idx",
        some_images,
        ["images.idx", "labels.idx.gz"],
        lambda at: read_pictures(at / "images.idx", at / "labels.idx.gz"),
    ),
    Reader("pathfinder-npz", some_images, ["path.npz"], lambda at: pathfinder_folders.read_images(at / "path.npz", 32)),
    Reader(
        "pathfinder", a_release, ["imgs/0/0.png", "metadata/0.npy"], lambda at: pathfinder_folders.read_images(at, 8)
    ),
    Reader(
        "prepared",
        prepared,
        ["train.json", "train-00000.json", "held_out.json", "held_out.borders", "sizes.json", "tokenizer.json"],
        _prepared,
    ),
    Reader("store", a_store, ["store.jsonl"], _store),
    Reader(
        "shards",
        generated,
        ["shards/manifest.json", "shards/starts.npy", "shards/tokens.npy"],
        lambda at: shards.check(at / "shards"),
    ),
]

__all__ = ["READERS", "Reader"]
