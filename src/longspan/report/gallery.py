"""The page of `longspan gallery`: every mechanism's pattern, two of them side by side, with dials."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from longspan.inspect.gallery import HEAD_DIM, HEADS, LENGTHS, POSITIONS, Entry
from longspan.inspect.visibility import Sight
from longspan.report.gallery_data import index_of
from longspan.report.page import Html, table, tag, text
from longspan.report.palette import KINDS
from longspan.report.payload import Payload
from longspan.report.png import data_address
from longspan.report.profile import kind_of
from longspan.report.strict_page import script_of, strict_page, style_of

LEDE = (
    f"Every attention mechanism of this installation reads the same {POSITIONS} tokens. Rows are queries, columns are "
    "keys, and the strength of a cell's colour is the weight. A light tint marks what could be read. Choose a picture, "
    "turn its dials, and put a second one beside it."
)
CAUTION = "Weights show where a head reads, not why a model answers."
MADE = (
    f"How it was made: {POSITIONS} tokens, one head of 16, queries and keys from a smooth random walk with fixed "
    "seeds; weights that a mechanism learns are random. The tint is where the paper's definition gives a weight, the "
    f"colour is what the fast path applies, measured with weights(). Costs are exact counts for {HEADS} heads of "
    f"{HEAD_DIM} with default options."
)


def gallery_page(entries: Sequence[Entry], sights: Sequence[Sight]) -> str:
    """The whole page."""
    payload = Payload()
    index = index_of(payload, entries)
    return strict_page(
        "longspan gallery",
        tag("header", tag("h1", "Every attention, one picture each"), tag("p", LEDE, css="lede"), _caution()),
        _without_script(entries),
        _kinds(entries),
        Html(f'<main id="gallery"><div id="cards">{"".join(map(_card, entries))}</div>{_panels(entries)}</main>'),
        _sights(sights),
        _costs(entries),
        tag("p", MADE, css="quiet"),
        payload.markup(index),
        style=style_of(["gallery.css"]),
        script=script_of(["core.js", "gallery.js"]),
    )


def _caution() -> Html:
    return tag("p", CAUTION, css="caution quiet")


def _kinds(entries: Sequence[Entry]) -> Html:
    buttons = [Html('<button type="button" data-kind="" aria-pressed="true">all</button>')]
    for kind in dict.fromkeys(entry.kind for entry in entries):
        css = kind.replace(" ", "-")
        css = css if css in KINDS else "other"
        start = f'<button type="button" class="k-{css}" data-kind="{text(kind)}" aria-pressed="false">'
        buttons.append(Html(f"{start}<i></i>{text(kind)}</button>"))
    return Html(f'<nav id="kinds" aria-label="classes of mechanisms">{"".join(buttons)}</nav>')


def _card(entry: Entry) -> Html:
    facts = entry.facts
    label = text(f"{entry.name}, {entry.kind}: {facts['summary']}")
    return Html(
        f'<button type="button" class="card k-{kind_of(entry.name)}" data-name="{text(entry.name)}" '
        f'data-kind="{text(entry.kind)}" aria-pressed="false" title="{label}">'
        f"<canvas></canvas><b>{text(entry.name).replace('_', '_<wbr>')}</b><small>{text(facts['order'])}</small>"
        f'<small class="paper">{text(facts["paper"])}</small></button>'
    )


def _panels(entries: Sequence[Entry]) -> Html:
    choices = "".join(f"<option>{text(entry.name)}</option>" for entry in entries)
    slots = []
    for index in range(2):
        close = '<button type="button" class="close" title="remove the second mechanism">×</button>'
        button = close if index else '<button type="button" id="compare">+ beside</button>'
        slots.append(
            f'<section class="slot" hidden><div class="top"><i></i><select aria-label="mechanism">{choices}</select>'
            f'<span class="paper"></span>{button}</div><p class="summary"></p>'
            '<div class="frame"><span>keys →</span><span class="queries">← queries</span>'
            '<canvas tabindex="0" role="img" aria-label="the map; arrow keys move over its cells"></canvas></div>'
            '<p class="readout" role="status"></p><div class="controls"><span class="forms"></span>'
            '<button type="button" class="another"></button></div><div class="dials"></div>'
            '<div class="facts"><p class="shown"></p><p class="moves"></p><p class="numbers"></p></div>'
            '<div class="costs"></div><p class="state"></p><ul class="abilities"></ul>'
            '<p class="code"><code></code></p><details class="options"><summary>Options</summary>'
            '<div class="scroll"><table><thead><tr><th>option</th><th>default</th><th>meaning</th></tr></thead>'
            "<tbody></tbody></table></div></details></section>"
        )
    return Html(f'<div id="panels">{"".join(slots)}</div>')


def _sights(sights: Sequence[Sight]) -> Html:
    """What states of BERT, GPT and ELMo can have read, layer by layer."""
    kinds = {"BERT": "fixed-pattern", "GPT": "learned-pattern", "ELMo": "low-rank"}
    parts = []
    for sight in sights:
        layers = "".join(
            f"<figure>{_cells(seen.numpy(), f'{sight.name}, {title}')}<figcaption>{text(title)}</figcaption></figure>"
            for title, seen in sight.layers
        )
        parts.append(
            f'<div class="k-{kinds.get(sight.name, "kernel")}"><h3>{text(sight.name)}</h3>'
            f'<p>{text(sight.sentence)}</p><div class="layers">{layers}</div></div>'
        )
    return Html(
        '<section id="sights"><h2>What a state can have read: BERT, GPT and ELMo</h2><p class="quiet">Measured by '
        "gradients on small models. A filled cell: the state at this row depends on the word at this column. Layers "
        "are counted from 0.</p>"
        f'<div class="sights">{"".join(parts)}</div></section>'
    )


def _cells(seen: NDArray[np.bool_], label: str) -> str:
    """A small picture of filled cells, each row in runs."""
    runs = []
    for row, cells in enumerate(seen):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], cells.astype(int), [0]])))
        runs += [
            f'<rect x="{begin}" y="{row}" width="{end - begin}" height="1"/>' for begin, end in edges.reshape(-1, 2)
        ]
    size = len(seen)
    filled = f"{int(seen.sum())} of {seen.size} cells"
    return (
        f'<svg viewBox="0 0 {size} {size}" role="img" aria-label="{text(label)}: {filled}" '
        'shape-rendering="crispEdges">'
        f"<title>{text(label)}: {filled}</title>{''.join(runs)}</svg>"
    )


def _costs(entries: Sequence[Entry]) -> Html:
    """Operations at each length, relative to dense attention."""
    dense = next((entry for entry in entries if entry.name == "softmax"), None)
    rows = []
    for entry in entries:
        cells = [_operations(entry, dense, length) for length in LENGTHS]
        state = "–" if entry.state is None else " → ".join(f"{size / 1000:,.0f} kB" for size in entry.state.values())
        name = tag("span", Html("<i></i>"), entry.name, css=f"named k-{kind_of(entry.name)}")
        rows.append([name, entry.facts["order"], *cells, state])
    head = ("mechanism", "order", *(f"{length // 1024}k" for length in LENGTHS), "state")
    what = (
        "Operations of a forward pass with default options, as a share of dense attention's at the same length "
        "(softmax: in billions). State: bytes of one head of 64 after 1,000 and after 4,000 decoded tokens."
    )
    rest = tag("h2", "What it costs") + tag("p", what, css="quiet") + table(head, rows, numbers=range(2, len(head)))
    return Html(f'<section id="costs">{rest}</section>')


def _operations(entry: Entry, dense: Entry | None, length: int) -> str:
    """Billions of operations, or a share of dense attention's."""
    if length not in entry.costs:
        return "–"
    flops = entry.costs[length][0]
    if dense is None or entry is dense:
        return f"{flops / 1e9:,.0f} G" if flops >= 1e11 else f"{flops / 1e9:.3g} G"
    share = flops / dense.costs[length][0]
    return f"{share:.2g}×" if share < 10 else f"{share:,.0f}×"


def _without_script(entries: Sequence[Entry]) -> Html:
    """All first pictures, for readers without JavaScript."""
    images = "".join(
        f'<figure><img alt="{text(entry.name)}" src="{data_address(thumbnail(entry))}">'
        f"<figcaption>{text(entry.name)}</figcaption></figure>"
        for entry in entries
    )
    return Html(
        f'<noscript><p>Dials and numbers need JavaScript. The pictures:</p><div class="sheet">{images}</div></noscript>'
    )


def thumbnail(entry: Entry) -> NDArray[np.uint8]:
    """The first picture of a mechanism in its colour, over any background: (64, 64, 4)."""
    form = "bidirectional" if "bidirectional" in entry.pictures else "causal"
    picture = entry.pictures[form][entry.start][0]
    read, could = picture.read.abs().numpy(), picture.could.numpy()
    some = read[read > 0]
    bright = max(float(np.quantile(some, 0.99)), 3 * float(some.mean())) if some.size else 1.0
    strength = np.sqrt(np.clip(read / bright, 0, 1))
    colour = KINDS[kind_of(entry.name)][1]
    pixels = np.empty((*read.shape, 4), np.uint8)
    pixels[..., :3] = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    pixels[..., 3] = np.rint(255 * np.where(could, 0.12 + 0.88 * strength, 0))
    return pixels


__all__ = ["gallery_page", "thumbnail"]
