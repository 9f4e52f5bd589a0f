"""Text and Retrieval: bytes in, the same bytes out; every layout gives the same; what is wrong is named."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.arena.tasks.examples import LabelledSequences, SequenceData, Splits
from longspan.arena.tasks.registry import DataFolders, build
from longspan.arena.tasks.texts import decode, encode
from longspan.errors import InvalidInput, InvalidOption

WORDS = ["good", "bad", "film", "<br />", "Ünï", '"quoted"', "the", "plot\r", "😀", "\0"]


def reviews(split: str, count: int = 40) -> list[tuple[int, int, bytes]]:
    """Labels, numbers and texts, in the order of the files: those of label 0 first."""
    generator = np.random.default_rng(len(split))
    found = []
    for label in (0, 1):
        for number in range(count // 2):
            words = [WORDS[word] for word in generator.integers(len(WORDS), size=generator.integers(3, 20))]
            found.append((label, number, " ".join([*words, f"{split}{label}{number}"]).encode()))
    return found


def write_tables(folder: Path, packed: bool = True) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        rows = [b"label\trating\tid\ttext"]
        rows += [b"%d\t%d\t%d\t%s" % (label, 8 if label else 3, number, text) for label, number, text in reviews(split)]
        content = b"\n".join(rows) + b"\n"
        (folder / (f"{split}.tsv" + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)


def write_folders(folder: Path) -> None:
    for split in ("train", "test"):
        for label, number, text in reviews(split):
            place = folder / split / ("neg", "pos")[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}_{8 if label else 3}.txt").write_bytes(text)


def papers() -> dict[str, str]:
    generator = np.random.default_rng(1)
    return {f"P{n}": " ".join(WORDS[w] for w in generator.integers(len(WORDS) - 1, size=30)) for n in range(12)}


def pairs() -> dict[str, list[tuple[int, str, str]]]:
    generator = np.random.default_rng(2)
    return {
        split: [(n % 2, f"P{generator.integers(12)}", f"P{generator.integers(12)}") for n in range(count)]
        for split, count in (("train", 20), ("eval", 6), ("test", 8))
    }


def write_aan(folder: Path, point: str = "") -> None:
    folder.mkdir(parents=True)
    texts = papers()
    for split, rows in pairs().items():
        lines = [f"{label}{point}\t{one}\t{other}\t{texts[one]}\t{texts[other]}\n" for label, one, other in rows]
        (folder / f"new_aan_pairs.{split}.tsv").write_bytes("".join(lines).encode())


def write_stand_in(folder: Path) -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"id": name, "text": text}) + "\n" for name, text in papers().items()]
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    for split, rows in pairs().items():
        text = "label\tid1\tid2\n" + "".join(f"{label}\t{one}\t{other}\n" for label, one, other in rows)
        (folder / f"pairs.{split}.tsv").write_text(text)


def splits(name: str, root: Path | None, seed: int = 0, **options: Any) -> Splits:
    return build(name, options).splits(DataFolders(root, Path("unused")), seed)


def texts_of(examples: LabelledSequences) -> list[bytes]:
    count = len(examples)
    return [decode(examples.sequence(number, text)) for number in range(count) for text in range(examples.texts)]


def hashes(found: Splits) -> list[str]:
    return [part.digest() for part in (found.train, found.held_out, found.test)]


@given(st.binary())
def test_bytes_come_back_as_they_were(text: bytes) -> None:
    tokens = encode(text)
    assert decode(tokens) == text and len(tokens) == len(text)
    assert not len(tokens) or (tokens.min() >= 1 and tokens.max() <= 256)


def test_every_byte_has_a_token_and_padding_none() -> None:
    assert encode(bytes(range(256))).tolist() == list(range(1, 257))
    for wrong in (0, 257):
        with pytest.raises(InvalidInput, match="1 to 256"):
            decode(np.array([1, wrong]))


def test_reviews_are_the_same_from_every_layout(tmp_path: Path) -> None:
    write_tables(tmp_path / "packed" / "imdb")
    write_tables(tmp_path / "plain" / "imdb", packed=False)
    write_folders(tmp_path / "folders" / "imdb")
    write_folders(tmp_path / "archive" / "aclImdb")
    found = [splits("text", tmp_path / name) for name in ("packed", "plain", "folders", "archive")]
    found += [splits("text", None, files=str(tmp_path / name)) for name in ("packed/imdb", "folders/imdb", "archive")]
    assert len({tuple(hashes(each)) for each in found}) == 1
    assert {each.notes["layout"] for each in found} == {"tsv files", "folders of reviews"}


def test_reviews_are_whole_and_parted_by_the_seed(tmp_path: Path) -> None:
    write_tables(tmp_path / "imdb")
    found = splits("text", tmp_path)
    train, held_out, test = (texts_of(part) for part in (found.train, found.held_out, found.test))
    assert sorted(train + held_out) == sorted(text for _, _, text in reviews("train"))
    assert test == [text for _, _, text in reviews("test")] and len(held_out) == 4
    assert not set(train) & set(held_out)
    assert found.test.labels.tolist() == [label for label, _, _ in reviews("test")]
    assert (found.vocabulary, found.classes, found.length, found.padded) == (257, 2, 4000, True)
    assert hashes(found) == hashes(splits("text", tmp_path)) == list(found.notes["hashes"].values())
    other = splits("text", tmp_path, seed=1)
    assert set(texts_of(other.held_out)) != set(held_out) and texts_of(other.test) == test
    assert found.notes["stand_in"].startswith("Not all of IMDb: its files here have 40 of 25,000 train examples")


def test_length_cuts_and_sizes_draw(tmp_path: Path) -> None:
    write_tables(tmp_path / "imdb")
    found = splits("text", tmp_path, length=8, sizes=[10, 2, 5])
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [10, 2, 5]
    assert all(len(text) == 8 for text in texts_of(found.train)) and found.length == 8
    assert found.notes["sizes"] == {"train": 10, "held_out": 2, "test": 5}
    whole = splits("text", tmp_path)
    few = splits("text", tmp_path, sizes=[10, 2, 5])
    for part, all_of_it in ((few.train, whole.train), (few.held_out, whole.held_out), (few.test, whole.test)):
        assert set(texts_of(part)) < set(texts_of(all_of_it))
    assert texts_of(few.test) != texts_of(splits("text", tmp_path, seed=1, sizes=[10, 2, 5]).test)


def test_repeated_reviews_are_not_held_out(tmp_path: Path) -> None:
    rows = [f"{n % 2}\t3\t{n}\t{'again' if n % 3 else f'once {n}'}" for n in range(30)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["label\trating\tid\ttext", *rows]))
    for seed in range(5):
        found = splits("text", None, seed=seed, files=str(tmp_path))
        assert len(found.held_out) == 3 and b"again" not in texts_of(found.held_out)
        assert not set(texts_of(found.held_out)) & set(texts_of(found.train))
    assert found.notes["repeated_in_train"] == 19 and found.notes["test_also_in_train"] == 30


def test_papers_are_the_same_from_both_layouts(tmp_path: Path) -> None:
    write_aan(tmp_path / "one" / "aan")
    write_aan(tmp_path / "two" / "lra_release" / "tsv_data", point=".0")
    write_stand_in(tmp_path / "three" / "acl_citation_pairs")
    found = [splits("retrieval", tmp_path / name, length=50) for name in ("one", "two", "three")]
    found += [splits("retrieval", None, length=50, files=str(tmp_path / "one" / "aan"))]
    assert len({tuple(hashes(each)) for each in found}) == 1
    assert found[2].notes["stand_in"].startswith("Not AAN: a stand-in") and found[2].notes["layout"] == "ACL stand-in"
    assert found[0].notes["stand_in"].startswith("Not all of AAN: its files here have 20 of 147,086 train examples")
    few = [splits("retrieval", tmp_path / name, sizes=[7, 3, 4]) for name in ("one", "three")]
    assert hashes(few[0]) == hashes(few[1]) and [len(few[0].train), len(few[0].test)] == [7, 4]


def test_pairs_keep_their_order(tmp_path: Path) -> None:
    write_aan(tmp_path / "aan")
    write_stand_in(tmp_path / "acl_citation_pairs")
    found = splits("retrieval", tmp_path)
    assert found.notes["layout"] == "AAN"  # where both are there
    wanted = pairs()["test"]
    texts = papers()
    assert texts_of(found.test) == [texts[name].encode() for _, *names in wanted for name in names]
    assert found.test.labels.tolist() == [label for label, _, _ in wanted] and found.test.texts == 2
    batch = SequenceData(found.test, 4, length=found.length, padded=True, shuffle=False).load([0, 1], 0)
    assert decode(batch["other_ids"][1][batch["other_mask"][1]].numpy()) == texts[wanted[1][2]].encode()


def test_baselines(tmp_path: Path) -> None:
    lines = {0: "aaaa bbb {}", 1: "aaa bbbb {}"}
    for split in ("train", "test"):
        rows = [f"{n % 2}\t3\t{n}\t{lines[n % 2].format(chr(99 + n % 20) * (1 + n // 20))}" for n in range(60)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["label\trating\tid\ttext", *rows]))
    task = build("text", {"files": str(tmp_path)})
    assert task.baselines(task.splits(DataFolders(None, tmp_path))) == {"majority": 0.5, "bag_of_bytes": 1.0}

    generator = np.random.default_rng(0)
    for split in ("train", "eval", "test"):
        rows = []
        for n in range(40):
            one, other = ("".join(map(chr, generator.integers(97, 123, size=60))) for _ in range(2))
            rows.append(f"{n % 2}\ta\tb\t{one}\t{other[:40] + one[20:40] if n % 2 else other}\n")
        (tmp_path / f"new_aan_pairs.{split}.tsv").write_text("".join(rows))
    task = build("retrieval", {"files": str(tmp_path)})
    assert task.baselines(task.splits(DataFolders(None, tmp_path))) == {"majority": 0.5, "shared_runs": 1.0}


@pytest.mark.parametrize(
    ("name", "wanted", "address"),
    [
        ("text", ["train.tsv.gz or train.tsv", "train/pos"], "https://ai.stanford.edu/~amaas/data/sentiment"),
        ("retrieval", ["new_aan_pairs.train.tsv", "docs.jsonl.gz"], "https://github.com/google-research"),
    ],
)
def test_missing_files_are_named(name: str, wanted: list[str], address: str, tmp_path: Path) -> None:
    for root, options, where in (
        (None, {}, "no folder of data sets is named by --data or LONGSPAN_DATA"),
        (tmp_path, {}, f"in {tmp_path} (folders "),
        (None, {"files": str(tmp_path)}, "which option files names"),
        (None, {"files": str(tmp_path / "none")}, f"there is no folder {tmp_path / 'none'}"),
    ):
        with pytest.raises(InvalidInput) as error:
            splits(name, root, **options)
        said = str(error.value)
        assert all(part in said for part in (*wanted, where, address)) and "\n" not in said
        assert said.endswith("listops, pathfinder and recall are generated and need no files")


def test_partly_missing_files_are_named(tmp_path: Path) -> None:
    write_tables(tmp_path / "imdb")
    (tmp_path / "imdb" / "test.tsv.gz").unlink()
    with pytest.raises(InvalidInput, match=r"imdb lacks test.tsv.gz or test.tsv"):
        splits("text", tmp_path)
    write_tables(tmp_path / "both")
    (tmp_path / "both" / "test.tsv").touch()
    with pytest.raises(InvalidInput, match=r"both has test.tsv, test.tsv.gz, and one file is wanted for test"):
        splits("text", None, files=str(tmp_path / "both"))


HEADER = b"label\trating\tid\ttext\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"train.tsv has no rows"),
        (HEADER, r"train.tsv has no rows"),
        (b"1\t8\t0\tgood\n", r"row 1: expected 'label\\trating\\tid\\ttext', got '1\\t8\\t0\\tgood'"),
        (HEADER + b"1\t8\t0\tgood\n1\t8\tgood\n", r"row 3: expected 4 columns, got 3"),
        (HEADER + b"1\t8\t0\tgo\tod\n", r"row 2: expected 4 columns, got 5"),
        (HEADER + b"1\t8\t0\tgood\n2\t8\t1\tgood\n", r"row 3: the label must be 0 or 1, not '2'"),
        (HEADER + b"1\t8\t0\t\n", r"row 2: the review is empty"),
        (HEADER + b"1\t8\t0\tgood\n", r"has 1 reviews, too few"),
    ],
)
def test_a_wrong_row_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    for name, part in (("train", content), ("test", HEADER + b"1\t8\t0\tgood\n")):
        (tmp_path / f"{name}.tsv").write_bytes(part)
    with pytest.raises(InvalidInput, match=said) as error:
        splits("text", None, files=str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_a_packed_file_that_is_cut_or_damaged(tmp_path: Path) -> None:
    write_tables(tmp_path / "imdb")
    path = tmp_path / "imdb" / "train.tsv.gz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"plain", whole[:40] + bytes(80) + whole[120:]):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"train.tsv.gz is cut short or damaged after row \d+"):
            splits("text", tmp_path)


def test_rows_may_end_as_on_windows(tmp_path: Path) -> None:
    for name in ("train", "test"):
        rows = [f"{n % 2}\t8\t{n}\tgood {n}" for n in range(20)]
        (tmp_path / f"{name}.tsv").write_bytes("\r\n".join([HEADER.decode().strip(), *rows]).encode())
    assert not any(b"\r" in text for text in texts_of(splits("text", None, files=str(tmp_path)).train))


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    write_folders(tmp_path / "aclImdb")
    stray = tmp_path / "aclImdb" / "train" / "pos" / "notes.txt"
    stray.write_text("mine")
    with pytest.raises(InvalidInput, match=r"notes.txt is not named like a review"):
        splits("text", tmp_path)
    stray.unlink()
    (tmp_path / "aclImdb" / "test" / "neg" / "3_3.txt").write_text("")
    with pytest.raises(InvalidInput, match=r"3_3.txt is empty"):
        splits("text", tmp_path)
    for path in (tmp_path / "aclImdb" / "test" / "neg").iterdir():
        path.unlink()
    with pytest.raises(InvalidInput, match=r"neg has no reviews"):
        splits("text", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("pairs.eval.tsv", "label\tid1\tid2\n1\tP0\tQ1\n", r"pairs.eval.tsv, row 2: .*docs.jsonl.gz has no paper 'Q1'"),
        ("pairs.eval.tsv", "label\tid1\tid2\nyes\tP0\tP1\n", r"row 2: the label must be 0 or 1, not 'yes'"),
        ("pairs.test.tsv", "label\tid1\tid2\n1\tP0\n", r"row 2: expected 3 columns, got 2"),
        ("docs.jsonl", '{"id": "P0", "text": "a"}\n{"id": "P1"}\n', r'docs.jsonl, line 2: expected {"id"'),
        ("docs.jsonl", '{"id": "P0", "text": "a"}\n{"id": "P1",\n', r'docs.jsonl, line 2: expected {"id"'),
        ("docs.jsonl", '{"id": "P0", "text": "\\ud800"}\n', r'docs.jsonl, line 1: expected {"id"'),
        ("docs.jsonl", '{"id": "P0", "text": ""}\n', r"docs.jsonl, line 1: the paper is empty"),
        ("new_aan_pairs.train.tsv", "1\ta\tb\ttext\n", r"new_aan_pairs.train.tsv, row 1: expected 5 columns, got 4"),
        ("new_aan_pairs.train.tsv", "1\ta\tb\ttext\t\n", r"row 1: the second text is empty"),
        ("new_aan_pairs.train.tsv", "0.5\ta\tb\ttext\ttext\n", r"row 1: the label must be 0 or 1, not '0.5'"),
        ("new_aan_pairs.train.tsv", "", r"new_aan_pairs.train.tsv has no rows"),
    ],
)
def test_wrong_pairs_are_named(file: str, content: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    if file.startswith("new_aan"):
        write_aan(folder)
    else:
        write_stand_in(folder)
        if file == "docs.jsonl":
            (folder / "docs.jsonl.gz").unlink()
    (folder / file).write_text(content)
    with pytest.raises(InvalidInput, match=said):
        splits("retrieval", None, files=str(folder))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("text", {"sizes": [1, 2]}, "option sizes must be three numbers"),
        ("text", {"sizes": [1, 0, 2]}, "option sizes must be at least 1"),
        ("text", {"length": 2}, "option length must be 8 to"),
        ("retrieval", {"length": 20_000}, "option length must be 8 to 10000"),
        ("retrieval", {"lenght": 20}, "did you mean 'length'"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        build(name, options)


@pytest.mark.data
def test_imdb_is_whole(data: Path) -> None:
    task = build("text", {})
    found = task.splits(DataFolders(data, data))
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [22_500, 2_500, 25_000]
    assert np.bincount(found.test.labels).tolist() == [12_500, 12_500]
    assert np.bincount(np.concatenate([found.train.labels, found.held_out.labels])).tolist() == [12_500, 12_500]
    assert found.train.tokens.min() > 0 and found.train.tokens.max() <= 256
    assert max(np.diff(found.test.starts)) == 4000 and "stand_in" not in found.notes
    assert (found.notes["repeated_in_train"], found.notes["test_also_in_train"]) == (96, 123)
    assert b"<br />" in decode(found.train.tokens) and not set(texts_of(found.train)) & set(texts_of(found.held_out))


@pytest.mark.data
def test_bytes_alone_tell_much_of_a_review(data: Path) -> None:
    task = build("text", {"length": 512, "sizes": [8000, 1000, 4000]})
    scores = task.baselines(task.splits(DataFolders(data, data)))
    assert 0.47 < scores["majority"] < 0.53 and 0.56 < scores["bag_of_bytes"] < 0.63


@pytest.mark.data
def test_the_stand_in_for_aan_is_complete(data: Path) -> None:
    task = build("retrieval", {})
    found = task.splits(DataFolders(data, data))
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [4288, 524, 724]
    assert found.notes["stand_in"].startswith("Not AAN") and found.length == 4000
    assert all(np.bincount(part.labels).tolist() == [len(part) // 2] * 2 for part in (found.train, found.test))
    pairs = [set(zip(texts_of(part)[::2], texts_of(part)[1::2])) for part in (found.train, found.held_out, found.test)]
    assert not pairs[0] & pairs[1] and not pairs[0] & pairs[2] and not pairs[1] & pairs[2]


@pytest.mark.data
def test_shared_runs_tell_citations(data: Path) -> None:
    task = build("retrieval", {"length": 512})
    scores = task.baselines(task.splits(DataFolders(data, data)))
    assert scores["majority"] == 0.5 and 0.68 < scores["shared_runs"] < 0.74
