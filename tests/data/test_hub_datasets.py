"""Data sets of the package `datasets` in tasks: saved, as files, from the cache; never from the network."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value, config, disable_progress_bars

from longspan.cli.main import main
from longspan.data.text.hub_datasets import HubName
from longspan.data.text.tables import rows
from longspan.errors import InvalidInput, Unsupported
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, located

disable_progress_bars()
FEATURES = Features(
    {
        "text": Value("string"),
        "label": ClassLabel(names=["bad", "good"]),
        "tokens": Sequence(Value("string")),
        "ner_tags": Sequence(ClassLabel(names=["O", "B-PER"])),
        "translation": {"en": Value("string"), "de": Value("string")},
    }
)


def dataset(count: int = 20) -> Dataset:
    record: dict[str, list[Any]] = {
        "text": [f"film {number} was {'good' if number % 2 else 'bad'}" for number in range(count)],
        "label": [number % 2 for number in range(count)],
        "tokens": [["Anna", "sleeps"]] * count,
        "ner_tags": [[1, 0]] * count,
        "translation": [{"en": f"the {number}", "de": f"der {number}"} for number in range(count)],
    }
    return Dataset.from_dict(record, features=FEATURES)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Any connection fails, and the cache is empty."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def saved(folder: Path) -> Path:
    DatasetDict({"train": dataset(), "test": dataset(4)}).save_to_disk(folder)
    return folder


def read(path: str, *wanted: str) -> list[dict[str, str]]:
    return [row.fields for row in rows(Path(path), wanted)]


def test_the_parts_of_a_name(tmp_path: Path) -> None:
    assert HubName.read("hf:user/name") == HubName("user/name")
    assert HubName.read("hf:user/name@en-de:test") == HubName("user/name", "en-de", "test")
    folder = tmp_path / "a:b"
    folder.mkdir()
    assert HubName.read(f"hf:{folder}") == HubName(str(folder))
    assert HubName.read(f"hf:{folder}:test").absolute() == f"hf:{folder}:test"
    with pytest.raises(InvalidInput, match="names no data set"):
        HubName.read("hf:")


def test_a_saved_data_set_is_a_table_with_named_classes(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set")
    found = read(f"hf:{folder}")
    assert len(found) == 20 and list(found[0]) == [
        "text",
        "label",
        "tokens",
        "ner_tags",
        "translation.en",
        "translation.de",
    ]
    assert (found[1]["label"], json.loads(found[1]["ner_tags"])) == ("good", ["B-PER", "O"])
    assert len(read(f"hf:{folder}:test")) == 4
    assert read(str(folder), "text") == [{"text": row["text"]} for row in found]  # the folder says what it is
    assert read(f"hf:{folder}", "en", "de")[3] == {"en": "the 3", "de": "der 3"}
    one = tmp_path / "one"
    dataset(3).save_to_disk(one)
    assert len(read(f"hf:{one}")) == 3


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_folder_of_files_is_read_in_place(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    plain = dataset(5).select_columns(["text", "label"])
    if kind == "arrow":
        plain.save_to_disk(tmp_path / "saved")
        next((tmp_path / "saved").glob("*.arrow")).rename(folder / "data-00000-of-00001.arrow")
    else:
        writer = {"parquet": plain.to_parquet, "jsonl": plain.to_json}[kind]
        writer(str(folder / f"train.{kind}"))
    found = read(f"hf:{folder}", "text", "label")
    named = kind in ("parquet", "arrow")  # JSON does not know the names of classes
    assert found[1] == {"text": "film 1 was good", "label": "good" if named else "1"} and len(found) == 5
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_name_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    for setting, count in (("plain", 3), ("other", 5)):
        folder = tmp_path / "cache" / "user___name" / setting / "0.0.0" / "abc"
        dataset(count).save_to_disk(tmp_path / setting)
        folder.mkdir(parents=True)
        next((tmp_path / setting).glob("*.arrow")).rename(folder / "name-train.arrow")
        (folder / "dataset_info.json").write_text("{}")
    assert len(read("hf:user/name@other")) == 5
    with pytest.raises(InvalidInput, match="it has the configurations other, plain; name one, such as hf:user/name@ot"):
        read("hf:user/name")
    with pytest.raises(InvalidInput, match="has no split 'tset'"):
        read("hf:user/name@plain:tset")
    hub = tmp_path / "hub" / "datasets--user--files" / "snapshots" / "rev"
    hub.mkdir(parents=True)
    dataset(2).to_parquet(str(hub / "train.parquet"))
    assert len(read("hf:user/files")) == 2


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "set")
    with pytest.raises(InvalidInput, match=r"no data set of this name in .*; nothing is downloaded"):
        read("hf:no/such")
    with pytest.raises(InvalidInput, match="has no column 'txt'; it has 'text'"):
        read(f"hf:{folder}", "txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="has no Parquet, Arrow, CSV or JSON files"):
        read(f"hf:{tmp_path / 'empty'}")
    (folder / "train" / "state.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read as a data set"):
        read(f"hf:{folder}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unsupported, match=r"datasets, which is not installed: pip install longspan\[hf-tools\]"):
        read(f"hf:{folder}")


@pytest.mark.parametrize(
    "task,given,examples",
    [
        ("classify", {}, 18),
        ("tag", {"words": "tokens", "tags": "ner_tags"}, 18),
        ("translate", {"batch": 4, "tokenizer": {"kind": "characters"}}, 19),
        ("summarize", {"text": "en", "summary": "de", "tokenizer": {"kind": "characters"}}, 18),
    ],
)
def test_tasks_read_them(tmp_path: Path, task: str, given: dict[str, Any], examples: int) -> None:
    folder = saved(tmp_path / "set")
    built = registry.build(task, train=f"hf:{folder}", test=f"hf:{folder}:test", **given)
    prepared = built.prepare(DataPaths(None, tmp_path / "work"))
    for data, count in ((prepared.train, examples), (prepared.test, 4)):
        assert len(getattr(data, "examples", data)) == count


def test_the_command_line_trains_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "films")
    monkeypatch.chdir(tmp_path)
    small = ["--model.layers", "1", "--model.heads", "2", "--model.width", "16", "--model.hidden", "16"]
    code = main(["train", "--task", "classify", "--train", "hf:films", "--train.steps", "2", "--length", "16", *small])
    assert code == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("runs/films/model: loss ")
    options = registry.build("classify", train="hf:films:train").options
    assert located(options).train == f"hf:{tmp_path}/films:train"
    assert main(["data", "show", "hf:films:test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == {"bad": 2, "good": 2}
    assert main(["train", "--task", "classify", "--train", "hf:filme"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "there is no folder 'filme', and no data set of this name" in error and "Traceback" not in error
