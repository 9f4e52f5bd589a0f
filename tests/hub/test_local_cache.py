"""Models by their name in the local cache of Hugging Face: found offline, and half-downloaded ones named by file."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.hub.folders import bert, decoder

from longspan import hub
from longspan.cli.main import main
from longspan.errors import InvalidInput
from longspan.hub import local_cache

COMMIT, OLDER = "0123456789" * 4, "ab" * 20
NAME = "tiny/bert"


def store(cache: Path, source: Path, name: str, commit: str = COMMIT, **refs: str) -> Path:
    """The files of a folder as a download leaves them: blobs, and links to them in a snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    for path in source.iterdir():
        blob = repository / "blobs" / f"{commit[:4]}-{path.name}"
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    for ref, at in refs.items():
        path = repository / "refs" / ref.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(at)
    return repository


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    bert(root / "bert")
    decoder(root / "own")
    return root


@pytest.fixture
def cache(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a BERT in two revisions; the working folder is empty."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    store(tmp_path / "hub", source / "bert", NAME, main=COMMIT, v1=OLDER, refs__pr__1=COMMIT)
    store(tmp_path / "hub", source / "bert", NAME, OLDER)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "hub"


def test_the_cache_is_where_hugging_face_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert local_cache.folder() == Path.home() / ".cache/huggingface/hub"
    assert constants.HF_HUB_CACHE.endswith("hub")
    order = {"XDG_CACHE_HOME": "huggingface/hub", "HF_HOME": "hub", "HUGGINGFACE_HUB_CACHE": "", "HF_HUB_CACHE": ""}
    for variable, below in order.items():  # each comes before those above it
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert local_cache.folder() == tmp_path / variable / below


@pytest.mark.parametrize(
    ("revision", "commit"),
    [
        ("", COMMIT),
        ("@main", COMMIT),
        ("@v1", OLDER),
        (f"@{OLDER}", OLDER),
        ("@abababa", OLDER),
        ("@refs/pr/1", COMMIT),
    ],
)
def test_a_revision_is_a_branch_a_tag_or_a_commit(cache: Path, revision: str, commit: str) -> None:
    assert hub.locate(NAME + revision) == cache / "models--tiny--bert/snapshots" / commit


def test_every_command_takes_the_name(cache: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(cache, source / "own", "own", main=COMMIT)
    assert hub.load(NAME).path == hub.locate(NAME)
    for words in (
        ["show", NAME, "--json"],
        ["show", "own"],
        ["embed", NAME, "the cat", "--json"],
        ["fill", f"{NAME}@v1", "the [MASK] sits"],
        ["generate", "own", "ab", "--max-new", "2"],
        ["convert", NAME, "copy", "--to", "longspan"],
    ):
        assert main(words) == 0, capsys.readouterr().err
    assert "huggingface_hub" not in Path(local_cache.__file__).read_text().replace("pip install huggingface_hub", "")
    assert "longspan.hub.local_cache" in sys.modules


def test_a_folder_of_that_name_comes_first(cache: Path, source: Path) -> None:
    shutil.copytree(source / "bert", Path("tiny/bert"))
    assert hub.locate(NAME) == Path("tiny/bert")


def test_a_checkpoint_is_shown_with_attention_and_memory(cache: Path, source: Path, capsys) -> None:
    store(cache, source / "own", "own", main=COMMIT)
    assert main(["show", "own", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert [(layer["layer"], layer["name"], layer["causal"]) for layer in row["attention"]] == [
        ("stack.blocks.0.mixer", "softmax", True),
        ("stack.blocks.1.mixer", "softmax", True),
    ]
    assert row["weight_bytes"] == 4 * row["parameters"]
    # 2 layers, keys and values of 16 numbers, 40 tokens, 4 bytes
    assert row["state_bytes"] == [{"length": 40, "bytes": 2 * 2 * 16 * 40 * 4}]
    assert [cost["length"] for cost in row["costs"]] == [40]
    assert main(["show", "own"]) == 0
    shown = capsys.readouterr().out
    assert "2 × softmax, causal" in shown and "decoding state" in shown and "10 KiB" in shown


# What is not there, or not all there


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command prints; nothing is written."""
    before = sorted(Path().rglob("*"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and sorted(Path().rglob("*")) == before
    return err.removeprefix("longspan: ").rstrip()


def test_a_model_that_is_not_there(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failure(capsys, "show", "HuggingFaceTB/SmolLM2-135M") == (
        "there is no folder or file HuggingFaceTB/SmolLM2-135M, and no model HuggingFaceTB/SmolLM2-135M in the local "
        f"Hugging Face cache {cache}; longspan downloads no models: `hf download HuggingFaceTB/SmolLM2-135M` does "
        "(pip install huggingface_hub)"
    )
    assert "`hf download a/b --revision v2` does" in failure(capsys, "generate", "a/b@v2", "x")
    assert failure(capsys, "show", "berrt").startswith("no attention, model or preset is called 'berrt'")


@pytest.mark.parametrize("name", ["a/b/c", "../bert", "a/..", "x--y/z", "a b", "@main", "tiny/bert@../../x", "a/-b"])
def test_other_texts_are_no_names(cache: Path, name: str) -> None:
    assert not local_cache.is_name(name)
    with pytest.raises(InvalidInput, match="there is no folder or file"):
        hub.locate(name)


def test_unknown_revisions(cache: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failure(capsys, "show", f"{NAME}@v11") == (
        f"the cache {cache} has no revision 'v11' of {NAME}; it has main, refs/pr/1, v1, 012345678901, abababababab: "
        "did you mean 'v1'?"
    )
    store(cache, source / "bert", "a/b", OLDER)  # as a download of one commit leaves it
    assert failure(capsys, "show", "a/b") == (
        f"the cache {cache} has no revision 'main' of a/b; it has abababababab: give a/b@REVISION"
    )
    (cache / "models--tiny--bert/refs/main").write_text("../../etc")
    assert "refs/main must hold a commit of 40 letters, not '../../etc'" in failure(capsys, "show", NAME)


def damaged(cache: Path, case: str) -> str:
    """A half-downloaded cache, and the files that an error must name."""
    repository = cache / "models--tiny--bert"
    snapshot = repository / "snapshots" / COMMIT
    if case == "nothing yet":
        shutil.rmtree(repository / "snapshots")
        shutil.rmtree(repository / "refs")
        return "has no snapshots yet"
    if case == "no snapshot":
        shutil.rmtree(snapshot)
        return f"{snapshot} is not there"
    if case == "dangling":
        (repository / "blobs" / f"{COMMIT[:4]}-model.safetensors").unlink()
        return f"{snapshot} lacks model.safetensors; "
    if case == "incomplete":
        blob = repository / "blobs" / f"{COMMIT[:4]}-model.safetensors"
        blob.rename(blob.with_name("ff.1234.incomplete"))
        (snapshot / "model.safetensors").unlink()
        return f"lacks model.safetensors (1 unfinished in {repository / 'blobs'}); "
    if case == "config":
        (snapshot / "config.json").unlink()
        return f"{snapshot} lacks config.json; "
    (snapshot / "model.safetensors").unlink()
    names = {f"tensor.{number}": f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return (
        "lacks model-00001-of-00004.safetensors, model-00002-of-00004.safetensors, model-00003-of-00004.safetensors "
        "and 1 more; "
    )


@pytest.mark.parametrize("case", ["nothing yet", "no snapshot", "dangling", "incomplete", "config", "shards"])
def test_half_a_download_is_named_by_file(cache: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    said = damaged(cache, case)
    line = failure(capsys, "convert", NAME, "copy")
    assert line.startswith(f"{NAME} is only half downloaded: ") and said in line
    assert line.endswith("`hf download tiny/bert` does (pip install huggingface_hub)")


def test_pickles_and_unknown_families_are_refused(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = cache / "models--tiny--bert/snapshots" / COMMIT
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle, which can run code" in failure(capsys, "show", NAME)
    record = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text(json.dumps({**record, "model_type": "distilbrt"}))
    line = failure(capsys, "embed", NAME, "the cat")
    assert "models of the type 'distilbrt' are not supported; the nearest is 'distilbert'; these are: albert" in line
