"""The published tables: their own sums, and that nothing is compared which may not be."""

import pytest

from longspan.arena import published, recorded
from longspan.arena.models.registry import ARENA_MODELS
from longspan.errors import UnknownName


@pytest.mark.parametrize(
    "table", [published.benchmark(), published.small(), published.later()], ids=["benchmark", "small", "later"]
)
def test_averages_are_those_of_their_rows(table: published.PublishedTable):
    wrong = [row.title for row in table.rows if abs(row.mean() - row.average) > 0.0101]
    # The paper's own misprint: 51.39 is printed, the mean is 51.48.
    assert wrong == (["Sinkhorn"] if table is published.benchmark() else [])


def test_sinkhorns_printed_average_is_noted_as_wrong():
    row = published.benchmark().row("sinkhorn")
    assert row is not None and row.average == 51.39 and round(row.mean(), 2) == 51.48
    assert "51.48" in row.note and "51.29" in row.note


def test_rows_are_found_by_our_names():
    row = published.benchmark().row("window")
    assert row is not None and row.title == "Local Attention" and row.accuracy("image") == 41.46
    assert row.accuracy("pathx") is None and row.accuracy("recall") is None
    assert published.benchmark().row("nystrom") is None and published.small().row("nystrom") is not None
    assert published.later().rows[3].accuracy("pathx") == 96.35


def test_printed_ratios_of_speed():
    """The paper prints them beside the figures; each is that to the Transformer."""
    ratios = {
        each.model: [
            round(a / b, 1) for a, b in zip(each.steps_per_second, published.speeds().rows[0].steps_per_second)
        ]
        for each in published.speeds().rows
    }
    assert ratios["performer"] == [1.2, 1.9, 3.8, 5.7] and ratios["window"] == [1.1, 1.7, 3.2, 5.3]


def test_which_settings_are_comparable():
    assert published.comparable("released", "listops") and published.comparable("small", "retrieval")
    assert not published.comparable("released", "retrieval") and not published.comparable("released", "recall")
    assert not any(published.comparable("tiny", task) for task in published.TITLES)


def test_differences_of_a_setting_and_of_its_tasks():
    tiny, released = published.differences("tiny"), published.differences("released")
    assert "comparable with nothing" in tiny[0] and not any("comparable with nothing" in each for each in released)
    for word in ("Selection:", "Padding:", "ReLU features", "best of four", "stand in", "CIFAR-10", "one run each"):
        assert any(word in each for each in tiny) and any(word in each for each in released), word
    assert any("published column (52 to 60) is never compared" in each for each in released)
    assert not any("published column (52 to 60)" in each for each in published.differences("small"))
    only = published.differences("tiny", ["listops"])
    assert not any(each.startswith(("Text", "Image", "Pathfinder", "Retrieval")) for each in only)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'tiny'"):
        published.differences("tinny")
    with pytest.raises(UnknownName, match="did you mean 'listops'"):
        published.differences("tiny", ["listop"])


def test_the_data_names_only_known_settings_tasks_and_models():
    data = published.read_data("published.toml")
    for difference in data["differences"]:
        assert set(difference.get("settings", ())) <= set(published.SETTINGS)
        assert set(difference.get("tasks", ())) <= set(published.TITLES)
    tables = [published.benchmark(), published.small(), published.later()]
    rows = [row for table in tables for row in table.rows]
    assert {task for row in rows for task in row.accuracies} == {*published.FIVE, "pathx"}
    models = {row.model for row in [*rows, *published.speeds().rows]} - {None}
    assert models <= set(ARENA_MODELS) and len(rows) == 25 and len(published.speeds().rows) == 9
    lengths = published.speeds().lengths
    assert all(len(row.steps_per_second) == len(row.gigabytes) == len(lengths) for row in published.speeds().rows)


def test_recorded_accuracies_are_means_over_tasks():
    table, tiny = recorded.RECORDED["published"], recorded.RECORDED["tiny"]
    assert table.tasks == ("listops", "text", "image", "pathfinder") and len(table.accuracy) == 11
    assert table.accuracy["dense"] == pytest.approx((36.37 + 64.27 + 42.44 + 71.40) / 400)
    assert tiny.tasks == ("listops", "pathfinder") and tiny.accuracy["lstm"] == pytest.approx((38.9 + 51.0) / 200)
