"""ListOps expressions: every symbol survives, values are right, files are read back, damage is named."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from longspan.arena.tasks.examples import LabelledSequences
from longspan.arena.tasks.listops_expressions import (
    SYMBOLS,
    UNKNOWN,
    VOCABULARY,
    decode,
    encode,
    evaluate,
    nested,
    read_file,
    write_file,
)
from longspan.errors import InvalidInput

TEXT = "[MED [MIN 3 9 ] 0 [SM 7 8 [MAX 1 2 ] ] 5 ]"


def test_symbols_are_fifteen_and_each_has_a_number() -> None:
    assert VOCABULARY == len(SYMBOLS) + 2 == 17
    assert encode(" ".join(SYMBOLS)).tolist() == list(range(1, 16))
    assert encode("[FIRST 3 a 12 ]").tolist() == [UNKNOWN, 4, UNKNOWN, UNKNOWN, 15]


def test_decode_undoes_encode() -> None:
    assert decode(encode(TEXT)) == TEXT
    assert decode([*encode(TEXT), 0, 0]) == TEXT
    assert (encode(f"  {TEXT.replace(' ', '   ')} ") == encode(TEXT)).all()


def test_a_tokenizer_without_brackets_is_found() -> None:
    def blind(text: str) -> np.ndarray:
        return np.array([encode(f"[{word}" if word.isalpha() else word)[0] for word in re.findall(r"\w+", text)])

    one, other = "[SM [MAX 1 2 ] 3 ]", "[SM [MAX 1 2 3 ] ]"
    assert (blind(one) == blind(other)).all() and evaluate(encode(one)) != evaluate(encode(other))
    assert decode(encode(one)) == one and decode(blind(one)) != one


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 ]", 2),
        ("[MAX 4 2 ]", 4),
        ("[SM 9 9 9 ]", 7),
        ("[MED 4 5 ]", 4),  # 4.5 is truncated
        ("[MED 9 1 5 ]", 5),
        (TEXT, 4),  # 0 3 5 8: the median is 4
    ],
)
def test_values(text: str, value: int) -> None:
    assert evaluate(encode(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MIN 1 2", "1 operators without an end"),
        ("1 2", "0 operators without an end and 2 values"),
        ("1 ]", "token 2: ']' ends no operator"),
        ("[SM ]", r"token 2: \[SM has no arguments"),
        ("[AVG 1 ]", "token 1: 16 is the id of no symbol"),
    ],
)
def test_invalid_expressions_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        evaluate(encode(text))


def test_the_text_of_files_is_nested_to_the_left() -> None:
    assert nested(encode("[MAX 4 9 1 ]")) == "( ( ( ( [MAX 4 ) 9 ) 1 ) ] )"
    assert nested(encode("[MED 3 [MAX 4 1 ] 9 ]")) == "( ( ( ( [MED 3 ) ( ( ( [MAX 4 ) 1 ) ] ) ) 9 ) ] )"
    assert (encode(nested(encode(TEXT))) == encode(TEXT)).all()


@pytest.mark.parametrize("name", ["basic_test.tsv", "basic_test.tsv.gz"])
def test_files_are_read_as_written(tmp_path: Path, name: str) -> None:
    parts = [encode(TEXT), encode("[SM 1 2 ]")]
    examples = LabelledSequences(np.concatenate(parts), np.array([0, 16, 20]), np.array([4, 3]), "two")
    write_file(examples, tmp_path / name)
    again = read_file(tmp_path / name)
    assert again.digest() == examples.digest()
    assert len(read_file(tmp_path / name, most=1)) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("( ( ( [SM 1 ) 2 ) ] )\t4", "row 3: the target is 4, and the expression's value is 3"),
        ("( ( ( [SM 1 ) 2 ) ] )", "row 3: expected an expression, a tab and a digit"),
        ("( ( ( [SM 1 ) 2 ) ] )\tx", "row 3: expected an expression, a tab and a digit"),
        ("( ( ( [LAST 1 ) 2 ) ] )\t2", r"row 3: '\[LAST' is no symbol of ListOps"),
        ("( ( [SM 1 ) 2 )\t3", "row 3: the expression has 1 operators without an end"),
        ("( ( ( ( [SM 1 ) 2 ) 3 ) ] )\t6", "row 3: 5 tokens, and at most 4 are read; give a larger max_length"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "basic_val.tsv"
    path.write_text(f"Source\tTarget\n( ( ( [SM 1 ) 2 ) ] )\t3\n{row}\n")
    with pytest.raises(InvalidInput, match=message):
        read_file(path, length=4)


def test_files_that_are_something_else_are_named(tmp_path: Path) -> None:
    path = tmp_path / "basic_val.tsv"
    path.write_text("text\tlabel\n")
    with pytest.raises(InvalidInput, match="row 1: expected 'Source"):
        read_file(path)
    path.write_text("Source\tTarget\n")
    with pytest.raises(InvalidInput, match="has no expressions"):
        read_file(path)
    packed = tmp_path / "basic_val.tsv.gz"
    packed.write_bytes(gzip.compress(b"Source\tTarget\n( ( ( [SM 1 ) 2 ) ] )\t3\n")[:-9])
    with pytest.raises(InvalidInput, match=r"basic_val.tsv.gz cannot be read"):
        read_file(packed)


@pytest.mark.data
@pytest.mark.parametrize(("name", "count"), [("train", 2000), ("val", 500), ("test", 500)])
def test_trees_of_the_original_code_have_our_values_and_our_text(name: str, count: int, data: Path) -> None:
    path = data / "listops" / f"lra_basic_{name}.tsv.gz"
    examples = read_file(path)  # which evaluates each
    assert len(examples) == count
    rows = gzip.decompress(path.read_bytes()).decode().split("\n")[1:]
    for number in range(0, count, 10):
        assert f"{nested(examples.sequence(number))}\t{examples.labels[number]}" == rows[number].rstrip("\r")


@pytest.mark.data
def test_values_of_the_first_authors_expressions(data: Path) -> None:
    rows = gzip.decompress((data / "listops" / "spinn_test_d20s.tsv.gz").read_bytes()).decode().splitlines()
    for row in rows:
        target, _, text = row.partition("\t")
        assert evaluate(encode(text)) == int(target)
