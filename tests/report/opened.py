"""A page in a real browser, and all that it asked for or complained of."""

from pathlib import Path
from typing import Any


def open_page(browser: Any, path: Path, width: int, scheme: str) -> tuple[Any, list[str], list[str]]:
    """The page, the addresses that it requested, and what stood on its console or was thrown."""
    opened = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    requests: list[str] = []
    problems: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(path.as_uri())
    return opened, requests, problems
