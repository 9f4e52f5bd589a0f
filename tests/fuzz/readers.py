"""Every reader of files: a small valid input, the files of it that are damaged, and how it is read."""

import gzip
import json
import pickle
import struct
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from toy import trainer  # of tests/train; this is imported by a script

from longspan import hub
from longspan.arena import cifar, expressions, pathfinder_folders, process, shards
from longspan.arena.examples import Examples
from longspan.arena.files import byte_rows
from longspan.data import read_tokenizer, tables, text
from longspan.data.images import read_pictures
from longspan.data.learning import Learned, learn
from longspan.data.parallel import read_pairs
from longspan.data.prepare import count
from longspan.data.prepared import Sizes, fingerprint, read_prepared, write_sizes
from longspan.data.tokens import write_shards, write_tokens
from longspan.hub import gguf
from longspan.hub.pretrained import Pretrained
from longspan.measure.case import Case, Measured
from longspan.measure.store import Store
from longspan.models import build
from longspan.models.vocabulary import Vocabulary
from longspan.models.word2vec import Word2Vec
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


def _load(folder: Path) -> None:
    found = hub.load(folder)
    if found.tokenizer is not None:
        found.tokenizer.decode(found.tokenizer.encode("the cat sits on é").ids)


def _tokenizer(folder: Path) -> None:
    found = read_tokenizer(folder)
    if found is not None:
        found.decode(found.encode("the lower fox é jumps").ids)


# Models

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sits", "##s", "on"]
SIZES = {"width": 8, "layers": 1, "heads": 2, "hidden": 12, "max_length": 16}
HF = {
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    },
    "albert": {
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        "vocab_size": 12,
        "embedding_size": 4,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
    },
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4},
    },
    "longformer": {
        "model_type": "longformer",
        "architectures": ["LongformerForMaskedLM"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 18,
        "attention_window": [4],
    },
    "big_bird": {
        "model_type": "big_bird",
        "architectures": ["BigBirdForMaskedLM"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 64,
        "block_size": 4,
    },
    "bart": {
        "model_type": "bart",
        "architectures": ["BartModel"],
        "vocab_size": 12,
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 12,
        "decoder_ffn_dim": 12,
        "max_position_embeddings": 16,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 1,
    },
}


def theirs(folder: Path, name: str = "bert") -> Path:
    """A folder as Hugging Face writes it, with everything beside the model that is read."""
    from longspan import config
    from longspan.hub import families
    from longspan.models import registry

    record = HF[name]
    family = families.find(name, name)
    cls = registry.find(family.model)
    torch.manual_seed(0)
    model = cls(config.make(cls.Options, family.options(record), name))
    hub.save(Pretrained(model, name, dict(record)), folder)
    if name == "vit":
        return folder
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 16}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"unk_token": "[UNK]", "cls_token": {"content": "[CLS]"}}))
    (folder / "added_tokens.json").write_text(json.dumps({"dog": 10, "cow": 11}))
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 5, "eos_token_id": [2, 3]}))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "type": "sentence_transformers.models.Pooling"}]))
    return folder


def sharded(folder: Path) -> None:
    theirs(folder)
    model = hub.load(folder)
    hub.save(model, folder, shard_bytes=1500)


def own(folder: Path) -> None:
    torch.manual_seed(0)
    build("decoder", vocabulary=300, **SIZES, position="learned").save(folder)
    learn(Learned(kind="bpe", size=300, frequency=1), ["the cat sits on the mat"]).save(folder)


def universal(folder: Path) -> None:
    torch.manual_seed(0)
    build("transformer", vocabulary=20, width=8, layers=1, heads=2, hidden=12).save(folder)


def llama_gguf(folder: Path, kind: str = "llama") -> None:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    theirs(folder / "theirs", "llama")
    model = hub.load(folder / "theirs", tokenizer=False)
    tokens = ["<unk>", "<s>", "</s>", "▁", "t", "h", "e", "th", "▁the", "c", "a", "at"]
    said: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * 9],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    if kind == "llama":
        said["tokenizer.ggml.scores"] = [-float(number) for number in range(12)]
    else:
        said |= {"tokenizer.ggml.merges": ["t h", "a t"], "tokenizer.ggml.pre": "llama-bpe"}
        said["tokenizer.ggml.tokens"] = ["<unk>", "<s>", "</s>", "Ġ", "t", "h", "e", "th", "at", "c", "a", "x"]
    gguf.write(model, folder / "model.gguf", tokenizer=said)


def stories(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    width, hidden, layers, heads, kv_heads, vocabulary, longest = sizes = (8, 12, 1, 2, 1, 262, 16)
    narrow = width // heads * kv_heads
    layer = 2 * width + 2 * width * width + 2 * narrow * width + 3 * hidden * width
    numbers = np.zeros(vocabulary * width + layers * layer + width + longest * (width // heads), np.float32)
    (folder / "model.bin").write_bytes(struct.pack("<7i", *sizes) + numbers.tobytes())
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), " ", "t", "th"]
    rows = [struct.pack("<fi", -float(at), len(piece.encode())) + piece.encode() for at, piece in enumerate(pieces)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 12) + b"".join(rows))


def pickled(folder: Path) -> None:
    theirs(folder)
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def old_pickled(folder: Path) -> None:
    theirs(folder)
    from safetensors.torch import load_file

    held = load_file(folder / "model.safetensors")
    torch.save(held, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()


def fairseq(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    start = "decoder.sentence_encoder."
    shapes = {"embed_tokens.weight": (12, 8), "embed_positions.weight": (18, 8)}
    parts = {"self_attn.in_proj": (24, 8), "self_attn.out_proj": (8, 8), "fc1": (12, 8), "fc2": (8, 12)}
    for name, shape in parts.items():
        joint = "_" if name.endswith("in_proj") else "."
        shapes |= {f"layers.0.{name}{joint}weight": shape, f"layers.0.{name}{joint}bias": shape[:1]}
    for name in ("emb_layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"):
        shapes |= {f"{name}.weight": (8,), f"{name}.bias": (8,)}
    held = {start + name: torch.zeros(shape) for name, shape in shapes.items()}
    ends = {"weight": (12, 8), "bias": (12,), "dense.weight": (8, 8), "dense.bias": (8,)}
    ends |= {"layer_norm.weight": (8,), "layer_norm.bias": (8,)}
    held |= {f"decoder.lm_head.{name}": torch.zeros(shape) for name, shape in ends.items()}
    arguments = Namespace(
        encoder_layers=1, encoder_attention_heads=2, encoder_ffn_embed_dim=12, activation_fn="gelu", arch="roberta_base"
    )
    torch.save({"args": arguments, "model": held}, folder / "model.pt")
    (folder / "dict.txt").write_text("".join(f"{at} {at}\n" for at in range(7)))


def _convert(folder: Path, source: str) -> None:
    import shutil

    shutil.rmtree(folder / "new", ignore_errors=True)
    hub.convert(folder / source if source else folder, folder / "new")


# Tokenizers

CONTROLS = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
UNIGRAM = [("▁", -2.0, 1), ("▁the", -3.0, 1), ("▁low", -4.5, 1), ("er", -3.5, 1), ("fox", -5.0, 1), ("jumps", -5.5, 1)]
BPE = [("▁", -1.0, 1), ("t", -2.0, 1), ("h", -3.0, 1), ("th", -4.0, 1), ("e", -5.0, 1), ("the", -6.0, 1)]
BYTES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def entry(number: int, value: bytes | int | float) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece(path: Path, pieces: Sequence[tuple[str, float, int]], trainer: bytes = b"") -> None:
    path.parent.mkdir(exist_ok=True)
    rows = [entry(1, entry(1, text.encode()) + entry(2, score) + entry(3, kind)) for text, score, kind in pieces]
    path.write_bytes(b"".join(rows) + entry(2, trainer) + entry(3, entry(3, 1)))


def byte_pairs(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    ids = {token: number for number, token in enumerate(["<|endoftext|>", "t", "h", "e", "th", "the", "Ġ", "f", "o", "x"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}))


def whole_words(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\nthe\nfox\n.\nCl\n")


def learned(folder: Path) -> None:
    found = learn(Learned(kind="wordpiece", size=80, frequency=1), ["the lower fox jumps over"])
    folder.mkdir(exist_ok=True)
    found.save(folder)
    (folder / "added_tokens.json").write_text(json.dumps({"dog": found.size}))


def unigram(folder: Path) -> None:
    sentencepiece(folder / "spiece.model", [*CONTROLS, *UNIGRAM])
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}))


def bpe(folder: Path) -> None:
    sentencepiece(folder / "tokenizer.model", [*CONTROLS, *BYTES, *BPE], entry(3, 2) + entry(35, 1))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


# Recipes and runs

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


def _recipe(folder: Path) -> None:
    found = recipe.read(folder / "recipe.toml")
    found.options()
    found.build_task()


def a_run(folder: Path) -> None:
    made = trainer(folder)
    made.run.folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(RECIPE)
    saving.save(made)
    made.run.log({"step": 1, "loss": 2.0})
    made.run.log({"step": 2, "loss": 1.0})


def _run(folder: Path) -> None:
    run = Run(folder)
    run.rows()
    run.forget_after(1)
    recipe.of_run(run).options()
    checkpoint.newest(run.checkpoints)
    saving.model_of(folder)
    saving.restore(trainer(folder), folder / "checkpoints" / "00000000")


CHECKPOINT = "checkpoints/00000000"


# Tables and texts


def a_table(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = ["text\tlabel", "a good film\tgood", "a bad film\tbad", '"quoted"\tgood']
    (folder / "a.tsv").write_text("\n".join(rows) + "\n")
    (folder / "b.csv").write_text("\n".join(rows).replace("\t", ",") + "\n")
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": "é", "label": at}) + "\n" for at in range(3)))
    (folder / "d.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))


def _tables(folder: Path) -> None:
    for name in ("a.tsv", "b.csv", "c.jsonl", "d.tsv.gz"):
        list(tables.rows(folder / name, ["text", "label"]))
        count(folder / name)
        text.whole(folder / name)
        list(text.blocks(folder / name, 10))


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
    import bz2
    import lzma

    folder.mkdir(exist_ok=True)
    lines = "ein Satz\nnoch einer\n\nund é\n".encode()
    for name, content in (("a.txt.gz", gzip.compress(lines)), ("a.txt.bz2", bz2.compress(lines)), ("a.txt.xz", lzma.compress(lines)), ("a.txt", lines)):
        (folder / name).write_bytes(content)
    (folder / "pairs.tsv").write_text("a dog\tein Hund\na cat\teine Katze\n")
    (folder / "tags.conll").write_text("Anna B-PER\nlives O\nin O\nParis B-LOC\n\nBob I-PER\n")
    (folder / "questions.txt").write_text(": capital\nParis France Rome Italy\n")
    Word2Vec.of(Vocabulary(["Paris", "France", "Rome", "Italy"], [1, 2, 3, 4]), dim=2).write_text(folder / "words.vec")
    (folder / "squad.json").write_text(json.dumps(SQUAD))
    (folder / "listops.tsv").write_text("Source\tTarget\n( ( ( [MAX 1 ) 2 ) ] )\t2\n[MIN 3 4 ]\t3\n")
    (folder / "cell.json").write_text(json.dumps({"task": "listops", "model": "dense", "seed": 1, "steps": 2}))


def _texts(folder: Path) -> None:
    for name in ("a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt"):
        list(text.documents(folder / name))
        list(text.Part(folder / name).pieces())


def _by_name(folder: Path, name: str, read: Callable[[Path], Any]) -> Any:
    return read(folder / name)


# Images


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
    from PIL import Image

    for name in ("imgs/0", "metadata"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(2):
        Image.fromarray(np.full((8, 8), number * 90, np.uint8)).save(folder / "imgs" / "0" / f"{number}.png")
    (folder / "metadata" / "0.npy").write_text("imgs/0 0.png 0 1 1 6\nimgs/0 1.png 1 0 1 6\n")


# Prepared data, stores


def prepared(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    found = learn(Learned(kind="bpe", size=280, frequency=1), ["the cat sits"])
    found.save(folder)
    made = fingerprint(found)
    parts = [([1, 2, 3, 4], True), ([5, 6, 7], True), ([8], False)]
    write_shards(folder / "train", parts, vocabulary=found.size, made_with=made, size=3)
    write_tokens(folder / "held_out", [[1, 2], [3]], vocabulary=found.size, made_with=made)
    write_sizes(folder, {"train": Sizes(10, 3), "held_out": Sizes(4, 1)})


def _prepared(folder: Path) -> None:
    found, _, _ = read_prepared(folder, 0.1)
    for tokens in found.values():
        tokens[0 : len(tokens)]
        tokens.document_of(0, len(tokens))


def a_store(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = [Measured(case=Case(mechanism=name, length=8), state="done", seconds=(0.1, 0.2), gemm=1e9) for name in "ab"]
    (folder / "store.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _store(folder: Path) -> None:
    for row in Store(folder / "store.jsonl").all():
        if row.state == "done":
            assert row.least > 0


def make_some(options: Any, seed: int, number: int, count: int) -> Examples:
    return Examples(np.arange(3 * count, dtype=np.uint8), np.arange(count + 1) * 3, np.arange(count) % 2, "made")


ASKED = {"count": 4, "shard": 2, "seed": 0}


def generated(folder: Path) -> None:
    shards.made("made", {"a": 1}, make_some, cache=folder, **ASKED)
    next(folder.glob("made-*[!k]")).rename(folder / "shards")


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
    Reader("own", own, ["config.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"], _load),
    Reader("own-transformer", universal, ["config.json"], lambda at: hub.load(at, tokenizer=False)),
    Reader("pickles", pickled, ["pytorch_model.bin", "config.json"], lambda at: _convert(at, "")),
    Reader("old-pickles", old_pickled, ["pytorch_model.bin"], lambda at: _convert(at, "")),
    Reader("fairseq", fairseq, ["model.pt", "dict.txt"], lambda at: _convert(at, "model.pt")),
    Reader("byte-pairs", byte_pairs, ["vocab.json", "merges.txt", "tokenizer_config.json"], _tokenizer),
    Reader("whole-words", whole_words, ["vocab.txt"], _tokenizer),
    Reader("tokenizer.json", learned, ["tokenizer.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"], _tokenizer),
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
    Reader("tables", a_table, ["a.tsv", "b.csv", "c.jsonl", "d.tsv.gz"], _tables),
    Reader("texts", some_texts, ["a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt"], _texts),
    Reader("pairs", some_texts, ["pairs.tsv"], lambda at: read_pairs(at / "pairs.tsv", at / "pairs.tsv")),
    Reader("columns", some_texts, ["pairs.tsv"], lambda at: list(byte_rows(at / "pairs.tsv", 2))),
    Reader("conll", some_texts, ["tags.conll"], lambda at: tag.sentences(at / "tags.conll")),
    Reader("word2vec", some_texts, ["words.vec", "questions.txt"], lambda at: Word2Vec.read_text(at / "words.vec").evaluate(at / "questions.txt")),
    Reader("squad", some_texts, ["squad.json"], lambda at: answer.questions(at / "squad.json")),
    Reader("listops", some_texts, ["listops.tsv"], lambda at: expressions.read_file(at / "listops.tsv")),
    Reader("cell", some_texts, ["cell.json"], lambda at: process.read(at / "cell.json")),
    Reader("cifar-npz", some_images, ["cifar.npz"], lambda at: cifar.read_arrays(at / "cifar.npz")),
    Reader("cifar-binary", some_images, ["batch.bin"], lambda at: cifar.read_binary(at / "batch.bin")),
    Reader("cifar-pickle", some_images, ["batch.py"], lambda at: cifar.read_pickled(at / "batch.py")),
    Reader("idx", some_images, ["images.idx", "labels.idx.gz"], lambda at: read_pictures(at / "images.idx", at / "labels.idx.gz")),
    Reader("pathfinder-npz", some_images, ["path.npz"], lambda at: pathfinder_folders.read_images(at / "path.npz", 32)),
    Reader("pathfinder", a_release, ["imgs/0/0.png", "metadata/0.npy"], lambda at: pathfinder_folders.read_images(at, 8)),
    Reader("prepared", prepared, ["train.json", "train-00000.json", "held_out.json", "held_out.borders", "sizes.json", "tokenizer.json"], _prepared),
    Reader("store", a_store, ["store.jsonl"], _store),
    Reader("shards", generated, ["shards/manifest.json", "shards/starts.npy", "shards/tokens.npy"], lambda at: shards.check(at / "shards")),
]

__all__ = ["READERS", "Reader"]
