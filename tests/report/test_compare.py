"""`longspan compare`: the numbers of runs and sets of seeds, what is said of damaged ones, and the page."""

import json
from pathlib import Path
from statistics import stdev

import pytest
from tests.report.opened import open_page
from tests.train.test_history import ROWS, made_run

from longspan.cli.main import main
from longspan.report.compare import by_task, differences, lines, read_entries
from longspan.report.statistics import mean_curve, spread_curve
from longspan.train.seeds import SeedSet


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that no other test's width wraps."""
    monkeypatch.setenv("COLUMNS", "200")


def shifted(by: float) -> list[dict[str, object]]:
    """The rows of a run whose held-out losses are higher."""
    rows = json.loads(json.dumps(ROWS))
    for row in rows:
        if "held_out" in row:
            row["held_out"]["loss"] += by
    return rows


def made_set(folder: Path, *shifts: float) -> Path:
    seeds = SeedSet(folder, tuple(range(len(shifts))))
    seeds.write()
    for seed, shift in enumerate(shifts):
        made_run(seeds.run(seed), shifted(shift))
    return folder


def test_a_set_of_seeds_is_a_mean_with_a_band(tmp_path: Path) -> None:
    entries, problems = read_entries([made_run(tmp_path / "one"), made_set(tmp_path / "set", 0.0, 0.5, 1.0)])
    assert problems == [] and [entry.name for entry in entries] == ["one", "set"]
    assert entries[0].final("loss") == (2.5, None) and entries[1].final("loss") == (3.0, 0.5)
    one, three = lines(entries, "evaluations", "step", "loss")
    assert one.points == [(4.0, 3.0), (6.0, 2.5)] and one.band == []
    assert three.points == [(4.0, 3.5), (6.0, 3.0)] and three.band == [(3.0, 4.0), (2.5, 3.5)]
    assert three.tips[1] == "3 ± 0.5 after 6 steps, mean of 3 seeds"
    by_time = lines(entries, "evaluations", "seconds", "loss")
    assert [x for x, _ in by_time[0].points] == [1.5, 2.0]


def test_the_spread_of_curves_with_different_points() -> None:
    one, other = [(0.0, 0.0), (2.0, 4.0)], [(0.0, 2.0), (1.0, 2.0), (2.0, 2.0)]
    spread = [(0.0, 1.0, stdev([0, 2])), (1.0, 2.0, 0.0), (2.0, 3.0, stdev([4, 2]))]
    assert spread_curve([one, other]) == spread and mean_curve([one, other]) == [(x, mean) for x, mean, _ in spread]
    assert spread_curve([one]) == [(0.0, 0.0, 0.0), (2.0, 4.0, 0.0)] and spread_curve([[], []]) == []


def test_the_command_prints_one_table_for_each_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [made_run(tmp_path / "a"), made_set(tmp_path / "b", 0.0, 1.0), made_run(tmp_path / "c", task="sort")]
    assert main(["compare", *map(str, folders)]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    title, head, one, two, others = first.splitlines()
    assert title == "algorithm, copy" and head.split()[:4] == ["run", "seeds", "loss", "model"]
    assert one.split()[:4] == ["a", "1", "2.5", "decoder"] and two.split()[:5] == ["b", "2", "3", "±", "0.71"]
    assert others == "other metrics (--metric): accuracy, bleu" and second.startswith("algorithm, sort\n")
    assert main(["compare", *map(str, folders), "--metric", "accuracy", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [task["task"] for task in record["tasks"]] == ["algorithm, copy", "algorithm, sort"]
    (a, b), _ = (task["runs"] for task in record["tasks"])
    assert a["metrics"]["accuracy"] == {"mean": 0.75, "deviation": None} and b["metrics"]["loss"]["mean"] == 3.0
    assert (a["parameters"], a["steps"], a["targets_per_second"], a["seconds"]) == (17, 6, 40.0, 1.5)
    assert [run["seed"] for run in b["runs"]] == [3, 3] and a["energy"] is None


def test_what_is_wrong_is_said_and_not_fatal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, partial = made_run(tmp_path / "whole"), made_run(tmp_path / "partial", ROWS[:2], finished=False)
    seeds = made_set(tmp_path / "set", 0.0)
    SeedSet(seeds, (0, 1)).write()
    assert main(["compare", str(whole), str(partial), str(seeds), str(tmp_path / "none")]) == 0
    output = capsys.readouterr().out
    assert "not finished; no evaluation yet" in output and "seed 1: not begun" in output
    assert f"left out: there is no folder {tmp_path / 'none'}; give the folder of a run" in output
    assert main(["compare", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"longspan: there is no folder {tmp_path / 'none'}; give the folder of a run\n"
    assert main(["compare", str(whole), "--metric", "los"]) == 2
    assert "no run has the metric 'los': did you mean 'loss'?" in capsys.readouterr().err
    assert main(["compare"]) == 2 and main(["compare", str(whole), "--html", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_tasks_that_are_not_quite_the_same(tmp_path: Path) -> None:
    one, other = made_run(tmp_path / "x" / "run"), made_run(tmp_path / "y" / "run")
    config = other / "config.toml"
    config.write_text(config.read_text().replace("[model]", "symbols = 7\nbatch = 3\n[model]"))
    entries, _ = read_entries([one, other])
    assert [entry.name for entry in entries] == ["x/run", "y/run"] and len(by_task(entries)) == 1
    assert differences(entries) == ["symbols differs: None, 7"]  # another batch changes no metric's meaning


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_chromium(browser, tmp_path: Path, width: int, scheme: str) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    folders = [
        made_set(tmp_path / "set", 0.0, 1.0),
        made_run(tmp_path / hostile),
        made_run(tmp_path / "c", task="sort"),
    ]
    path = tmp_path / "compare.html"
    assert main(["compare", *map(str, folders), "--html", str(path)]) == 0
    opened, requests, problems = open_page(browser, path, width, scheme)
    assert opened.title() == "longspan compare" and requests == [path.as_uri()] and problems == []
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert opened.locator("section").count() == 2 and opened.locator("section:first-of-type svg").count() == 4
    assert opened.locator("polygon.band").count() == 4 and opened.locator("img").count() == 0
    opened.locator("svg .dot").first.hover()
    assert opened.locator("#tip").inner_text() == "set: 3.5 ± 0.71 after 4 steps, mean of 2 seeds"
    opened.context.close()
