"""Tables as other programs write them: other separators, other encodings, long fields."""

import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from longspan.data.text.tables import rows
from longspan.data.text.text_files import Part, blocks, lines, whole
from longspan.errors import InvalidInput, InvalidOption, Unsupported

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


def test_a_list_of_json_gives_each_row_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n {"text": "one, two", "label": "x", "id": 3},\n {"text": "für",\n  "label": "y"}\n]\n')
    assert read(path) == SEEN
    found = list(rows(path, WANTED))
    assert [row.line for row in found] == [2, 3] and found[0].fields == {"text": "one, two", "label": "x"}
    assert next(rows(path)).fields == {
        "text": "one, two",
        "label": "x",
        "id": "3",
    }
    for content, said in (
        ('{"a": 1}', "line 1: expected a list of objects; call a file with an object per line .jsonl"),
        ('[{"text": "a", "label": "b"},\n {"b"}]', "line 2: not JSON: Expecting ':' delimiter"),
        ('[{"text": "a", "label": "b"}\n {"text": "c"}]', "line 2: not JSON: expected , or ]"),
        ("[1]", "line 1: expected a table, got int"),
        ("[]", "a.json has no rows"),
    ):
        path.write_text(content)
        with pytest.raises(InvalidInput) as error:
            list(rows(path, WANTED))
        assert said in str(error.value)


def test_a_folder_of_texts_has_the_names_of_its_folders_as_labels(tmp_path: Path) -> None:
    for label, text in (("pos", "good\nfilm"), ("neg", "bad"), ("neg", "")):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{len(text)}.txt").write_text(text + "\n")
    (tmp_path / ".hidden").write_text("ignored")
    assert read(tmp_path) == [("", "neg"), ("bad", "neg"), ("good\nfilm", "pos")]
    (tmp_path / "readme.txt").write_text("about")
    with pytest.raises(InvalidInput, match=r"mixes folders \(neg, pos\) and files \(readme.txt\)"):
        read(tmp_path)
    (tmp_path / "readme.txt").unlink()
    (tmp_path / "pos" / "x.csv").write_text("a,b")
    with pytest.raises(InvalidInput, match=r"mixes formats: 0\.txt and .*pos/x\.csv; keep files of one format"):
        read(tmp_path)
    with pytest.raises(InvalidInput, match="has no column 'label': its files are not in folders that name"):
        read(tmp_path / "neg")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.png").write_text("")
    with pytest.raises(InvalidInput, match=r"no file that ends in .txt, .text, .md; it has a.png; images are for"):
        list(rows(tmp_path / "none"))


def test_parquet_is_read_by_pyarrow_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"text": "one, two", "label": "x", "n": 1}, {"text": "für", "label": "y", "n": None}]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(records), path)
    assert read(path) == SEEN
    assert [row.fields["n"] for row in rows(path)] == ["1", ""]
    with pytest.raises(InvalidInput, match="has no column 'texts'; it has 'text', 'label', 'n'"):
        list(rows(path, ["texts"]))
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Unsupported, match="needs the package pyarrow; install it"):
        read(path)


def test_columns_that_exist_are_named_nearest_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,date,review_text,stars\n1,2,3,4\n")
    with pytest.raises(InvalidInput) as error:
        list(rows(path, ["reviewtext"]))
    assert str(error.value).startswith(f"{path}, line 1, has no column 'reviewtext'; it has 'review_text', ")
    path.write_text("text,text,label\n1,2,3\n")
    with pytest.raises(InvalidInput, match="has two columns 'text'; give each column its own name"):
        read(path)
