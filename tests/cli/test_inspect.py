"""`longspan inspect`, as a user types it."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.hub.folders import bert, decoder, transformer
from tests.models.every import of_kind

from longspan import hub, inspect
from longspan.cli.main import main

HOSTILE = '</script><img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspected")
    bert(root / "bert")
    decoder(root / "decoder")
    transformer(root / "both")
    of_kind("vit").save(root / "vit")
    of_kind("recurrent").save(root / "recurrent")
    return root


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["inspect", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def numbers(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    read: dict[str, Any] = json.loads(out)
    return read


def test_the_heads_that_stand_out(capsys, folders):
    code, out, err = run(capsys, folders / "bert", "--text", "the cat sits on the mat.")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{folders / 'bert'}: encoder, 9 text tokens"
    assert lines[1].split() == ["head", "reads", "mass", "entropy", "largest"]
    assert len(lines) == 2 + 8 + 1 and lines[-1].startswith("Weights show where a head reads, not why")


def test_numbers_are_those_of_python(capsys, folders):
    text = "the cat sits on the mat."
    read = numbers(capsys, folders / "bert", "--text", text)
    seen = inspect.maps(folders / "bert", text)
    assert read["axes"]["text"]["tokens"] == list(seen.tokens)
    assert seen.tokens == ("[CLS]", "the", "cat", "sits", "on", "the", "mat", ".", "[SEP]")
    assert read["axes"]["text"]["words"] == [-1, 0, 1, 2, 3, 4, 5, 6, -1]
    head = read["modules"][1]["heads"][1]
    weights = seen.head(1, 1)
    assert head["previous"] == pytest.approx(np.trace(weights, -1) / 9, abs=1e-5)
    assert [each["token"] for each in head["special"]] == ["[CLS]", "[SEP]"]
    np.testing.assert_allclose([each["mass"] for each in head["special"]], weights[:, [0, 8]].mean(0), atol=1e-5)


def test_pairs_have_words_and_segments_of_their_own(capsys, folders):
    read = numbers(capsys, folders / "bert", "--text", "the cat", "--pair", "a dog runs")
    assert read["axes"]["text"]["tokens"] == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "runs", "[SEP]"]
    assert read["axes"]["text"]["words"] == [-1, 0, 1, -1, 2, 3, 4, -1]


def test_hostile_text_stays_data(capsys, folders):
    read = numbers(capsys, folders / "decoder", "--text", HOSTILE)
    assert "".join(read["axes"]["text"]["tokens"]).replace("\u2423", " ") == HOSTILE and read["text"] == HOSTILE


def test_a_page_within_its_size(capsys, folders, tmp_path):
    page = tmp_path / "x.html"
    code, out, err = run(capsys, folders / "decoder", "--text", HOSTILE, "--html", page, "--size", "2MB")
    assert (code, err) == (0, "") and out.endswith(f"wrote {page}\n")
    assert page.stat().st_size < 2_000_000 and "<img src=x" not in page.read_text(encoding="utf-8")


def test_a_file_and_standard_input(capsys, folders, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("the cat\nthe dog\n")
    tokens = numbers(capsys, folders / "bert", "--file", tmp_path / "text.txt")["axes"]["text"]["tokens"]
    assert tokens == ["[CLS]", "the", "cat", "the", "dog", "[SEP]"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\nthe dog\n")))
    assert numbers(capsys, folders / "bert", "--file", "-")["axes"]["text"]["tokens"] == tokens


def test_a_generated_text(capsys, folders):
    (expected,) = hub.generate(hub.load(folders / "decoder"), ["abc"], max_new=4)[0]
    made = numbers(capsys, folders / "decoder", "--text", "abc", "--generate", 4)["generated"]
    assert [step["id"] for step in made["steps"]] == expected.tokens
    assert made["prompt"] == 3 and len(made["steps"][0]["choices"]) == 10
    code, out, err = run(capsys, folders / "decoder", "--text", "abc", "--generate", 4)
    assert (code, err) == (0, "") and out.splitlines()[1].split()[:2] == ["token", "probability"]


def test_an_encoder_decoder_writes_its_target(capsys, folders):
    read = numbers(capsys, folders / "both", "--text", "abc")
    assert read["notes"] == ["The target was written by the model itself, greedily."]
    assert {module["kind"] for module in read["modules"]} == {"self", "cross"}
    given = numbers(capsys, folders / "both", "--text", "abc", "--pair", "xy")
    assert given["notes"] == [] and given["axes"]["target"]["tokens"][-2:] == ["x", "y"]


def test_errors_beside_exact_attention(capsys, folders):
    code, out, err = run(capsys, folders / "bert", "--text", "the cat sits", "--against", "linear", "--lengths", "3,5")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["against", "linear", "KL"] and len(out.splitlines()) == 2 + 4 + 1


def test_an_image(capsys, folders, tmp_path):
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "x.png")
    assert len(numbers(capsys, folders / "vit", "--image", tmp_path / "x.png")["axes"]["image"]["tokens"]) == 7


REFUSED: list[tuple[list[str], str]] = [
    (["bert"], "give a text to read by --text or --file"),
    (["bert", "--text", ""], "the text is empty: it has no tokens to look at"),
    (["bert", "--text", "the " * 20], "the text has 22 tokens, and the model holds at most 12; shorten it"),
    (["bert", "--text", "a", "--file", "x"], "give the text by --text or by --file, not both"),
    (["bert", "--image", "x.png"], "this encoder reads text, not images: give --text instead of --image"),
    (["vit", "--text", "a"], "this vit reads images, not text: give --image FILE and no --text"),
    (["vit", "--image", "text.txt"], "text.txt is not a readable image"),
    (["recurrent", "--text", "a"], "this recurrent has no attention, so there is no map of it; try a Transformer"),
    (["bert", "--text", "a", "--layers", "5-2"], "--layers must be numbers and ranges such as 0,3-5, not '5-2'"),
    (["bert", "--text", "a", "--layers", "9"], "there is no layer 9; layers are 0 to 3"),
    (["bert", "--text", "a", "--heads", "3"], "--heads must be LAYER.HEAD, such as 0.2,3.11, not '3'"),
    (["bert", "--text", "a", "--heads", "0.7"], "there is no head 0.7 among those recorded; the last is 3.1"),
    (["bert", "--text", "a", "--size", "big"], "--size must be a number of bytes such as 25MB, not 'big'"),
    (["bert", "--text", "a", "--size", "3KB"], "--size must be from 1MB to 2GB, not 3KB"),
    (["bert", "--text", "a", "--against", "sofmax"], "did you mean 'softmax'?"),
    (["bert", "--text", "a", "--generate", "3"], "this encoder reads texts and writes none: leave out --generate"),
    (["decoder", "--text", "a", "--top-k", "3"], "are for --generate: give it as well"),
    (["decoder", "--text", "a", "--generate", "2", "--top-k", "3"], "filter a draw: give --temperature as well"),
    (["decoder", "--text", "abc", "--generate", "90"], "the text has 3 tokens, and with 90 new ones it exceeds the 40"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(words)[:40] for words, _ in REFUSED])
def test_one_line_and_no_file(capsys, folders, tmp_path, arguments, message):
    (folders / "text.txt").write_text("no image")
    path, *rest = arguments
    rest = [str(folders / word) if word in ("text.txt",) else word for word in rest]
    out_file = tmp_path / "x.html"
    code, out, err = run(capsys, folders / path, *rest, "--html", out_file)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1 and err.startswith("longspan: ")
    assert not out_file.exists()
