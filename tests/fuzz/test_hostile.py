"""Files made by hand to do harm: each is refused in a line, in little time and in little memory."""

import gzip
import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz.model_files import stories
from tests.fuzz.tokenizer_files import CONTROLS, byte_pairs, entry, learned, sentencepiece, unigram

from longspan import hub
from longspan.data import read_tokenizer
from longspan.data.images.image_files import read_pictures
from longspan.data.npz_files import read_npz
from longspan.data.text import tables, text_files
from longspan.errors import InvalidInput
from longspan.models.classics.word2vec import Word2Vec
from longspan.parsing import BAD_VALUES, parse_json, parse_toml, read_json, read_text, refusing
from longspan.tasks.answer import questions
from longspan.train import recipe
from longspan.train.run import Run

pytestmark = pytest.mark.usefixtures("limits")

DEEP, LONG = "[" * 100_000 + "]" * 100_000, "9" * 5000
BILLION = 10**9


# JSON and TOML


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DEEP, "nested too deep"),
        (f"[{LONG}]", "thousands of digits"),
        ("[1,", "is not JSON: Expecting value: line 1 column 4"),
        ("", "is not JSON"),
        (r'{"a": "\ud800"}', "half a character"),
    ],
)
def test_json_that_cannot_be_read(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InvalidInput, match=said) as raised:
        read_json(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(raised.value)


def test_an_error_of_encoding_names_the_byte_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthr\xffee\n")
    with pytest.raises(InvalidInput, match=r"a\.txt is not UTF-8: invalid start byte at byte 11 \(line 3\)"):
        read_text(tmp_path / "a.txt")
    with pytest.raises(InvalidInput, match=r"a\.txt has 15 bytes; at most 10 are read"):
        read_text(tmp_path / "a.txt", 10)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deep"),
        (f"x = {LONG}", "thousands of digits"),
        ("a." * 10_000 + "a = 1", "line 1 has a key of too many parts"),
        ('y = 1\n[x]\n"=".' + "a." * 10_000 + "a = 1", "line 3 has a key of too many parts"),
        ("x = ", "is not TOML: Invalid value"),
    ],
)
def test_toml_that_cannot_be_read(content: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_toml(content, "a.toml")


def test_a_recipe_of_a_megabyte_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("#" * (1 << 20))
    with pytest.raises(InvalidInput, match=r"has 1,048,576 bytes; at most 65,536"):
        recipe.read(tmp_path / "a.toml")


def test_any_error_while_reading_names_the_file() -> None:
    for wrong in (
        KeyError("a"),
        TypeError("b"),
        OverflowError("c"),
        RuntimeError("d"),
        ZeroDivisionError(),
        MemoryError(),
    ):
        with pytest.raises(InvalidInput, match=r"^FILE is not of the expected form: "), refusing("FILE"):
            raise wrong
    with pytest.raises(KeyboardInterrupt), refusing("FILE"):
        raise KeyboardInterrupt


def test_with_bad_values_only_errors_of_size_and_range_are_refused() -> None:
    for wrong in (ValueError("a"), RuntimeError("b"), OverflowError("c"), ZeroDivisionError(), MemoryError()):
        with pytest.raises(InvalidInput, match=r"^FILE is wrong: "), refusing("FILE", "is wrong", errors=BAD_VALUES):
            raise wrong
    for bug in (AttributeError("a"), NameError("b"), TypeError("c"), KeyError("d"), IndexError("e"), AssertionError()):
        with pytest.raises(type(bug)) as raised, refusing("FILE", "is wrong", errors=BAD_VALUES):
            raise bug
        assert raised.value is bug


def test_an_error_never_quotes_a_whole_file() -> None:
    assert len(str(InvalidInput("x" * 100_000))) < 4100


@pytest.mark.parametrize("content", [DEEP, f'{{"text": {LONG}}}'])
def test_rows_of_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + content)
    with pytest.raises(InvalidInput, match="line 2: not JSON"):
        list(tables.rows(tmp_path / "a.jsonl", ["text"]))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("5", "no list called data"),
        ('{"a": []}', "no list called data"),
        ("[5]", "article 0"),
        ("[[]]", "article 0"),
        ('[{"paragraphs": [[]]}]', "article 0"),
        ('[{"paragraphs": [{"context": "a", "qas": [[]]}]}]', "article 0"),
        ('[{"paragraphs": [{"context": "a", "qas": [{"id": 1, "question": "a", "answers": 3}]}]}]', "article 0"),
        (DEEP, "recursion"),
        (f"[{LONG}]", "digits"),
    ],
)
def test_squad_with_other_things_for_tables(tmp_path: Path, data: str, said: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"data": {data}}}')
    with pytest.raises(InvalidInput, match=said):
        questions(tmp_path / "a.json")


def test_metrics_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert Run(tmp_path).rows() == [{"step": 1}, {"step": 2}]  # a last line that was cut short
    for line in ("[1]", DEEP, '{"step": "x"}', LONG):
        path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
        assert Run(tmp_path).rows() == [{"step": 1}, {"step": 3}] and Run(tmp_path).unread() == 1


# llama2.c, SentencePiece and other vocabularies


def test_sizes_that_no_file_of_llama2c_can_have(tmp_path: Path) -> None:
    stories(tmp_path)
    data = (tmp_path / "model.bin").read_bytes()
    for place in range(7):
        sizes = list(struct.unpack_from("<7i", data))
        sizes[place] = 2**31 - 8
        (tmp_path / "model.bin").write_bytes(struct.pack("<7i", *sizes) + data[28:])
        with pytest.raises(InvalidInput, match=r"model\.bin"):
            hub.load(tmp_path / "model.bin")


@pytest.mark.parametrize(("score", "length"), [(0.0, 200_000), (float("nan"), 3), (0.0, 2**31 - 1), (0.0, -5)])
def test_a_piece_of_llama2c_that_cannot_be(tmp_path: Path, score: float, length: int) -> None:
    stories(tmp_path)
    with (tmp_path / "tokenizer.bin").open("ab") as file:
        file.write(struct.pack("<fi", score, length) + b"a" * min(max(length, 0), 200_000))
    with pytest.raises(InvalidInput, match=r"tokenizer\.bin"):
        hub.load(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("text", "score", "said"),
    [("a" * 200_000, -1.0, "200,000 letters"), ("a", float("nan"), "score of piece 3 is nan"), ("", 0.0, "0 letters")],
)
def test_a_piece_of_sentencepiece_that_cannot_be(tmp_path: Path, text: str, score: float, said: str) -> None:
    unigram(tmp_path)
    sentencepiece(tmp_path / "spiece.model", [*CONTROLS, (text, score, 1)])
    with pytest.raises(InvalidInput, match=said):
        read_tokenizer(tmp_path)


def test_a_piece_that_says_it_has_a_billion_bytes(tmp_path: Path) -> None:
    unigram(tmp_path)
    with (tmp_path / "spiece.model").open("ab") as file:
        file.write(entry(1, b"")[:1] + b"\x80\x94\xeb\xdc\x03")
    with pytest.raises(InvalidInput, match="field 1 of 1000000000 bytes"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("number", "said"), [(BILLION, "must have an id"), (-1, "must have an id"), (1, "id of another")]
)
def test_ids_that_cannot_be(tmp_path: Path, number: int, said: str) -> None:
    byte_pairs(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps({**ids, "x": number}))
    with pytest.raises(InvalidInput, match=said):
        read_tokenizer(tmp_path)


def test_twenty_thousand_special_tokens_are_added_at_once(tmp_path: Path) -> None:
    pieces = [*CONTROLS, ("a", -1.0, 1), *((f"<{number}>", 0.0, 3 + number % 2) for number in range(20_000))]
    sentencepiece(tmp_path / "spiece.model", pieces)
    found = read_tokenizer(tmp_path)
    assert found is not None and found.size == 20_004 and found.id("<19999>") == 20_003


def test_added_tokens_that_take_turns(tmp_path: Path) -> None:
    byte_pairs(tmp_path)
    named = {str(10 + at): {"content": f"<{at}>", "special": at % 2 == 0} for at in range(6000)}
    few = dict(list(named.items())[:50])
    record = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**record, "added_tokens_decoder": few}))
    found = read_tokenizer(tmp_path)
    assert found is not None and [found.id(f"<{at}>") for at in range(50)] == list(range(10, 60))
    assert "<48>" in found.specials and "<49>" not in found.specials
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**record, "added_tokens_decoder": named}))
    with pytest.raises(InvalidInput, match="in turns, are too many"):
        read_tokenizer(tmp_path)


def test_pieces_that_are_too_long_together(tmp_path: Path) -> None:
    pieces = [*CONTROLS, *((f"{at:05}" + "a" * 1000, -1.0, 1) for at in range(1000))]
    sentencepiece(tmp_path / "tokenizer.model", pieces, entry(3, 2))
    with pytest.raises(InvalidInput, match="too long together"):
        read_tokenizer(tmp_path)


def test_an_id_of_a_billion_in_tokenizer_json(tmp_path: Path) -> None:
    learned(tmp_path)
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    record["model"]["vocab"]["x"] = BILLION
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    (tmp_path / "added_tokens.json").unlink()
    with pytest.raises(InvalidInput, match="has the id 1000000000"):
        read_tokenizer(tmp_path)


def test_a_billion_vectors_of_words(tmp_path: Path) -> None:
    (tmp_path / "a.vec").write_text("1000000000 300\nthe 1 2 3\n")
    with pytest.raises(InvalidInput, match="too short"):
        Word2Vec.read_text(tmp_path / "a.vec")
    (tmp_path / "a.vec").write_text(f"{LONG} 3\nthe 1 2 3\n")
    with pytest.raises(InvalidInput, match="line 1"):
        Word2Vec.read_text(tmp_path / "a.vec")


# Packed files and images


def test_a_bomb_of_gzip_is_unpacked_no_further_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(80 << 20), mtime=0))
    for read in (text_files.whole, lambda at: list(text_files.lines(at))):
        with pytest.raises(InvalidInput, match=r"and unpacks to more than 67,108,864: it is not read"):
            read(path)


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An array as a file of numpy's, which may say another shape."""
    out = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue() + array.tobytes()


LABELS = npy(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"x": npy(np.zeros((2, 4, 4), np.uint8), (10**12, 4, 4)), "y": LABELS}, "and 32 follow"),
        ({"x": npy(np.zeros((2, 4, 4), np.uint8), (-2, -4, 4)), "y": LABELS}, "and 32 follow"),
        ({"x": npy(np.zeros((2, 4, 4), np.uint8)), "y": npy(np.array([0, BILLION]))}, "label 1000000000 is none"),
        ({"x": npy(np.zeros((2, 4, 4), np.uint8)), "y": npy(np.array([0.5, 1]))}, "row of whole numbers"),
        ({"x": npy(np.zeros((2, 4, 4), np.uint8)), "y": npy(np.zeros((2, 2), int))}, "row of whole numbers"),
        ({"x": b"\x93NUMPY\x01\x00\xff\xff{", "y": LABELS}, "no .npz file"),
        ({"x": b"no array", "y": LABELS}, "no .npz file"),
        ({"x": npy(np.zeros(80 << 20, np.uint8)), "y": LABELS}, "unpacks to more than"),
    ],
    ids=["large", "negative", "label", "float", "square", "header", "nothing", "bomb"],
)
def test_arrays_that_cannot_be(tmp_path: Path, members: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_pictures(npz(tmp_path / "a.npz", **members))


def test_an_archive_of_arrays_that_is_encrypted(tmp_path: Path) -> None:
    content = bytearray(npz(tmp_path / "a.npz", y=LABELS).read_bytes())
    content[content.index(b"PK\x03\x04") + 6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InvalidInput, match="encrypted"):
        read_npz(tmp_path / "a.npz", ["y"])


def test_idx_files_that_say_more_than_they_have(tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 1) + b"\0")
    for shape in ((2**32 - 1,) * 3, (2**31, 2**31, 4), (0, 0, 0)):
        (tmp_path / "images").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape) + b"\0")
        with pytest.raises(InvalidInput, match="1 bytes follow"):
            read_pictures(tmp_path / "images", tmp_path / "labels")


def test_numbers_that_json_has_and_python_reads(tmp_path: Path) -> None:
    assert parse_json('{"a": 1e999, "b": "é", "c": 123456789012345678901234567890}', "a") == {
        "a": float("inf"),
        "b": "é",
        "c": 123456789012345678901234567890,
    }
