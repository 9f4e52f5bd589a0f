"""One way to name a model, for `hub.load` and for every command."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.hub.folders import bert, decoder

from longspan import hub
from longspan.cli.main import main
from longspan.errors import InvalidInput, Unsupported
from longspan.manifest import write_manifest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind, under every kind of name; nothing is written into it."""
    root = tmp_path_factory.mktemp("models")
    decoder(root / "own")
    bert(root / "theirs")
    llama = {"position": "rotary", "norm": "rms", "norm_position": "pre", "bias": False, "scale": False, "tied": False}
    decoder(root / "llama", activation="swiglu", **llama)
    found = hub.load(root / "llama")
    hub.save(found, root / "llama-theirs", family="llama")
    hub.convert(root / "llama-theirs", root / "model.gguf", to="gguf")
    (root / "one").mkdir()
    shutil.copy(root / "model.gguf", root / "one" / "model.gguf")
    (root / "two").mkdir()
    for name in "ab":
        shutil.copy(root / "model.gguf", root / "two" / f"{name}.gguf")
    for run, inner in (("run", "model"), ("going", "checkpoints/00000004/model"), ("going", "checkpoints/8/model")):
        shutil.copytree(root / "own", root / run / inner)
        (root / run / "config.toml").write_text("")
        write_manifest(root / run / Path(inner).parent, [f"model/{path.name}" for path in (root / "own").iterdir()])
    (root / "going/checkpoints/8/model/model.safetensors").write_bytes(b"cut")
    (root / "begun").mkdir()
    (root / "begun" / "config.toml").write_text("")
    (root / "empty").mkdir()
    for package, source in (
        ("own_weights", "own"),
        ("gguf_weights", "one"),
        ("two_weights", "two"),
        ("no_weights", ""),
    ):
        (root / "packages" / package).mkdir(parents=True)
        (root / "packages" / package / "__init__.py").write_text("raise SystemExit('a package is not imported')")
        if source:
            shutil.copytree(root / source, root / "packages" / package / "inside")
    return root


@pytest.fixture(autouse=True)
def packages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "packages"))


NAMES = {
    "own": "own",
    "theirs": "theirs",
    "model.gguf": "model.gguf",
    "one": "one/model.gguf",
    "run": "run/model",
    "going": "going/checkpoints/00000004/model",
    "package:own-weights": "packages/own_weights/inside",
    "package:own_weights": "packages/own_weights/inside",
    "package:gguf-weights": "packages/gguf_weights/inside/model.gguf",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_same_model_everywhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(root)
    assert (root / hub.locate(name)).resolve() == (root / NAMES[name]).resolve()
    assert hub.load(name).path == hub.locate(name)
    assert main(["show", name, "--json"]) == 0
    assert main(["embed", name, "ab", "--json"]) == 0
    assert main(["convert", name, str(tmp_path / "copy"), "--to", "longspan"]) == 0
    hub.load(tmp_path / "copy")
    if name != "theirs":
        assert main(["generate", name, "ab", "--max-new", "3"]) == 0
    assert "own_weights" not in sys.modules


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "there is no folder or file none, and no model none in the local Hugging Face cache "),
        ("a/none.gguf/x", "there is no folder or file a/none.gguf/x; give the folder of a model or of a run, a .gguf "),
        ("own-weights", "there is no folder or file own-weights; for the installed package give package:own-weights"),
        ("begun", "begun is a run without a model yet"),
        ("two", "two has 2 .gguf files; name one of them, such as two/a.gguf"),
        (
            "empty",
            "empty is no model: it has no config.json (a model), no config.toml (a run) and no .gguf file; give ",
        ),
        ("package:not-here", "no package 'not_here' is installed; install it, or give the folder of a model or of a "),
        ("package:no/name", "no package 'no/name' is installed"),
        ("package:two-weights", "the package 'two_weights' carries 2 models; name one by its path: "),
        ("package:no-weights", "the package 'no_weights' carries no model.safetensors and no .gguf file"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(InvalidInput, match=f"^{re.escape(said)}"):
        hub.load(name)
    assert main(["generate", name, "ab"]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"longspan: {said}") and err.count("\n") == 1


def test_other_files_are_refused(root: Path) -> None:
    with pytest.raises(
        Unsupported, match=r"config.json is no model: of files, .gguf and .bin are read; give the folder"
    ):
        hub.load(root / "own" / "config.json")
