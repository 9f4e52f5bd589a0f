"""The page of `longspan inspect` in a real browser: every number it shows is the model's."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from longspan.decode import Sampling
from longspan.inspect.looking import look
from longspan.inspect.records import Record
from longspan.models import build
from longspan.nn.recorder import recording
from longspan.report.inspect import page, write

pytestmark = pytest.mark.browser
HOSTILE = "</script><img src=x onerror=alert(1)>"
SIZES: dict[str, Any] = {"vocabulary": 60, "layers": 2, "width": 16, "heads": 2, "hidden": 16, "max_length": 600}


def model_of(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    model = build(kind, **{**SIZES, **options}).eval()
    with torch.no_grad():  # weights that are far from even
        for name, weight in model.named_parameters():
            if ".q" in name or ".k" in name or "query" in name or "key" in name:
                weight.mul_(2)
    return model


def ids(length: int) -> torch.Tensor:
    return torch.arange(length) * 7 % 57 + 3


def true_maps(model: Any, length: int) -> list[torch.Tensor]:
    """(heads, queries, keys) of each layer, by `weights()`."""
    with torch.no_grad(), recording(model.stack) as seen:
        model.layer_states(ids(length)[None]) if model.name == "encoder" else model(ids(length)[None])
    return [found[0] for found in seen.maps]


def hostile(record: Record) -> Record:
    """The record with a token that would be markup."""
    axis = record.axes["text"]
    tokens = (*axis.tokens[:4], HOSTILE, *axis.tokens[5:])
    return replace(record, text=f"a text with {HOSTILE}", axes={**record.axes, "text": replace(axis, tokens=tokens)})


def image_file(folder: Path) -> Path:
    from PIL import Image

    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[4:12, 6:15] = [220, 80, 40]
    Image.fromarray(pixels).save(folder / "image.png")
    return folder / "image.png"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    sampling = Sampling(temperature=0.9, top_k=8, seed=1)
    vit = {"layers": 2, "width": 16, "heads": 2, "hidden": 32, "image_size": (16, 24), "patch_size": 4}
    torch.manual_seed(0)
    records = {
        "encoder": hostile(look(model_of("encoder"), ids(40))),
        "decoder": look(model_of("decoder"), ids(12), generate=5, sampling=sampling),
        "transformer": look(model_of("transformer"), ids(14), pair=ids(9)),
        "image": look(build("vit", tasks=[{"task": "classify", "labels": 5}], **vit), image=image_file(folder)),
        "difference": look(
            model_of("encoder", attention={"name": "performer", "features": 64}), ids(48), against="softmax"
        ),
        "none": look(model_of("decoder", attention={"name": "memory_compressed"}), ids(30)),
        "window": look(model_of("decoder", attention={"name": "window", "window": 3}), ids(30)),
        "reformer": look(model_of("encoder", attention={"name": "reformer", "chunk": 4, "buckets": 4}), ids(30)),
    }
    for name, record in records.items():
        write(folder / f"{name}.html", record)
    return folder


def opened(browser, path: Path, address: str = "", width: int = 1400, scheme: str = "light"):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append(dialog.message))
    tab.goto(path.as_uri() + (f"#{address}" if address else ""))
    tab.wait_for_selector("html[data-ready]")
    tab.requests, tab.problems = requests, problems
    return tab


def hover(tab, query: int, key: int, window: tuple[float, float, float]) -> str:
    """Points at a cell of the map, whose window (x, y, size) is known, and reads what stands below it."""
    x, y, size = window
    box = tab.locator("#map").bounding_box()
    tab.mouse.move(box["x"] + 76 + (key + 0.5 - x) * size, box["y"] + 62 + (query + 0.5 - y) * size)
    expect(tab.locator("#readout")).to_contain_text(re.compile(f"^query {query} .* reads key {key} "))
    return tab.locator("#readout").inner_text()


def spell(value: float) -> str:
    """As the page writes numbers: 3 digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{float(f'{value:.3g}'):g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent):+d}"


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
@pytest.mark.parametrize("name", ["encoder", "decoder", "transformer", "image", "difference", "none"])
def test_pages_open_and_request_nothing(browser, folder, name, width, scheme):
    tab = opened(browser, folder / f"{name}.html", width=width, scheme=scheme)
    for view in [button.get_attribute("data-view") for button in tab.locator("#tabs button").all()]:
        tab.locator(f"#tabs button[data-view={view}]").click()
        expect(tab.locator(f"#tabs button[data-view={view}]")).to_have_attribute("aria-selected", "true")
    assert tab.requests == [(folder / f"{name}.html").as_uri()] and tab.problems == []
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.locator(".caution").inner_text().startswith("Weights show where a head reads, not why")
    tab.context.close()


@pytest.mark.parametrize(
    ("kind", "attention", "length", "tolerance"),
    [
        ("encoder", {"name": "softmax"}, 40, 0),
        ("decoder", {"name": "softmax"}, 520, 1e-5),
        ("decoder", {"name": "window", "window": 4, "dilation": 2}, 520, 1e-5),
        ("encoder", {"name": "linear"}, 520, 1e-5),
        ("encoder", {"name": "performer", "features": 32}, 520, 1e-5),
        ("encoder", {"name": "linformer", "rank": 16}, 520, 1e-5),
        ("encoder", {"name": "nystrom", "landmarks": 8, "kernel": 5}, 520, 1e-5),
        ("decoder", {"name": "retention"}, 520, 1e-5),
        ("decoder", {"name": "reformer", "chunk": 16, "buckets": 16}, 520, 1e-5),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else str(value),
)
def test_hover_shows_the_weight(browser, tmp_path, kind, attention, length, tolerance):
    model = model_of(kind, attention=attention, layers=1)
    path = tmp_path / "page.html"
    write(path, look(model, ids(length)))
    (truth,) = true_maps(model, length)
    x, y, size = length // 2 - 16, length // 2 - 16, 16.0
    tab = opened(browser, path, f"l=0&h=1&w={x}_{y}_{size}")
    for query, key in [(y + 6, x + 3), (y + 9, x + 12), (y + 20, x + 23), (y + 3, x + 1), (y + 12, x + 16)]:
        shown = hover(tab, query, key, (x, y, size))
        true = float(truth[1, query, key])
        value = shown.rpartition(": ")[2]
        if tolerance:
            assert abs(float(value) - true) <= tolerance + 5.1e-3 * abs(true), shown
        else:
            assert value == spell(true), shown
    assert tab.problems == []
    tab.context.close()


def test_markup_in_tokens_stays_text(browser, folder):
    tab = opened(browser, folder / "encoder.html", "q=4&k=4")
    assert tab.locator("#readout").inner_text().startswith(f"query 4 “{HOSTILE}” reads key 4 “{HOSTILE}”: ")
    tab.locator("#tabs button[data-view=lines]").click()
    assert tab.locator(".lines .chosen").first.text_content().startswith("</script><img sr")
    assert tab.locator("img[src=x]").count() == 0 and tab.problems == []
    assert HOSTILE in tab.locator("#side .text").inner_text()
    source = (folder / "encoder.html").read_text(encoding="utf-8")
    assert (
        HOSTILE not in source
        and "unsafe-inline" not in source
        and "http://" not in source.replace("http://www.w3.org/", "")
    )
    tab.context.close()


def test_heads_orders_and_pooling(browser, folder):
    tab = opened(browser, folder / "encoder.html")
    tab.locator(".thumb[data-module='1'][data-head='1']").click()
    expect(tab.locator("#side h2")).to_have_text("encoder layer 1, head 1")
    expect(tab).to_have_url(re.compile("#l=1&h=1$"))
    tab.locator("#heads select").first.select_option("previous")
    record = look(model_of("encoder"), ids(40))
    masses = {f"{m.layer}.{h.index}": h.sums.previous for m in record.modules for h in m.heads}
    assert tab.locator(".thumb b").all_inner_texts() == sorted(masses, key=masses.__getitem__, reverse=True)
    assert tab.locator(".thumb small").first.inner_text() == f"{float(f'{max(masses.values()):.2g}'):g}"
    tab.keyboard.press("]")  # the next head, in the order of layers
    expect(tab).to_have_url(re.compile("#l=0&h=0"))
    tab.context.close()


def test_the_keyboard_moves_zooms_and_lets_go(browser, folder):
    tab = opened(browser, folder / "encoder.html")
    tab.locator("#map").focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#readout").inner_text().startswith("query 1 “10” reads key 1 “10”: ")
    assert tab.locator("#readout").inner_text().endswith(" (kept)")
    for _ in range(5):
        tab.keyboard.press("+")
    expect(tab).to_have_url(re.compile("_48.000"))  # the largest cells
    tab.keyboard.press("-")
    expect(tab).to_have_url(re.compile("_32.000"))
    tab.keyboard.press("Escape")
    assert tab.locator("#readout").inner_text().startswith("Point at a cell.")
    tab.locator(".thumb").first.focus()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(tab).to_have_url(re.compile("h=1"))
    tab.context.close()


def test_a_view_can_be_sent(browser, folder):
    address = "l=1&h=0&v=lines&q=7&k=3&o=entropy&p=mean&c=linear"
    tab = opened(browser, folder / "encoder.html", address)
    assert tab.locator("#side h2").inner_text() == "encoder layer 1, head 0"
    assert tab.locator("#tabs button[aria-selected=true]").inner_text() == "Lines"
    assert dict(part.split("=") for part in tab.evaluate("location.hash")[1:].split("&")) == dict(
        part.split("=") for part in address.split("&")
    )
    tab.context.close()


def test_lines_and_text_show_the_largest_weights(browser, folder):
    tab = opened(browser, folder / "encoder.html", "l=0&h=1&q=9&k=0&v=lines")
    row = true_maps(model_of("encoder"), 40)[0][1, 9]
    best = row.sort(descending=True)
    share = round(100 * float(best.values[:20].sum()))
    note = tab.locator("#lines-view .readout").inner_text()
    assert note.endswith(f"20 tokens: {share} % of the weight is shown.") and tab.locator(".link").count() == 20
    strongest = [spell(float(value)) for value in best.values[:8] if value > 1e-3 * best.values[0]]
    assert tab.locator(".best b").all_inner_texts() == strongest
    assert tab.locator(".best small").all_inner_texts() == [str(int(i)) for i in best.indices[: len(strongest)]]
    tab.locator(".text span").nth(11).click()
    assert tab.locator("#lines-view .readout").inner_text().startswith("11 ")
    tab.context.close()


def test_written_text_step_by_step(browser, folder):
    tab = opened(browser, folder / "decoder.html", "v=steps&l=1&h=1")
    record = look(model_of("decoder"), ids(12), generate=5, sampling=Sampling(temperature=0.9, top_k=8, seed=1))
    assert record.generated is not None
    for number in (0, 3):
        tab.locator("#step").fill(str(number))
        step = record.generated.steps[number]
        expect(tab.locator("#steps-view .bar output")).to_have_text(f"{number + 1} of 5")
        expect(tab.locator("#steps-view .readout")).to_contain_text(f"position {step.position}")
        rows = tab.locator("#steps-view table").first.locator("tbody tr")
        assert rows.count() == len(step.choices)
        first = rows.first.locator("td").all_inner_texts()
        assert first[0] == step.choices[0].token and first[1].strip() == spell(step.choices[0].probability)
        lens = tab.locator("#steps-view table").nth(1).locator("tbody tr")
        assert lens.count() == len(step.lens) == 3
        assert lens.last.locator("td").last.inner_text() == str(step.lens[-1].rank + 1)
    assert "s=3" in tab.evaluate("location.hash")
    tab.context.close()


def test_what_a_patch_reads(browser, folder):
    tab = opened(browser, folder / "image.html", "v=image&l=1&h=0&q=0&k=0")
    torch.manual_seed(0)
    first = tab.locator("#image-view .readout").inner_text()
    assert first.startswith("“[CLS]” reads: brightest patch 0.")
    box = tab.locator(".picture").bounding_box()
    tab.mouse.click(box["x"] + 2.5 * box["width"] / 6, box["y"] + 1.5 * box["height"] / 4)
    assert tab.locator("#image-view .readout").inner_text().startswith("patch 1, 2 reads: ")
    tab.keyboard.press("Tab")
    tab.locator(".picture").focus()
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#image-view .readout").inner_text().startswith("patch 2, 2 reads: ")
    assert "if they read all evenly" in tab.locator("#image-view").inner_text()
    tab.context.close()


def test_the_difference_is_ours_minus_exact(browser, folder):
    tab = opened(browser, folder / "difference.html", "v=difference&l=0&h=0")
    canvas = tab.locator("#difference-view canvas.map").nth(2)
    box = canvas.bounding_box()
    tab.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"])
    expect(tab.locator("#difference-view .readout")).to_contain_text(re.compile("^query"))
    numbers = tab.locator("#difference-view .readout").inner_text().partition(": ")[2].split(", ")
    exact, ours, change = (float(word.rpartition(" ")[2]) for word in numbers)
    assert change == pytest.approx(ours - exact, abs=2e-5 + 5e-3 * max(ours, exact))
    record = look(model_of("encoder", attention={"name": "performer", "features": 64}), ids(48), against="softmax")
    found = record.modules[0].heads[0].difference
    assert found is not None
    cells = tab.locator("#difference-view table").first.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[2:4] == [spell(found.errors.variation), spell(found.errors.output)]
    pictures = "[...document.querySelectorAll('#difference-view canvas.map')].map(canvas => canvas.toDataURL())"
    before = tab.evaluate(pictures)
    tab.mouse.wheel(0, -600)
    tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert all(one != other for one, other in zip(before, tab.evaluate(pictures)))
    tab.context.close()


def test_rollout_by_layer(browser, folder):
    tab = opened(browser, folder / "encoder.html", "v=together&l=0&h=0")
    (rollout,) = look(model_of("encoder"), ids(40)).rollouts
    for layer in (0, 1):
        tab.locator("#rollout-layer").fill(str(layer))
        expect(tab.locator("#together-view figcaption").nth(2)).to_have_text(f"rollout after layer {layer}")
        box = tab.locator("#together-view canvas.map").nth(2).bounding_box()
        tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
        tab.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"])
        says = tab.locator("#together-view .readout").inner_text()
        found = re.match(r"query (\d+) .*, key (\d+) .*rollout (\S+), even", says)
        assert found is not None, says
        assert found[3] == spell(float(rollout.weights[layer, int(found[1]), int(found[2])]))
    tab.context.close()


def test_what_could_be_read_is_offered_where_it_is_known(browser, folder):
    tab = opened(browser, folder / "window.html", "f=1")
    assert tab.locator("#fog").is_enabled() and tab.locator("#fog").is_checked()
    red = """() => {
      const canvas = document.querySelector("#map");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let at = 0; at < data.length; at += 4) {
        count += data[at] === 179 && data[at + 1] === 38 && data[at + 2] === 30;
      }
      return count; }"""
    assert tab.evaluate(red) == 0  # no weight outside of the outline
    tab.context.close()
    tab = opened(browser, folder / "encoder.html")
    assert tab.locator("#fog").is_disabled()
    tab.context.close()


def test_buckets_of_tokens(browser, folder):
    tab = opened(browser, folder / "reformer.html")
    pattern = look(model_of("encoder", attention={"name": "reformer", "chunk": 4, "buckets": 4}), ids(30)).modules[0]
    found = pattern.heads[0].pattern
    assert found is not None and found.buckets is not None
    box = tab.locator(".buckets").bounding_box()
    size = tab.evaluate("document.querySelector('#map').clientWidth - 80") / 30
    tab.mouse.move(box["x"] + 7.5 * min(size, box["width"] / 30), box["y"] + 3)
    bucket = int(found.buckets[0, 7])
    others = int((found.buckets[0] == bucket).sum()) - 1
    expect(tab.locator("#buckets p")).to_contain_text(f"round 0: in bucket {bucket} with {others} others")
    tab.context.close()


def test_a_mechanism_without_a_map_says_so(browser, folder):
    tab = opened(browser, folder / "none.html")
    assert tab.locator("#none").inner_text().startswith("No map: a convolution shortens keys and values")
    assert tab.locator("#none canvas").is_visible() and tab.locator(".thumb").count() == 0
    tab.context.close()


def test_without_a_script_all_heads_are_pictures(browser, folder):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((folder / "encoder.html").as_uri())
    assert tab.locator(".overview img").count() == 4 and tab.locator("noscript table, table").count() >= 1
    context.close()


def test_a_page_is_the_same_twice():
    record = look(model_of("encoder"), ids(20))
    assert page(record) == page(look(model_of("encoder"), ids(20)))
