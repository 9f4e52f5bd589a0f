"""One self-contained page: nothing is loaded from outside, and what users bring is escaped.

`Html` marks text that is markup already; everything else that goes into a page passes through `text`.
A page's own script is named by its hash in the policy: no other runs, even if markup were to slip through.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape, unescape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark; --ink: #1a1c20; --paper: #fdfdfc; --quiet: #5d636e; --line: #d9dce1;
        --good: #1a6b3c; --bad: #b3261e; --shade: #f2f3f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ec; --paper: #15171a; --quiet: #9aa1ad; --line: #33373e; --good: #6fcf97; --bad: #ff8a80;
          --shade: #1d2024; } }
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
    """Text that is markup already."""


def text(value: object) -> Html:
    """Any value, safe to stand in a page."""
    return value if isinstance(value, Html) else Html(escape(str(value), quote=True))


def tag(name: str, *inside: object, kind: str = "") -> Html:
    """<name class="kind">inside</name>, with what is inside escaped."""
    attribute = f' class="{escape(kind, quote=True)}"' if kind else ""
    return Html(f"<{name}{attribute}>{''.join(text(part) for part in inside)}</{name}>")


def table(head: Iterable[object], rows: Iterable[Iterable[object]], numbers: Iterable[int] = ()) -> Html:
    """A table that scrolls sideways on a narrow screen; the columns `numbers` are set flush right."""
    right, head = set(numbers), list(head)
    names = [unescape(re.sub(r"<[^>]*>", " ", text(each))).strip() for each in head]

    def cell(column: int, inside: object) -> Html:
        """With the name of its column, which stands beside it where the table is shown as a list."""
        kind = ' class="number"' if column in right else ""
        named = f' data-head="{text(" ".join(names[column].split()))}"' if column < len(names) else ""
        return Html(f"<td{kind}{named}>{text(inside)}</td>")

    top = tag("tr", *(tag("th", each, kind="number" if column in right else "") for column, each in enumerate(head)))
    body = tag("tbody", *(tag("tr", *(cell(*each) for each in enumerate(cells))) for cells in rows))
    return tag("div", tag("table", tag("thead", top), body), kind="scroll")


def page(title: str, *parts: Html, style: str = "", script: str = "") -> str:
    """A whole document; `style` is added to that of all pages."""
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
