"""Tables as other programs write them: other separators, other encodings, long fields."""

from pathlib import Path

import pytest

from longspan.data.text.tables import rows
from longspan.data.text.text_files import Part, blocks, lines, whole
from longspan.errors import InvalidInput, InvalidOption

WANTED = ["text", "label"]
SEEN = [("one, two", "x"), ("für", "y")]


def read(path: Path, **options: str) -> list[tuple[str, str]]:
    return [(row.fields["text"], row.fields["label"]) for row in rows(path, WANTED, **options)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_separates_fields_is_found_by_the_columns(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'text{separator}label\n"one, two"{separator}x\nfür{separator}y\n', encoding="utf-8")
    assert read(path) == SEEN
    path.write_text(f'"one, two"{separator}x\nfür{separator}y\n', encoding="utf-8")
    found = rows(path, WANTED, ["text", "label"])
    assert [(row.fields["text"], row.fields["label"]) for row in found] == SEEN


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_with_a_byte_order_mark_are_known_by_it(tmp_path: Path, encoding: str, end: str) -> None:
    path = tmp_path / "a.csv"
    content = f"text;label{end}one, two;x{end}für;y{end}"
    path.write_bytes(content.encode(encoding))
    assert read(path) == SEEN
    assert list(lines(path)) == ["text;label", "one, two;x", "für;y"]
    assert whole(path) == "".join(blocks(path, 7)) == "".join(Part(path).pieces()) == content


def test_another_encoding_is_named_and_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text;label\none, two;x\nfür;y\n".encode("cp1252"))
    with pytest.raises(InvalidInput) as error:
        read(path)
    assert str(error.value) == (
        f"{path}, line 3: not UTF-8: invalid start byte at byte 1 of the line; in the encoding cp1252 it is "
        """'für;y\\n'; if that is right, give the task encoding = "cp1252" (--encoding cp1252)"""
    )
    assert read(path, encoding="cp1252") == SEEN
    path.write_bytes("text;label\none, two;x\nfür;y\n".encode("utf-16-le"))
    with pytest.raises(InvalidInput, match=r'line 1: has bytes of 0.* encoding = "utf-16-le"'):
        read(path)
    assert read(path, encoding="utf-16-le") == SEEN
    for name in ("cp9999", "hex"):
        with pytest.raises(InvalidOption, match=f"no encoding is called '{name}'"):
            read(path, encoding=name)


def test_utf_16_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text;label\none;x\n".encode("utf-16")[:-1])
    with pytest.raises(InvalidInput, match=r"a\.csv, after line \d: not utf-16"):
        read(path)


def test_a_missing_column_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("texts;label\none;x\n")
    with pytest.raises(InvalidInput, match=r"a\.csv, line 1, has no column 'text'"):
        read(path)


def test_long_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text,label\n{'word ' * 50_000},x\n")
    assert len(read(path)[0][0]) == 250_000
