"""How smoothly the page of `longspan inspect` moves in Chromium, beside bertviz if that is installed.

    python -m benchmarks.viewer [--tokens 4096] [--moves 60] [--page FILE] [--keep DIR]

Makes a page of a decoder with random weights (6 layers of 12 heads), opens it, and moves over one head by the mouse: in
the whole map, with cells of half a pixel, and with cells of 3 pixels, where every tile is computed in the page. Prints
the interval between frames, the time to open, the page's size and the script's memory. bertviz shows one layer of 12
heads of random weights at 512 tokens; it loads its scripts from a server, so without a network it draws nothing.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from longspan.inspect.looking import look
from longspan.models import build
from longspan.report.inspect import write

WINDOWS = {"whole map": None, "half a pixel": 0.5, "3 pixels": 3.0}
BERTVIZ_TOKENS = 512


def make_page(path: Path, tokens: int) -> float:
    """Writes the page and returns the seconds it took."""
    torch.manual_seed(0)
    sizes = {"vocabulary": 300, "layers": 6, "width": 384, "heads": 12, "hidden": 384, "position": "rotary"}
    begin = time.perf_counter()
    write(path, look(build("decoder", max_length=tokens, **sizes), torch.arange(tokens) % 290 + 3))
    return time.perf_counter() - begin


def launch(playwright: Any) -> Any:
    return playwright.chromium.launch(
        executable_path=shutil.which("chromium"),
        args=["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-precise-memory-info"],
    )


# Before the page's own script: how long each of its callbacks for a frame takes.
COUNT = """(() => { const ask = window.requestAnimationFrame.bind(window); window.spent_ = [];
  window.requestAnimationFrame = (run) => ask((now) => {
    const begin = performance.now(); run(now); window.spent_.push(performance.now() - begin); }); })();"""
RECORD = """() => { window.frames_ = []; window.spent_ = []; window.moving_ = true;
  const tick = (now) => { window.frames_.push(now); if (window.moving_) requestAnimationFrame(tick); };
  requestAnimationFrame(tick); }"""
STOP = "() => { window.moving_ = false; return [window.frames_, window.spent_.filter(time => time > 0.05)]; }"


def first_detailed(tab: Any) -> str:
    """The address of the first head with exact weights."""
    thumb = tab.locator(".thumb:not(.rough)").first
    return f"l={thumb.get_attribute('data-module')}&h={thumb.get_attribute('data-head')}"


def moved(browser: Any, path: Path, moves: int) -> dict[str, Any]:
    """Opens the page and moves over it; milliseconds between frames by window."""
    found: dict[str, Any] = {}
    tab = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    tab.add_init_script(COUNT)
    begin = time.perf_counter()
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=120_000)
    found["seconds to open"] = round(time.perf_counter() - begin, 2)
    head = first_detailed(tab)
    for name, size in WINDOWS.items():
        window = "" if size is None else f"&w=1000_1000_{size}"
        tab.goto("about:blank")
        tab.goto(f"{path.as_uri()}#{head}{window}")
        tab.wait_for_selector("html[data-ready]", timeout=120_000)
        found[name] = frames(tab, moves)
    heap = tab.evaluate("() => performance.memory.usedJSHeapSize")
    found["script's memory, MB"] = round(heap / 1e6, 1)
    found["MB of the page"] = round(path.stat().st_size / 1e6, 1)
    tab.context.close()
    return found


def frames(tab: Any, moves: int) -> dict[str, float]:
    """Drags and zooms at random, 5 steps each."""
    chosen = random.Random(0)
    box = tab.locator("#map").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(*middle)
    tab.evaluate(RECORD)
    for _ in range(moves):
        if chosen.random() < 0.3:
            tab.mouse.wheel(0, chosen.choice((-80, 80)))
            continue
        tab.mouse.down()
        tab.mouse.move(middle[0] + chosen.uniform(-150, 150), middle[1] + chosen.uniform(-150, 150), steps=5)
        tab.mouse.up()
        tab.mouse.move(*middle)
    times, spent = tab.evaluate(STOP)
    gaps = [after - before for before, after in pairwise(times)]
    return {
        "median ms": round(statistics.median(gaps), 1),
        "worst ms": round(max(gaps), 1),
        "frames": len(gaps),
        "script median ms": round(statistics.median(spent), 2),
        "script worst ms": round(max(spent), 1),
    }


def bertviz(browser: Any, folder: Path) -> dict[str, Any]:
    """The head view of one layer at 512 tokens."""
    from bertviz import head_view  # type: ignore[import-not-found]

    torch.manual_seed(0)
    attention = [torch.randn(1, 12, BERTVIZ_TOKENS, BERTVIZ_TOKENS).softmax(-1)]
    begin = time.perf_counter()
    html = head_view(attention, [f"t{index}" for index in range(BERTVIZ_TOKENS)], html_action="return").data
    path = folder / "bertviz.html"
    path.write_text(html, encoding="utf-8")
    written = time.perf_counter() - begin
    tab = browser.new_context().new_page()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    begin = time.perf_counter()
    tab.goto(path.as_uri(), timeout=300_000)
    opened = time.perf_counter() - begin
    drawn = tab.locator("svg *").count()
    heap = tab.evaluate("() => performance.memory.usedJSHeapSize")
    tab.context.close()
    return {
        "seconds to write": round(written, 1),
        "MB of the page": round(path.stat().st_size / 1e6, 1),
        "seconds to open": round(opened, 1),
        "requests to servers": sum(not address.startswith("file:") for address in asked),
        "elements drawn": drawn,
        "script's memory, MB": round(heap / 1e6, 1),
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--page", type=Path, help="a page that is there already")
    parser.add_argument("--keep", type=Path, help="keep the pages in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = options.keep or Path(temporary)
        browser = launch(playwright)
        results: dict[str, Any] = {}
        path = options.page or folder / "viewer.html"
        made = {} if options.page else {"seconds to make": round(make_page(path, options.tokens), 1)}
        results[f"longspan, {options.tokens} tokens"] = made | moved(browser, path, options.moves)
        if find_spec("bertviz"):
            small = folder / "small.html"
            made = {"seconds to make": round(make_page(small, BERTVIZ_TOKENS), 1)}
            results[f"longspan, {BERTVIZ_TOKENS} tokens"] = made | moved(browser, small, options.moves)
            results[f"bertviz, {BERTVIZ_TOKENS} tokens, one layer"] = bertviz(browser, folder)
        print(json.dumps(results, indent=1))
        browser.close()


if __name__ == "__main__":
    main()
