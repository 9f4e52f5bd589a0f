"""The arena's page: right numbers, from any mix of results, self-contained, and readable in a real browser."""

import json
import re
from dataclasses import replace
from io import StringIO
from math import sqrt
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.report.arena_results import realistic, record, save, speed
from tests.report.opened import open_page

from longspan.arena.models import registry as arena_models
from longspan.arena.runs.cell import Record
from longspan.cli.arena_results import print_results, summary
from longspan.data.json_lines import parse
from longspan.errors import InvalidInput
from longspan.report import arena, figures, palette
from longspan.report.arena import arena_page, write
from longspan.report.arena_account import command
from longspan.report.arena_conclusions import conclusions, facts
from longspan.report.results import Results, read

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">&'"


def page_of(records: list[Record], **grid) -> str:
    return arena_page(Results(records, grid), [])


def plain(markup: str) -> str:
    """Its text, with a space for every tag."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup))


def test_means_deviations_and_intervals():
    made = plain(page_of([record("listops", "dense", seed, 0.40 + 0.01 * seed) for seed in range(3)]))
    # 40, 41 and 42: mean 41, deviation 1, and 4.3027 · 1 / √3 = 2.48.
    assert "41.0 ± 2.5 ▲" in made and "s 1.00, 3 seeds" in made


def test_one_seed_has_the_interval_of_its_test():
    made = page_of([record("pathfinder", "dense", 0, 0.60)])
    # 1.96 · √(0.6 · 0.4 / 2000) = 2.147 %, of which three standard errors are 3.29: above 50.7 and 51.2.
    assert "60.0 ± 2.1 ▲" in plain(made) and "95 % interval ± 2.15 (binomial, 2,000 test examples" in made


def test_signs_say_what_is_beaten():
    texts = [plain(page_of([record("listops", "dense", 0, accuracy)])) for accuracy in (0.13, 0.30, 0.40)]
    assert "13.0 ± 1.5 ○" in texts[0] and "30.0 ± 2.0 △" in texts[1] and "40.0 ± 2.1 ▲" in texts[2]
    error = sqrt(0.13 * 0.87 / 2000)
    assert 3 * error > 0.13 - 0.113  # so that the first is not above the majority


def test_trivial_predictors_stand_in_the_table():
    made = plain(page_of([record("listops", "dense", 0, 0.4), record("pathfinder", "dense", 0, 0.6)]))
    assert re.search(r"trivial: majority\s+11.3\s+50.7\s+31.0", made)
    assert re.search(r"trivial: first token\s+23.1\s+–\s+–", made)


def test_the_average_names_its_tasks_and_needs_all_of_them():
    records = [record(task, "dense", 0, value) for task, value in (("listops", 0.4), ("pathfinder", 0.6))]
    records += [record("listops", "window", 0, 0.9)]
    results = Results(records)
    assert results.average("dense") == pytest.approx(0.5) and results.average("window") is None
    made = plain(arena_page(results, []))
    assert "The average is the mean over ListOps, Pathfinder, and needs all of them." in made
    assert "Not shown: Local Attention (lacks Pathfinder)" in made


def test_path_x_is_left_out_of_the_average():
    other = replace(record("pathfinder", "dense", 0, 0.5), cell=replace(record("pathfinder", "dense", 0, 0.5).cell))
    other = replace(other, cell=replace(other.cell, task="pathx"))
    results = Results([record("listops", "dense", 0, 0.4), other])
    assert results.averaged == ["listops"] and results.tasks == ["listops", "pathx"]


def test_failures_are_shown_with_their_reasons():
    bad = record("listops", "window", 0, None, state="memory", error="9.5 GiB were not to be had", curve=())
    lost = record("listops", "dense", 1, None, state="failed", error="a loss that is no number", curve=())
    made = page_of([record("listops", "dense", 0, 0.4), lost, bad])
    assert "seed 0: out of memory: 9.5 GiB were not to be had" in made
    assert "seed 1: failed: a loss that is no number" in made
    assert "1 of 2 failed" in plain(made) and "1 of 3 cells done; 1 failed, 1 out of memory" in plain(made)


def test_reasons_are_text_and_need_no_pointer():
    bad = record("listops", "window", 0, None, state="memory", error="9.5 GiB were not to be had", curve=())
    slow = speed("naive", 4096, None, None, state="memory", error="too large")
    flagged = record("listops", "lstm", 0, 0.4, flagged="1.31 times the base's parameters")
    made = plain(page_of([record("listops", "dense", 0, 0.4), bad, slow, flagged]))
    assert "Local Attention, ListOps, seed 0: out of memory: 9.5 GiB were not to be had" in made
    assert "Transformer, not fused, length 4,096: out of memory: too large" in made
    assert "⚑ Bidirectional LSTM: 1.31 times the base&#x27;s parameters. The benchmark&#x27;s rules" in made
    assert "hover for the reason" not in made


def test_models_are_those_of_the_table():
    made = plain(page_of([*(record("listops", m, 0, 0.4) for m in ("dense", "window")), speed("naive", 64, 1.0, 1)]))
    assert "2 models (and 1 model for speed only), 1 task (ListOps), 1 seed, setting tiny." in made


def seeds_of(model: str, *values: float) -> list[Record]:
    return [record("listops", model, seed, value) for seed, value in enumerate(values)]


def test_the_first_sentence_says_what_separates_and_what_does_not():
    # ± 1.96 · √(0.5 · 0.5 / 2000) = 2.2 of the test each; two such differ by 3.1.
    dense, near_it = seeds_of("dense", 0.50, 0.50), seeds_of("window", 0.48, 0.48)
    (said,) = conclusions(Results([*dense, *near_it, *seeds_of("lstm", 0.36, 0.36)]))
    assert said == (
        "ListOps: Transformer and Local Attention beat the best trivial predictor (root digits, 35.2 %) beyond the "
        "noise; Bidirectional LSTM does not. Transformer is highest, 50.0 ± 2.2 %, above Bidirectional LSTM beyond "
        "the noise, not above Local Attention."
    )
    (said,) = conclusions(Results([*dense, *near_it]))
    assert said.endswith("Transformer is highest, 50.0 ± 2.2 %; no two models differ beyond the noise.")
    (said,) = conclusions(Results([*seeds_of("dense", 0.36), *seeds_of("lstm", 0.12)]))
    assert "no model beats the best trivial predictor (root digits, 35.2 %) beyond the noise" in said
    assert said.endswith("With one seed each, the variation between seeds is unknown.")
    page = plain(page_of([*dense, *near_it]))
    assert page.index("no two models differ") < page.index("setting tiny") < page.index("Accuracy over speed")


def test_no_card_crowns_a_difference_within_the_noise():
    dense, window = seeds_of("dense", 0.50, 0.50), seeds_of("window", 0.48, 0.48)
    cards = dict(facts(Results([*dense, *window])))
    assert cards["50.0 ± 2.2"] == "highest average accuracy: Transformer; within the noise of Local Attention"
    # As fast and as large as the dense one: 8.0 steps per second and 200 MiB each.
    assert cards["1.00×"] == (
        "of the dense memory: no model needs less than the dense Transformer (nearest: Local Attention, 200 MiB)"
    )
    larger = [replace(each, memory=248 * 2**20, steps_per_second=16.0) for each in window]
    cards = dict(facts(Results([*dense, *larger])))
    assert "no model needs less than the dense Transformer" in cards["1.24×"]
    assert cards["2.00×"] == "the dense speed: Local Attention is fastest"


def test_bold_is_what_nothing_is_above():
    records = [*seeds_of("dense", 0.50, 0.50), *seeds_of("window", 0.48, 0.48), *seeds_of("lstm", 0.36, 0.36)]
    made = page_of(records)
    assert "<b>50.0</b>" in made and "<b>48.0</b>" in made and "<b>36.0</b>" not in made
    assert "<b>50.0</b>" not in page_of(records[:4]).split("</header>")[1]


def test_self_pre_training_has_columns_of_its_own():
    records = [record("listops", "dense", 0, 0.4), record("listops", "dense", 0, 0.55, pretrain=True)]
    made = plain(page_of(records))
    assert "ListOps self pre-trained" in made and "40.0 ± 2.1" in made and "55.0 ± 2.2" in made
    assert "self pre-trained" not in plain(page_of(records[:1])).split("Published results and ours")[0]


def test_ratios_of_speed_are_to_both_dense_ones():
    records = [speed("naive", 1024, 2.0, 400 * 2**20), speed("dense", 1024, 4.0, 200 * 2**20)]
    records += [speed("linear", 1024, 6.0, 100 * 2**20)]
    made = plain(page_of([record("listops", "dense", 0, 0.4), *records]))
    assert "3.00× 1.50× fused · 6/s" in made and "0.25× 0.50× fused · 100 MiB" in made


def test_speeds_of_other_machines_or_batches_are_not_compared():
    one, other = speed("naive", 1024, 2.0, 1), speed("linear", 1024, 6.0, 1, options={"batch": 4})
    assert "3.00×" not in plain(page_of([one, other]))
    far = replace(other, options={}, machine={"processor": "another"})
    assert "3.00×" not in plain(page_of([one, far]))
    assert "3.00×" in plain(page_of([one, replace(other, options={})]))


def test_where_the_dense_one_has_no_figure_there_is_no_ratio():
    none = speed("naive", 4096, None, None, state="memory", error="too much")
    made = plain(page_of([none, speed("dense", 4096, 4.0, 100), speed("linear", 4096, 6.0, 100)]))
    assert "out of memory" in made and "– 1.50× fused" in made


def test_flags_make_it_a_free_for_all():
    made = page_of([record("listops", "lstm", 0, 0.4, flagged="1.31 times the base's parameters")])
    assert "1.31 times the base&#x27;s parameters" in made and "free-for-all" in made


def test_tiny_is_never_compared_and_larger_settings_are():
    tiny = plain(page_of([record("listops", "dense", 0, 0.4)]))
    assert "Not comparable." in tiny and "no number here is comparable" in tiny and "+3.6" not in tiny
    released = plain(page_of([record("listops", "dense", 0, 0.4, setting="released")]))
    assert "36.37 +3.6" in released and "Not comparable." not in released
    assert "51.48" in page_of([record("listops", "dense", 0, 0.4)])  # of Sinkhorn's misprint


def test_the_printed_column_of_retrieval_is_struck_out():
    one = record("listops", "dense", 0, 0.7035, setting="released")
    made = page_of([replace(one, cell=replace(one.cell, task="retrieval"))])
    assert "<s>57.46</s>" in made and "+12.9" not in made
    small = replace(one, cell=replace(one.cell, task="retrieval", setting="small"))
    assert "79.35 -9.0" in plain(page_of([small]))


def test_energy_says_whether_it_was_measured():
    one = record("listops", "dense", 0, 0.4, energy={"joules": 7200.0, "by": "RAPL: the whole processor"})
    two = record("listops", "window", 0, 0.4, energy={"joules": None, "by": "not known"})
    made = plain(page_of([one, two]))
    carbon = "1.37 g CO2e with PUE 1.58 and 0.433 kg per kWh"
    assert f"2 Wh in total, {carbon}. Source: RAPL: the whole processor. 1 cell has no energy recorded." in made
    modelled = [record("listops", "dense", seed, 0.4) for seed in range(3)]
    assert "Source: modelled: time of one core at 12 W (not known by name); no RAPL." in plain(page_of(modelled))


def test_a_cell_is_repeated_by_its_command():
    one = record("listops", "dense", 2, 0.4)
    one = replace(one, cell=replace(one.cell, seconds=90.0))
    line = command(one)
    asked = json.loads(line.split("'")[1])
    assert asked == {"task": "listops", "model": "dense", "seed": 2, "steps": 1000}
    assert line.endswith("; python -m longspan.arena.runs.process cell.json result.json")
    made = page_of([one], arguments={"tasks": ["listops"], "models": ["dense"], "setting": "tiny", "budget": 60.0})
    assert "longspan arena --tasks listops --models dense --setting tiny --budget 60s --out FOLDER" in made


@pytest.mark.parametrize(
    "records",
    [
        [record("listops", "dense", 0, 0.4)],
        [record("listops", "dense", 0, None, state="failed", error="no", curve=())],
        [speed("linear", 1024, 3.0, 5)],
        [speed("linear", 1024, None, None, state="memory")],
        [
            record(
                "listops", "linear", 0, 0.4, memory=None, energy={}, baselines={}, test_count=None, data={}, machine={}
            )
        ],
        [record("listops", "linear", 0, 1.0, curve=({"step": 1, "seconds": 0.0, "loss": 1.0, "held_out": None},))],
        [record("listops", "dense", 0, 0.4), record("listops", "dense", 0, 0.5, pretrain=True)],
        [record("listops", "dense", 0, 0.5, pretrain=True)],
        [record("listops", "mine:Own", 0, 0.4)],
    ],
    ids=["one", "failure", "speed", "no speed", "little known", "no curve", "both", "pre-trained", "own"],
)
def test_a_page_comes_of_any_results(records: list[Record]):
    made = page_of(records)
    assert made.count("<section") == made.count("</section>") >= 7 and "nan" not in made.lower().split()


def test_the_page_loads_nothing_and_escapes_what_it_is_given():
    shown = record(
        "listops",
        HOSTILE,
        0,
        0.4,
        flagged=HOSTILE,
        data={HOSTILE: HOSTILE},
        machine={"processor": HOSTILE},
        options={HOSTILE: HOSTILE},
        energy={"joules": 5.0, "by": HOSTILE},
        baselines={HOSTILE: 0.1},
        began=HOSTILE,
    )
    failed = record("listops", "dense", 0, None, state="failed", error=HOSTILE, curve=())
    made = page_of([*realistic(1), shown, failed, speed(HOSTILE, 1024, 1.0, 5)], arguments={"tasks": [HOSTILE]})
    assert "<img" not in made and made.count("<script>") == 1 and made.count("</script>") == 1
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:|//)", made) and "@import" not in made
    assert "script-src 'sha256-" in made and "url(" not in made


def test_titles_and_kinds_are_those_of_the_entrants():
    for name, entrant in arena_models.ARENA_MODELS.items():
        assert (palette.title(name), palette.KINDS[palette.kind(name)][0]) == (entrant.title, entrant.kind), name
    assert (palette.title("dense"), palette.kind("routing"), palette.kind("lstm")) == (
        "Transformer",
        "learned-pattern",
        "recurrent",
    )
    assert (palette.title("of another version"), palette.kind("of another version")) == ("of another version", "other")


def test_reading_a_folder(tmp_path: Path):
    save(tmp_path, [record("listops", "dense", 0, None, state="failed"), record("listops", "dense", 0, 0.4)])
    found = read(tmp_path)
    assert [each.accuracy for each in found.records] == [0.4]  # the last line of a cell holds
    file = tmp_path / "results.jsonl"
    file.write_text(file.read_text() + '{"cell": {"ta', encoding="utf-8")
    assert read(tmp_path).notes == ["the last line of results.jsonl was cut short and is dropped"]
    (tmp_path / "grid.json").unlink()
    assert read(tmp_path).grid == {}


def test_wrong_lines_are_left_out_and_counted_on_the_page(tmp_path: Path):
    save(tmp_path, [record("listops", "dense", 0, 0.4)])
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes() + b'{"state": "done"}\n\xff\n[1]\n\n' + file.read_bytes())
    results = read(tmp_path)
    said = "3 lines of results.jsonl are not usable and were skipped; the first is line 2: a record lacks cell"
    assert results.notes == [said] and len(results.records) == 1
    assert f"Note: {said}." in arena_page(results, [])


VALUES = (None, True, -1, 0, 1e308, "<b>", [[]], {"a": {"b": [1]}}, [{"a": 1}])


def test_whatever_a_line_holds_it_is_skipped_or_shown():
    """Every field of a record and of its cell, and everything one level below, with every kind of value."""
    good = {
        "accuracy": record("listops", "dense", 0, 0.4, flagged="why", error="why").plain(),
        "speed": speed("dense", 1024, 2.0, 2**20, energy={"joules": 3.0, "by": "RAPL"}).plain(),
    }
    others, shown, refused = [record("listops", "window", 0, 0.3), speed("naive", 1024, 1.0, 2**21)], 0, 0
    for plain in good.values():
        places = [(name,) for name in plain]
        places += [(name, inner) for name, value in plain.items() if isinstance(value, dict) for inner in value]
        for place in places:
            for value in VALUES:
                mutant = json.loads(json.dumps(plain))
                inside = mutant[place[0]] if len(place) == 2 else mutant
                inside[place[-1]] = value
                try:
                    found = Record.read(parse(json.dumps(mutant)))
                except InvalidInput:
                    refused += 1
                    continue
                results = Results([*others, found])
                arena_page(results, [])
                print_results(Console(file=StringIO()), results)
                json.dumps(summary(Path(), results, Path()))
                shown += 1
    assert refused > 250 and shown > 250


def test_an_empty_folder_says_what_is_missing(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"results.jsonl is missing"):
        write(tmp_path)
    (tmp_path / "results.jsonl").write_text("\n")
    with pytest.raises(InvalidInput, match="has no records"):
        write(tmp_path)


def test_figures_are_files_of_their_own(tmp_path: Path):
    page = write(save(tmp_path, [*realistic(2), record("listops", HOSTILE, 0, 0.4)])).read_text(encoding="utf-8")
    names = ["accuracy_over_speed", "accuracy_listops", "accuracy_pathfinder", "learning_listops"]
    names += ["learning_pathfinder", "speed", "memory"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(f"{name}.svg" for name in names)
    for name in names:
        svg = (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and float(root.attrib["width"]) > 400
        assert "var(" not in svg and "url(" not in svg and "script" not in svg.replace("&lt;/script&gt;", "")
        assert f'href="figures/{name}.svg"' in page
    # The light colour of the kind "kernel", of which Performer is.
    assert ".k-kernel .disc { fill: #8a2fb0; fill-opacity: .38;" in svg


def test_figures_of_few_results(tmp_path: Path):
    paths = figures.write(Results([record("listops", "dense", 0, 0.4)]), tmp_path / "one")
    assert [path.stem for path in paths] == ["accuracy_over_speed", "accuracy_listops", "learning_listops"]
    failed = Results([record("listops", "dense", 0, None, state="failed", curve=())])
    assert figures.write(failed, tmp_path / "none") == [] and not (tmp_path / "none").exists()
    assert "so there are no figures" in arena_page(failed, [])


def test_names_of_figures_are_safe_and_their_text_is_xml(tmp_path: Path):
    one = record("listops", "dense", 0, 0.4)
    one = replace(one, cell=replace(one.cell, task="../my\x00pack:Task", model="a\x07bell"))
    for path in figures.write(Results([one]), tmp_path / "figures"):
        assert path.parent == tmp_path / "figures" and path.resolve().parent == path.parent
        ElementTree.fromstring(path.read_bytes())


@pytest.mark.browser
def test_figures_in_chromium(browser, tmp_path: Path):
    for path in figures.write(Results(realistic()), tmp_path):
        opened, requests, problems = open_page(browser, path, 1100, "dark")
        assert requests == [path.as_uri()] and problems == []
        assert opened.evaluate("getComputedStyle(document.querySelector('rect.paper')).fill") == "rgb(255, 255, 255)"
        outside = """[...document.querySelectorAll('text')].filter(text => {
            const box = text.getBoundingClientRect(), page = document.documentElement.getBoundingClientRect();
            return box.left < page.left || box.right > page.right || box.top < page.top || box.bottom > page.bottom;
        }).map(text => text.textContent)"""
        assert opened.evaluate(outside) == [], path.name
        opened.context.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 500, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_chromium(browser, tmp_path: Path, width: int, scheme: str):
    path = tmp_path / "report.html"
    hostile = record("listops", HOSTILE, 0, 0.4, flagged=HOSTILE)
    path.write_text(arena_page(Results([*realistic(), hostile]), []), encoding="utf-8")
    opened, requests, problems = open_page(browser, path, width, scheme)
    assert requests == [path.as_uri()] and problems == [] and opened.title() == "Long Range Arena, longspan"
    for each in opened.locator("details").all():
        each.evaluate("each => { each.open = true; }")
    # The page itself never scrolls sideways: wide tables scroll inside their own box.
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    # On a narrow screen a table is a list of its rows, and nothing is to be scrolled for.
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    assert width > 640 or opened.evaluate(wide) == []
    chart = opened.locator("svg.wide" if width > 700 else "svg.narrow")
    assert chart.is_visible() and opened.locator("svg.wide:visible, svg.narrow:visible").count() == 1
    tip = opened.locator("#tip")
    assert tip.is_hidden()
    circle = chart.locator(".mark", has_text="Reformer").locator("circle.disc")
    circle.scroll_into_view_if_needed()
    circle.hover()
    assert tip.is_visible()
    said = tip.inner_text()
    assert "Reformer (learned pattern)" in said and "average accuracy" in said and "memory" in said
    box = tip.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    opened.keyboard.press("Escape")
    assert tip.is_hidden()
    ink, paper = opened.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(int(part) for part in colour[4:-1].split(",")) for colour in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")
    opened.locator("label", has_text="over time").click()
    assert opened.locator(".by-seconds").is_visible() and opened.locator(".by-step").is_hidden()
    opened.context.close()


def test_the_script_is_the_only_one_that_may_run():
    made = page_of([record("listops", "dense", 0, 0.4)])
    assert arena.SCRIPT in made and "'unsafe-inline'" not in made.split("script-src")[1].split('"')[0]
