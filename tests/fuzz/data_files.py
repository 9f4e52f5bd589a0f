"""Small valid files of recipes, runs, data sets and stores."""

import bz2
import gzip
import json
import lzma
import pickle
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from toy import trainer  # of tests/train; this is imported by a script

from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.grid import Arguments
from longspan.arena.runs.results import Folder
from longspan.arena.tasks import shards
from longspan.arena.tasks.examples import LabelledSequences
from longspan.data.sets.prepared_tokens import Sizes, fingerprint, write_sizes
from longspan.data.text.token_files import write_shards, write_tokens
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.measure.case import Case, Measured
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word2vec import Word2Vec
from longspan.train import saving

RECIPE = """
[task]
name = "classify"
train = "train.tsv"
text = "text"
label = "label"

[model]
name = "encoder"
width = 8
layers = 1
heads = 2
attention = {name = "window", window = 4}

[train]
steps = 3
seed = 1
schedule = {kind = "linear", rate = 1e-3, warmup = 2}
"""


def a_recipe(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE)


def a_run(folder: Path) -> None:
    made = trainer(folder)
    made.run.folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(RECIPE)
    saving.save(made)
    made.run.log({"step": 1, "loss": 2.0})
    made.run.log({"step": 2, "loss": 1.0})


def a_table(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = ["text\tlabel", "a good film\tgood", "a bad film\tbad", '"quoted"\tgood']
    (folder / "a.tsv").write_text("\n".join(rows) + "\n")
    (folder / "b.csv").write_text("\n".join(rows).replace("\t", ",") + "\n")
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": "é", "label": at}) + "\n" for at in range(3)))
    (folder / "d.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))


def a_series(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = ["date,sold,warm", *(f"2020-01-{day:02d},{day % 7},{day / 3:.2f}" for day in range(1, 29))]
    (folder / "a.csv").write_text("\n".join(rows) + "\n")
    german = [f"{day:02d}.01.2020 12:00;{day},5" for day in range(1, 29)]
    (folder / "b.csv").write_text("\n".join(["wann;wert", *german]))
    (folder / "c.jsonl").write_text("".join(json.dumps({"t": f"2020-{at:02d}", "v": at}) + "\n" for at in range(1, 9)))


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "a",
            "paragraphs": [
                {
                    "context": "Anna lives in Paris",
                    "qas": [
                        {"id": "1", "question": "where", "answers": [{"text": "Paris", "answer_start": 14}]},
                        {"id": "2", "question": "who", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def some_texts(folder: Path) -> None:

    folder.mkdir(exist_ok=True)
    lines = "ein Satz\nnoch einer\n\nund é\n".encode()
    for name, content in (
        ("a.txt.gz", gzip.compress(lines)),
        ("a.txt.bz2", bz2.compress(lines)),
        ("a.txt.xz", lzma.compress(lines)),
        ("a.txt", lines),
    ):
        (folder / name).write_bytes(content)
    (folder / "pairs.tsv").write_text("a dog\tein Hund\na cat\teine Katze\n")
    (folder / "tags.conll").write_text("Anna B-PER\nlives O\nin O\nParis B-LOC\n\nBob I-PER\n")
    (folder / "questions.txt").write_text(": capital\nParis France Rome Italy\n")
    Word2Vec.of(Vocabulary(["Paris", "France", "Rome", "Italy"], [1, 2, 3, 4]), dim=2).write_text(folder / "words.vec")
    (folder / "squad.json").write_text(json.dumps(SQUAD))
    (folder / "listops.tsv").write_text("Source\tTarget\n( ( ( [MAX 1 ) 2 ) ] )\t2\n[MIN 3 4 ]\t3\n")
    (folder / "cell.json").write_text(json.dumps({"task": "listops", "model": "dense", "seed": 1, "steps": 2}))


def some_images(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    labels = np.array([0, 1, 2, 9])
    np.savez_compressed(folder / "cifar.npz", x=pixels, y=labels)
    np.savez(folder / "path.npz", x=pixels[..., 0], y=labels % 2, classes=["no", "yes"], contour_length=np.full(4, 6))
    planes = pixels.transpose(0, 3, 1, 2).reshape(4, -1)
    (folder / "batch.bin").write_bytes(np.concatenate([labels[:, None].astype(np.uint8), planes], 1).tobytes())
    (folder / "batch.py").write_bytes(pickle.dumps({b"data": planes, b"labels": labels.tolist()}, protocol=2))
    (folder / "images.idx").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3i", 4, 32, 32) + pixels[..., 0].tobytes())
    (folder / "labels.idx.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">i", 4) + bytes(range(4))))


def a_release(folder: Path) -> None:

    for name in ("imgs/0", "metadata"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(2):
        Image.fromarray(np.full((8, 8), number * 90, np.uint8)).save(folder / "imgs" / "0" / f"{number}.png")
    (folder / "metadata" / "0.npy").write_text("imgs/0 0.png 0 1 1 6\nimgs/0 1.png 1 0 1 6\n")


def prepared(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    found = learn(TokenizerOptions(kind="bpe", size=280, frequency=1), ["the cat sits"])
    found.save(folder)
    made = fingerprint(found)
    parts = [([1, 2, 3, 4], True), ([5, 6, 7], True), ([8], False)]
    write_shards(folder / "train", parts, vocabulary=found.size, made_with=made, size=3)
    write_tokens(folder / "held_out", [[1, 2], [3]], vocabulary=found.size, made_with=made)
    write_sizes(folder, {"train": Sizes(10, 3), "held_out": Sizes(4, 1)})


def a_store(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = [Measured(case=Case(mechanism=name, length=8), state="done", seconds=(0.1, 0.2), gemm=1e9) for name in "ab"]
    (folder / "store.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def an_arena(folder: Path) -> None:
    """The folder of a grid with two cells, one of which has ended."""
    arguments = Arguments(setting="small", models=("dense", "window"), tasks=("listops",))
    cells = [Cell(task="listops", model=name, seed=0, steps=2) for name in arguments.models]
    held = Folder(folder)
    held.begin(arguments, cells)
    curve = ({"step": 1.0, "seconds": 0.5, "loss": 2.0, "held_out": 0.2},)
    held.append(Record(cell=cells[0], state="done", accuracy=0.5, held_out=0.4, steps=2, seconds=1.0, curve=curve))
    held.append(Record(cell=cells[1], state="failed", error="out of patience"))


def make_some(options: Any, seed: int, number: int, count: int) -> LabelledSequences:
    return LabelledSequences(
        np.arange(3 * count, dtype=np.uint8), np.arange(count + 1) * 3, np.arange(count) % 2, "made"
    )


ASKED = {"count": 4, "shard": 2, "seed": 0}


def generated(folder: Path) -> None:
    shards.load_or_generate("made", {"a": 1}, make_some, cache=folder, **ASKED)
    next(folder.glob("made-*[!k]")).rename(folder / "shards")
