"""Models made by hand to do harm: configurations, safetensors and GGUF files that say what cannot be."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.model_files import llama_gguf, own, theirs

from longspan import hub
from longspan.errors import InvalidInput, LongspanError
from longspan.hub.formats.gguf_file import GgufFile
from longspan.parsing import read_text
from longspan.train import recipe

pytestmark = pytest.mark.usefixtures("limits")

DEEP, LONG = "[" * 100_000 + "]" * 100_000, "9" * 5000
BILLION = 10**9


# Models


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", BILLION),
        ("vocab_size", BILLION),
        ("hidden_size", 2 * BILLION),
        ("intermediate_size", BILLION),
        ("max_position_embeddings", BILLION),
        ("num_hidden_layers", 10**30),
        ("vocab_size", 10**30),
        ("id2label", [1]),
        ("architectures", 5),
        ("architectures", [[]]),
        ("hidden_act", {}),
        ("num_attention_heads", 0),
        ("layer_norm_eps", "x"),
    ],
)
def test_a_configuration_that_its_weights_cannot_have(tmp_path: Path, key: str, value: Any) -> None:
    theirs(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**record, key: value}))
    with pytest.raises(LongspanError, match=str(tmp_path)):
        hub.load(tmp_path)


def test_labels_that_no_file_can_hold(tmp_path: Path) -> None:
    theirs(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    del record["id2label"], record["label2id"]
    (tmp_path / "config.json").write_text(json.dumps({**record, "num_labels": BILLION}))
    with pytest.raises(InvalidInput, match="describes a model of more than"):
        hub.load(tmp_path)


@pytest.mark.parametrize("key", ["layers", "vocabulary", "width", "hidden", "max_length"])
def test_a_folder_of_ours_that_its_weights_cannot_have(tmp_path: Path, key: str) -> None:
    own(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    record["options"][key] = BILLION
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(InvalidInput, match=r"tensors for all of them|describes a model of more than"):
        hub.load(tmp_path)


def test_a_header_of_safetensors_with_anything_in_it(tmp_path: Path) -> None:
    theirs(tmp_path)
    for header in (DEEP.encode(), b'{"a": ' + LONG.encode() + b"}", b'{"a": {"dtype": "F32", "shape": [9999999999]}}'):
        (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
        with pytest.raises(InvalidInput, match=r"model\.safetensors"):
            hub.load(tmp_path)


def test_a_header_of_safetensors_that_says_it_is_huge(tmp_path: Path) -> None:
    theirs(tmp_path)
    own(tmp_path / "own")
    for folder in (tmp_path, tmp_path / "own"):
        (folder / "model.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")
        with pytest.raises(InvalidInput, match="its header claims 1,099,511,627,776 bytes"):
            hub.load(folder)


def test_what_has_no_end_is_not_read_for_ever(tmp_path: Path) -> None:
    assert read_text(Path("/dev/zero"), 1000) == "\0" * 1000
    with pytest.raises(InvalidInput, match="is not TOML"):
        recipe.read(Path("/dev/zero"))


# GGUF

KINDS = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}


class Raw(bytes):
    """A value of metadata as it stands in the file, its type before it."""


def packed(value: Any) -> bytes:
    """The type of a value of metadata, and the value."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, str):
        return struct.pack("<I", 8) + words(value)
    if isinstance(value, list):
        parts = [packed(each) for each in value]
        return (
            struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(parts)) + b"".join(each[4:] for each in parts)
        )
    number, layout = KINDS[type(value)]
    return struct.pack("<I", number) + struct.pack(layout, value)


def words(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def rewritten(path: Path, *, offset: int = 0, dimensions: int = 2, **changed: Any) -> Path:
    """The file with other metadata; with `offset`, its tensors begin so many bytes later than they do."""
    file = GgufFile(path)
    metadata = {**file.metadata, **changed}
    align = metadata.get("general.alignment", 32)
    align = align if isinstance(align, int) and 0 < align < 4096 else 32
    infos, data = b"", b""
    for name, held in file.entries.items():
        data += bytes(-len(data) % align)
        infos += words(name) + struct.pack("<I", len(held.shape))
        infos += struct.pack(f"<{len(held.shape)}QIQ", *reversed(held.shape), held.kind, len(data) + offset)
        data += file._bytes[held.start : held.stop].numpy().tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(file.entries), len(metadata))
    head += b"".join(words(key) + packed(value) for key, value in metadata.items()) + infos
    path.write_bytes(head + bytes(-len(head) % align) + data + bytes(64))
    return path


@pytest.fixture
def a_gguf(tmp_path: Path) -> Path:
    llama_gguf(tmp_path)
    return rewritten(tmp_path / "model.gguf")


def nested(depth: int) -> Raw:
    return Raw(struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0))


def test_a_file_that_is_only_written_anew_is_read(a_gguf: Path) -> None:
    assert hub.load(a_gguf).tokenizer is not None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.alignment", 0, "general.alignment must be a multiple of 8"),
        ("general.alignment", 12, "general.alignment must be a multiple of 8"),
        ("general.alignment", "big", "general.alignment must be a multiple of 8"),
        ("general.alignment", 2**31, "general.alignment must be a multiple of 8"),
        ("general.architecture", 5, "is a 5"),
        ("split.count", "x", "one of x parts"),
        ("llama.attention.head_count", 0, r"llama\.attention\.head_count must be a number above 0, not 0"),
        ("llama.attention.head_count", "two", "head_count must be a number above 0"),
        ("llama.attention.head_count", [2, 2], "head_count must be a number above 0"),
        ("llama.attention.head_count_kv", 0, "head_count_kv must be a number above 0"),
        ("llama.attention.head_count", 5, "5 heads"),
        ("llama.block_count", BILLION, "num_hidden_layers is 1000000000"),
        ("llama.block_count", True, "block_count must be a number"),
        ("llama.embedding_length", 2**31, "describes a model of more than"),
        ("llama.feed_forward_length", 2**31, "describes a model of more than"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "must be a number above 0"),
        ("llama.rope.freq_base", 0.0, "must be a number above 0"),
        ("general.x", nested(1000), "more than 8 deep"),
        ("general.x", Raw(struct.pack("<IIQ", 9, 8, 2**20)), "cut off"),
        ("general.x", Raw(struct.pack("<IIQ", 9, 4, 2**20)), "cut off"),
        ("general.x", Raw(struct.pack("<IIQ", 9, 4, 2**62)), "an array of 4,611,686,018,427,387,904 values"),
        ("general.x", Raw(struct.pack("<IQ", 8, 2**63)), "cut off"),
        ("general.x", Raw(struct.pack("<I", 99)), "unknown type 99"),
        ("tokenizer.ggml.tokens", 5, "tokens"),
        ("tokenizer.ggml.tokens", [1, 2], "token 0 must be a text"),
        ("tokenizer.ggml.tokens", ["a" * 200_000] * 2, "at most 1,024 letters"),
        ("tokenizer.ggml.scores", [0.0], "scores must be 12 numbers"),
        ("tokenizer.ggml.scores", [float("nan")] * 12, "scores must be 12 numbers"),
        ("tokenizer.ggml.token_type", 7, "token_type"),
        ("tokenizer.ggml.bos_token_id", 12, "bos_token_id is 12, and there are 12 tokens"),
        ("tokenizer.ggml.bos_token_id", "x", "bos"),
        ("tokenizer.chat_template", 5, "chat_template must be a text"),
    ],
)
def test_gguf_metadata_that_cannot_be(a_gguf: Path, key: str, value: Any, said: str) -> None:
    rewritten(a_gguf, **{key: value})
    with pytest.raises(LongspanError, match=said) as raised:
        hub.load(a_gguf)
    assert str(a_gguf) in str(raised.value)


def test_gguf_tensors_that_begin_anywhere(a_gguf: Path) -> None:
    rewritten(a_gguf, offset=3)
    with pytest.raises(InvalidInput, match="begins at byte 3, which is no multiple of 32"):
        hub.load(a_gguf)
