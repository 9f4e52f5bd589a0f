"""Self-contained HTML pages: they load nothing from outside, and all text from users is escaped.

`Html` marks text that is already markup; everything else passes through `text`. The content security policy names the
page's script by its hash, so that no other script runs even if markup slips through.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape, unescape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

LIGHT = {
    "ink": "#1a1c20",
    "paper": "#fdfdfc",
    "quiet": "#5d636e",
    "line": "#d9dce1",
    "good": "#1a6b3c",
    "bad": "#b3261e",
    "shade": "#f2f3f5",
}
DARK = {
    "ink": "#e6e8ec",
    "paper": "#15171a",
    "quiet": "#9aa1ad",
    "line": "#33373e",
    "good": "#6fcf97",
    "bad": "#ff8a80",
    "shade": "#1d2024",
}


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}"""

STYLE += """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; color: var(--ink); background: var(--paper);
       font: 16px/1.5 system-ui, sans-serif; }
h1, h2, p { overflow-wrap: anywhere; }
td { overflow-wrap: break-word; }
@media (max-width: 45em) { td { overflow-wrap: anywhere; } }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0 .75rem; } .quiet { color: var(--quiet); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
code { font: .9em ui-monospace, monospace; background: var(--shade); padding: .05em .3em; border-radius: .2em; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


class Html(str):
    """Text that is already markup."""


def text(value: object) -> Html:
    """Any value as escaped text; markup stays as it is."""
    return value if isinstance(value, Html) else Html(escape(str(value), quote=True))


def tag(name: str, *content: object, css: str = "") -> Html:
    """<name class="css">content</name>, with the content escaped."""
    attribute = f' class="{escape(css, quote=True)}"' if css else ""
    return Html(f"<{name}{attribute}>{''.join(map(text, content))}</{name}>")


def table(head: Iterable[object], rows: Iterable[Iterable[object]], numbers: Iterable[int] = ()) -> Html:
    """A table that scrolls sideways if it is too wide; the columns `numbers` are right-aligned."""
    right, head = set(numbers), list(head)
    names = [unescape(re.sub(r"<[^>]*>", " ", text(name))).strip() for name in head]

    def cell(column: int, content: object) -> Html:
        """With the name of its column, which a narrow screen shows beside it."""
        css = ' class="number"' if column in right else ""
        label = f' data-head="{text(" ".join(names[column].split()))}"' if column < len(names) else ""
        return Html(f"<td{css}{label}>{text(content)}</td>")

    top = tag("tr", *(tag("th", name, css="number" if column in right else "") for column, name in enumerate(head)))
    body = tag(
        "tbody", *(tag("tr", *(cell(column, content) for column, content in enumerate(cells))) for cells in rows)
    )
    return tag("div", tag("table", tag("thead", top), body), css="scroll")


def page(title: str, *parts: Html, style: str = "", script: str = "") -> str:
    """A whole document; `style` is added to the style that all pages share."""
    policy, end = POLICY, ""
    if script:
        policy += f"; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
        end = f"<script>{script}</script>\n"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f"\n{end}</body></html>\n"
    )
