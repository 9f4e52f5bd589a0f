"""`longspan card`: what is known is filled in, what is not is asked, and nothing of a run is markup."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from longspan.cli.main import main
from longspan.report.card import model_card


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(
        "[task]\nname = 'language'\ntrain = '<b>my*file</b>.txt'\n"
        "[model]\nname = 'decoder'\nattention = 'window'\nwidth = 64\n[train]\nseed = 3\nlr = 0.1\n"
    )
    rows = [
        {"step": 20, "loss": 1.0, "seconds": 3.0, "count": 4},
        {"step": 20, "held_out": {"loss": 1.25}},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "sessions.jsonl").write_text(json.dumps({"energy": {"joules": 3600.0, "by": "modelled: x"}}) + "\n")
    return run


def test_what_is_known_is_there(folder: Path) -> None:
    text = model_card(folder)
    for line in (
        "- **kind**: decoder",
        "- **attention**: window",
        "- **other options**: width = 64",
        "- **steps**: 20 (not finished)",
        "- **seed**: 3",
        "- **loss**: 1.25",
        "- **energy at the machine**: 1 Wh (modelled)",
        "- **CO2e**: 0.684 g, with PUE 1.58 and 0.433 kg/kWh",
    ):
        assert line in text.splitlines()


def test_what_is_not_known_is_asked(folder: Path) -> None:
    (folder / "sessions.jsonl").unlink()
    text = model_card(folder)
    assert "- **energy**: *To be filled in:* not recorded" in text
    assert "- *To be filled in:* Under which licence may it be used?" in text


def test_values_are_no_markup(folder: Path) -> None:
    assert r"\<b\>my\*file\</b\>.txt" in model_card(folder)


def test_the_command_prints_or_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", str(folder)]) == 0
    assert capsys.readouterr().out == model_card(folder)
    assert main(["card", str(folder), "--out", str(folder / "CARD.md")]) == 0
    assert (folder / "CARD.md").read_text() == model_card(folder)
    assert main(["card", str(folder / "nowhere")]) == 2


# Folders of models


def model_folder(path: Path, **records: object) -> Path:
    path.mkdir()
    config = {"model": "decoder", "model_type": "longspan", "options": {"attention": {"name": "window"}, "width": 64}}
    (path / "config.json").write_text(json.dumps(config))
    for name, record in records.items():
        (path / f"{name}.json").write_text(json.dumps(record))
    return path


def test_a_swapped_model_says_what_was_replaced(tmp_path: Path) -> None:
    layers = [{"layer": number, "attention": {"name": "window", "window": 7}, "untrained": []} for number in range(3)]
    record = {
        "source": "package:*x*",
        "source_sha256": "ab12",
        "layers": layers,
        "untrained_parameters": 4,
        "positions": {"before": 512, "length": 4096},
        "notes": ["a note"],
    }
    text = model_card(model_folder(tmp_path / "m", swap=record))
    for line in (
        "- **kind**: decoder",
        "- **attention**: window",
        r"- **weights of**: package:\*x\*",
        "- **attention replaced in**: 3 layers, now window",
        "- **parameters that were never trained**: 4",
        "- **length**: 512 → 4096",
        "- **energy**: *To be filled in:* not recorded",
    ):
        assert line in text.splitlines()


def test_a_healed_model_has_its_losses_and_energy(tmp_path: Path) -> None:
    models = {"teacher": {"loss": 3.0}, "swapped": {"loss": 5.25}, "healed": {"loss": 3.5}}
    record = {
        "folder": "swapped/",
        "teacher": "package:x",
        "data": "text.txt",
        "options": {"stage": "2", "rate2": 0.001},
        "tokens": 1000,
        "seconds": 120,
        "table": {"models": models},
        "energy": {"joules": 3600.0, "by": "modelled: y"},
    }
    text = model_card(model_folder(tmp_path / "m", heal=record))
    for line in (
        "- **healed with**: stage = 2, rate2 = 0.001",
        "- **time of healing**: 2 minutes",
        "- **healed on**: text.txt",
        "- **held-out loss of the swapped model**: 5.25",
        "- **energy at the machine**: 1 Wh (modelled: y)",
    ):
        assert line in text.splitlines()


def test_an_adapted_run_has_the_comparison(folder: Path) -> None:
    rows = [{"name": "student", "parameters": 7, "adapter": 0, "bytes": 28, "metrics": {"accuracy": 0.5}}]
    (folder / "lighter.json").write_text(json.dumps(rows))
    assert "- **comparison, student**: parameters = 7, adapter = 0, bytes = 28, accuracy = 0.5" in model_card(folder)


def test_damaged_records_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path / "m", swap={"layers": "no", "positions": 3})
    assert "- **attention replaced in**: 0 layers" in model_card(folder)
    (folder / "swap.json").write_text("{")
    assert main(["card", str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# Data


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "my*reviews.csv"
    rows = ["good film,pos", "bad film,neg", "good film,neg", "write to a@b.org or https://x.org,pos", "фильм,pos"]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def test_a_data_card_has_what_can_be_counted(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", str(table)]) == 0
    text = capsys.readouterr().out
    digest = sha256(table.read_bytes()).hexdigest()
    for line in (
        r"# Data card: my\*reviews.csv",
        "- **rows**: 5",
        "- **labels**: pos 3 (60.0 %), neg 2 (40.0 %)",
        "- **duplicates with another label**: 1",
        "- **rows with e-mail addresses**: 1",
        "- **rows with web addresses**: 1",
        rf"- **file my\*reviews.csv**: {table.stat().st_size} bytes, SHA-256 {digest}",
        "- **licence and citation**: *To be filled in:* not recorded",
        "- *To be filled in:* Do the people in it know, and did they agree? Can they withdraw?",
    ):
        assert line in text.splitlines()
    assert "Latin" in text and "Cyrillic 9.8 %" in text  # 5 of 51 letters


def test_a_named_set_has_its_licence_and_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", "generated"]) == 0
    assert "- **licence and citation**: made by longspan itself; no terms" in capsys.readouterr().out


def test_a_card_goes_into_a_folder_but_replaces_nothing_else(
    folder: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["card", str(folder), "--out", str(folder)]) == 0
    assert main(["card", str(folder), "--out", str(folder)]) == 0  # our own card may be replaced
    assert (folder / "README.md").read_text() == model_card(folder)
    (folder / "README.md").write_text("mine")
    assert main(["card", str(table), "--out", str(folder)]) == 2
    assert "was not written by longspan card" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no file, folder or data set nowhere"),
        (["RUN", "--label", "x"], "--label is for cards of data"),
        (["TABLE", "--label", "x"], "has no column"),
        (["TABLE", "--out", "no/such/card.md"], "there is no folder"),
    ],
)
def test_card_errors_are_one_line(
    words: list[str], message: str, folder: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": str(folder), "TABLE": str(table)}
    assert main(["card", *(places.get(word, word) for word in words)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0]


def test_json_holds_the_card_and_where_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "card.md"
    assert main(["card", str(folder), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"card": out.read_text(), "written": str(out)}
