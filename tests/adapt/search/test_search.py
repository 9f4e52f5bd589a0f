"""Architecture search: the space, the Pareto front, the budget, a killed search, and a changed one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from longspan.adapt.search.finding import describe, search_finding
from longspan.adapt.search.space import Space
from longspan.adapt.search.study import Budget, Search, SearchResult, Tried, pareto
from longspan.cli.main import main
from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.inspect.measures.findings import Scatter
from longspan.train import recipe as recipes

RECIPE = """
[task]
name = "language"
train = "text.txt"
tokenizer = { kind = "characters" }
length = 16
batch = 4
[model]
name = "decoder"
width = 16
layers = 1
heads = 1
hidden = 16
[train]
steps = 2
schedule = { kind = "constant", rate = 0.01 }
"""


def tried(number: int, quality: float, milliseconds: float, **genes: Any) -> Tried:
    return Tried(number, genes, quality, milliseconds, 1000, 10, True)


class Fixed:
    """Draws what it is told."""

    def __init__(self, **values: Any) -> None:
        self.values, self.asked = values, []

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.asked.append(name)
        return self.values[name]


# The space


def test_layers_of_a_group_have_one_mechanism() -> None:
    space = Space(("softmax", "window"), (4, 8), (32,), (3,), (), 16, 2)
    trial = Fixed(width=32, depth=3, mechanism_0="softmax", mechanism_1="window", window_1=8)
    genes = space.draw(trial)
    assert "window_0" not in trial.asked  # softmax has none
    assert space.overrides(genes) == {
        "model.width": 32,
        "model.layers": 3,
        "model.heads": 2,
        "model.attention": [{"name": "softmax"}, {"name": "softmax"}, {"name": "window", "window": 8}],
    }


def test_heads_that_cannot_share_keys_make_no_model() -> None:
    space = Space(widths=(96,), kv_heads=(2,))
    with pytest.raises(InvalidOption, match="3 heads cannot share 2 key heads evenly"):
        space.overrides({"width": 96, "depth": 2, "kv_heads": 2, "mechanism_0": "softmax"})


def test_the_hash_belongs_to_the_choices() -> None:
    assert Space().hash == Space().hash != Space(depths=(2, 3)).hash
    assert Space(groups=2).size == 2 * 2 * (1 + 2 + 1) ** 2  # a window of two widths, softmax and linear without


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"mechanisms": ("windwo",)}, UnknownName),
        ({"widths": (50,)}, InvalidOption),
        ({"groups": 3}, InvalidOption),
        ({"windows": (0,)}, InvalidOption),
        ({"depths": ()}, InvalidOption),
    ],
)
def test_nonsense_is_refused(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Space(**values)


# The front


def test_the_front_by_hand() -> None:
    points = [tried(0, 3.0, 1.0), tried(1, 2.0, 2.0), tried(2, 2.5, 3.0), tried(3, 1.0, 9.0), tried(4, 3.0, 1.0)]
    assert pareto(points, minimise=True) == [0, 1, 3]
    assert pareto(points, minimise=False) == [0]  # the fastest is the best too
    assert pareto([], minimise=True) == []


def test_the_budget_is_relative_to_each_limit() -> None:
    assert Budget(10.0, 1.0).excess(15.0, 500_000) == (0.5, -0.5)
    assert max(Budget().excess(1e9, 10**12)) == 0
    with pytest.raises(InvalidOption, match="must be positive"):
        Budget(milliseconds=0.0)


def test_a_search_without_a_model_in_the_budget_says_so() -> None:
    result = SearchResult(
        "loss", True, [tried(0, 1.0, 2.0, depth=1, width=8, mechanism_0="linear")], [], 0, 0, Budget()
    )
    assert search_finding(result).sentence == "None of the 1 trials is within the budget."
    assert describe(result.tried[0]) == "1 × 8, linear"


def test_choices_that_were_drawn_again_are_one_point() -> None:
    genes = {"depth": 1, "width": 8, "mechanism_0": "linear"}
    both = [tried(0, 1.0, 2.0, **genes), tried(1, 1.0, 2.0, **genes)]
    chart = search_finding(SearchResult("loss", True, both, [0], 0, 0, Budget())).figures[0]
    assert isinstance(chart, Scatter) and chart.groups == ["Pareto front"] and chart.points == [(2.0, 1.0)]


# Whole searches


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 40)
    (tmp_path / "small.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "small.toml"


SPACE = Space(("softmax", "linformer"), (4,), (16,), (1,), (), 8)  # linformer cannot be causal


def test_trials_are_kept_and_impossible_ones_are_not_trained(recipe: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    found = Search(recipes.read(recipe), SPACE, tmp_path / "out").run(5, lines.append)
    assert len(found.tried) + found.pruned == 5 and found.pruned > 0 and found.tried
    assert {each.genes["mechanism_0"] for each in found.tried} == {"softmax"}
    assert all("linformer" in line for line in lines if "not possible" in line)
    assert not list((tmp_path / "out" / "trials").glob("*"))  # only numbers are kept
    assert len({(each.quality, each.milliseconds) for each in found.tried}) == 1  # one model, trained once
    assert sum("as trial" in line for line in lines) == len(found.tried) - 1
    again = Search(recipes.read(recipe), SPACE, tmp_path / "out")
    assert again.run(5).plain() == found.plain()  # nothing is left to do


def test_another_space_or_recipe_is_refused(recipe: Path, tmp_path: Path) -> None:
    plan = recipes.read(recipe)
    Search(plan, Space(), tmp_path / "out")
    Search(plan, SPACE, tmp_path / "out").run(3)  # nothing was finished with the other space
    with pytest.raises(InvalidInput, match="a search with another space"):
        Search(plan, Space(("softmax",), (4,), (16,), (1,), (), 8), tmp_path / "out")
    with pytest.raises(InvalidInput, match="a search with another recipe"):
        Search(recipes.with_overrides(plan, {"train.steps": 3}), SPACE, tmp_path / "out")
    with pytest.raises(InvalidInput, match="is not empty and holds no search"):
        Search(plan, SPACE, tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from longspan.adapt.search import study
from longspan.adapt.search.space import Space
from longspan.train import recipe
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
study.compare = die  # after training, before the trial ends
space = Space(("softmax",), (4,), (16,), (1,), (), 8)
study.Search(recipe.read(Path(sys.argv[1])), space, Path(sys.argv[2])).run(2)
"""


def test_a_killed_trial_is_tried_again(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(recipe), str(out)]
    assert subprocess.run(command, env=dict(os.environ), capture_output=True).returncode == -signal.SIGKILL
    assert list((out / "trials").iterdir()) == [out / "trials" / "0"]
    search = Search(recipes.read(recipe), Space(("softmax",), (4,), (16,), (1,), (), 8), out)
    assert not list((out / "trials").iterdir())
    found = search.run(2)
    assert (found.failed, len(found.tried)) == (1, 1)
    assert found.tried[0].genes["mechanism_0"] == "softmax"


def test_a_resumed_search_does_not_repeat_its_draws(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"metrics": {"loss": 1.0}, "milliseconds": 2.0, "bytes": 3, "parameters": 4}
    monkeypatch.setattr(Search, "_train", lambda *_: row)
    space, plan = Space(windows=tuple(range(1, 40)), widths=tuple(range(32, 3200, 32))), recipes.read(recipe)
    Search(plan, space, tmp_path / "out").run(3)
    found = Search(plan, space, tmp_path / "out").run(6)
    assert len({each.genes["width"] for each in found.tried}) == 6
    same = Search(plan, space, tmp_path / "same").run(3)
    assert [each.genes for each in same.tried] == [each.genes for each in found.tried[:3]]


def test_training_again_resumes_and_uses_other_seeds(recipe: Path, tmp_path: Path) -> None:
    search = Search(recipes.read(recipe), Space(("softmax",), (4,), (16,), (1,), (), 8), tmp_path / "out")
    first = search.run(1).tried[0].quality
    (one,) = search.retrain(1).retrained["0"]
    lines: list[str] = []
    two = search.retrain(2, lines.append).retrained["0"]
    assert two[0] == one and len({first, *two}) == 3
    assert len(lines) == 1 and lines[0].startswith("trial 0 again, seed 1: loss")
    assert json.loads((tmp_path / "out" / "search.json").read_text())["retrained"] == {"0": list(two)}


def test_the_command_writes_a_page_and_refuses_a_wrong_recipe(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adapt", "search", str(recipe), "--mechanisms", "softmax", "--widths", "16", "--head-dim", "8"]
    words += ["--depths", "1", "--windows", "4", "--out", str(tmp_path / "out")]
    assert main([*words, "--trials", "1", "--retrain", "2"]) == 0
    assert "Best loss" in capsys.readouterr().out
    text = (tmp_path / "out" / "search.html").read_text()
    assert "Pareto front" in text and "Weights show where a head reads" not in text
    assert main([*words, "--trials", "1", "--train.stepps", "3"]) == 2
    assert main([*words, "--trials", "0"]) == 2
    capsys.readouterr()
    assert main([*words[:-1], str(tmp_path / "wrong"), "--trials", "1", "--metric", "bleu"]) == 2
    error = capsys.readouterr().err
    assert "the task has no metric 'bleu'; it has loss, perplexity, bits_per_byte" in error
    assert "Traceback" not in error
    chart = (tmp_path / "out" / "search.svg").read_text()
    assert "milliseconds of a held-out batch" in chart and 'class="path"' in chart and ">0</text>" in chart


def test_a_search_without_a_possible_model_is_an_error(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adapt", "search", str(recipe), "--mechanisms", "linformer", "--widths", "16", "--head-dim", "8"]
    assert main([*words, "--depths", "1", "--trials", "2", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "could be trained: decoder s" in error and "Correct the recipe or the choices" in error
    assert not (tmp_path / "out" / "search.html").exists()
