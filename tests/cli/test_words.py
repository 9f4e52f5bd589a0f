"""`longspan words`: what it prints, what it reads, and what it refuses."""

import json
import struct
from pathlib import Path

import pytest
import torch

from longspan import hub
from longspan.cli.main import main
from longspan.models import build
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word2vec import Word2Vec

WORDS = ["man", "king", "woman", "queen", "tree"]
VECTORS = [[1.0, 0.0, 0.1], [1.0, 1.0, 0.0], [-1.0, 0.0, 0.1], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = Word2Vec.of(Vocabulary(WORDS, [5, 4, 3, 2, 1]), dim=3)
    model.inputs.data = torch.tensor(VECTORS)
    model.save(tmp_path / "model")
    return tmp_path / "model"


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["words", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["words", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0].removeprefix("longspan: ")


def test_neighbours(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert ask(capsys, "near", str(folder), "king", "--top", "2") == "0.704  man\n0.000  queen\n"
    answer = json.loads(ask(capsys, "near", str(folder), "king", "Tree", "--top", "1", "--json"))
    assert answer["king"][0]["word"] == "man" and answer["Tree"][0]["word"] in ("man", "woman")


def test_analogies(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert ask(capsys, "analogy", str(folder), "man", "king", "woman", "--top", "1") == "0.961  queen\n"
    inside = json.loads(
        ask(capsys, "analogy", str(folder), "king", "king", "woman", "--no-exclude", "--top", "1", "--json")
    )
    assert inside[0]["word"] == "woman"
    questions = tmp_path / "questions.txt"
    questions.write_text(": family\nMan King Woman Queen\nking man queen woman\nman king aunt uncle\n: gram1\n")
    printed = ask(capsys, "analogy", str(folder), "--file", str(questions)).splitlines()
    assert printed[0].split() == ["section", "asked", "of", "3CosAdd", "3CosMul"]
    assert printed[1].split() == ["family", "2", "3", "100.0", "%", "50.0", "%"]
    report = json.loads(ask(capsys, "analogy", str(folder), "--file", str(questions), "--json"))
    assert report["add"]["asked"] == 2 and report["add"]["skipped"] == 1 and report["add"]["syntactic"] is None
    cased = json.loads(ask(capsys, "analogy", str(folder), "--file", str(questions), "--no-lower", "--json"))
    assert cased["multiply"]["asked"] == 1


def test_similarities(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("word1 word2 score\nman king 9\nMan woman 1\nking\tqueen\t5\naunt,tree,3\n")
    (report,) = json.loads(ask(capsys, "similarity", str(folder), "--file", str(pairs), "--json"))
    assert report == {"file": "pairs.txt", "correlation": pytest.approx(1.0), "covered": 3, "pairs": 4}
    assert ask(capsys, "similarity", str(folder), "--file", str(pairs)).splitlines()[1].split() == [
        "pairs.txt",
        "1.000",
        "3",
        "4",
    ]


def write_formats(tmp_path: Path) -> dict[str, Path]:
    rows = list(zip(WORDS, VECTORS))
    text = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows)
    (tmp_path / "a.vec").write_text("5 3\n" + text)
    (tmp_path / "glove.txt").write_text(text)
    packed = {
        end: b"".join(word.encode() + b" " + struct.pack("<3f", *row) + end for word, row in rows)
        for end in (b"", b"\n")
    }
    (tmp_path / "tool.bin").write_bytes(b"5 3\n" + packed[b"\n"])
    (tmp_path / "gensim.bin").write_bytes(b"5 3\n" + packed[b""])
    return {path.name: path for path in tmp_path.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["a.vec", "glove.txt", "tool.bin", "gensim.bin"])
def test_every_format_gives_the_same_vectors(name: str, tmp_path: Path):
    table = hub.load_words(write_formats(tmp_path)[name])
    assert table.words.words == tuple(WORDS)
    torch.testing.assert_close(table.vectors, torch.tensor(VECTORS), rtol=0, atol=0)


def test_what_is_exported_is_read_back(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = tmp_path / "vectors.txt"
    assert ask(capsys, "export", str(folder), "--out", str(out)) == f"{out}: 5 words of 3 numbers\n"
    assert out.read_text().splitlines()[0] == "5 3"
    torch.testing.assert_close(hub.load_words(out).vectors, torch.tensor(VECTORS), rtol=0, atol=0)
    ask(capsys, "export", str(folder), "--limit", "2", "--out", str(out))
    assert hub.load_words(out).words.words == ("man", "king")


def test_the_input_embeddings_of_a_text_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from longspan.data.tokenizers.learn import TokenizerOptions, learn

    for kind in ("wordpiece", "bpe"):
        tokenizer = learn(TokenizerOptions(kind=kind, size=320, frequency=1), ["the king and the queen sang " * 9])
        model = build("encoder", vocabulary=tokenizer.size, width=8, layers=1, heads=1, hidden=8)
        model.save(tmp_path / kind, tokenizer=tokenizer.to_json())
        table = hub.load_words(tmp_path / kind)
        assert {"king", "queen", "the"} <= set(table.words.words)
        row = tokenizer.encode(" king" if kind == "bpe" else "king", special=False).ids
        assert torch.equal(table.vectors[table.id("king")], model.embedding.weight[row[0]].detach())


def test_what_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "a.txt"
    assert refused(capsys, "near", str(folder), "qeen") == "'qeen' is not among the 5 words: known: " + ", ".join(WORDS)
    assert refused(capsys, "near", str(folder)) == "give at least one word"
    assert refused(capsys, "near", str(folder), "king", "--top", "0") == "--top must be at least 1, not 0"
    assert refused(capsys, "analogy", str(folder), "a", "b") == "an analogy has three words, A B C; 2 were given"
    assert refused(capsys, "analogy", str(folder)) == "give three words, or a file of questions by --file"
    path.write_text(": family\nman king woman\n")
    assert refused(capsys, "analogy", str(folder), "--file", str(path)) == (
        f"{path}, line 2: expected four words or ': section', got 'man king woman'"
    )
    path.write_text("man king 5\nman king\n")
    assert refused(capsys, "similarity", str(folder), "--file", str(path)) == (
        f"{path}, line 2: expected two words and a number, got 'man king'"
    )
    path.write_text("man 1 2 3\nking 1 2\n")
    assert refused(capsys, "near", str(path), "man") == (
        f"{path}, line 2: expected a word and 3 numbers, as in line 1, got 3 fields"
    )
    path.write_text("man 1 2 nan\n")
    assert refused(capsys, "near", str(path), "man") == f"{path}, line 1: a number is not finite"
    path.write_text("")
    assert refused(capsys, "near", str(path), "man").startswith(f"{path}, line 1: expected the number of words")
    binary = tmp_path / "a.bin"
    binary.write_bytes(b"2 3\nman " + struct.pack("<3f", 1, 2, -3) + b"\nking\xff\xfe" + bytes(20))
    assert refused(capsys, "near", str(binary), "man").startswith(f"{binary}: word 2 of 2 is cut off")
    assert refused(capsys, "near", str(tmp_path / "none.vec"), "man").startswith("there is no folder or file")
    build("vit", image_size=8, patch_size=4, channels=1, width=8, layers=1, heads=1, hidden=8).save(tmp_path / "vit")
    assert refused(capsys, "near", str(tmp_path / "vit"), "man") == (
        f"{tmp_path / 'vit'} has no word vectors: expected a run of the task 'words', a file of vectors "
        "(.vec, .txt, .bin), or a text model with a tokenizer, and this is 'vit'"
    )
