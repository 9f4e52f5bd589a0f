"""Style sheet and script of pages with charts; the script shows tooltips."""

STYLE = """
body { max-width: 76rem; }
h2 { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 1.3rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; } figure { margin: 0; min-width: 0; }
.conclusions { font-size: 1.1rem; max-width: 60rem; } .conclusions li { font-size: 1.05rem; }
li, .facts div, h3 { overflow-wrap: anywhere; }
.lede { font-size: 1.05rem; max-width: 60rem; } section > .quiet, section > div > .quiet { max-width: 60rem; }
.charts { display: grid; gap: 1rem 2.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  margin: .75rem 0 1.5rem; } .charts figure { max-width: 38rem; }
svg.narrow { display: none; } @media (max-width: 40em) { svg.wide { display: none; } svg.narrow { display: block; } }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; font-size: .85rem; color: var(--quiet); margin: .5rem 0; }
.legend i, .named i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; background: var(--k);
  margin-right: .45em; } .named { white-space: nowrap; } .flag { cursor: help; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem; margin: 1.5rem 0 0; }
.facts div { background: var(--shade); border-radius: .5rem; padding: .7rem .9rem; }
.facts b { display: block; font-size: 1.35rem; line-height: 1.25; } .facts small { color: var(--quiet); }
.warning { border-left: 4px solid var(--bad); background: var(--shade); padding: .7rem 1rem;
  border-radius: 0 .4rem .4rem 0; max-width: 60rem; }
small { font-size: .82em; } small.quiet { font-size: .78em; } td small { white-space: nowrap; }
td .quiet { font-weight: 400; } th.number { white-space: nowrap; vertical-align: bottom; }
td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); z-index: 1; }
ul { padding-left: 1.2rem; max-width: 62rem; } li { margin: .3rem 0; font-size: .92rem; }
[title][tabindex], [data-tip][tabindex] { cursor: help; } [tabindex]:focus-visible { outline: 2px solid var(--quiet);
  outline-offset: 2px; border-radius: .2em; } svg [tabindex]:focus-visible { outline: none; }
.barred { min-width: 8rem; } .barred > u { display: block; height: 4px; margin: .15rem 0 0 auto; background: var(--k);
  border-radius: 2px; } .bar { min-width: 8rem; padding-top: .25rem; } .bar > u { display: block; height: .8rem;
  background: var(--k); opacity: .8; border-radius: 2px; }
a { color: inherit; } .files li { list-style: none; } .files { padding: 0; }
@media (max-width: 45em) { td { overflow-wrap: break-word; } } td > code { white-space: nowrap; }
.shares { display: inline-flex; align-items: flex-end; gap: 2px; height: 1.4rem; vertical-align: middle; }
.shares i { width: 9px; background: var(--quiet); border-radius: 1px; }
pre { font: .8rem/1.4 ui-monospace, monospace; background: var(--shade); padding: .6rem; border-radius: .3rem;
  white-space: pre-wrap; overflow-wrap: anywhere; min-width: 20rem; max-width: 40rem; margin: .4rem 0; }
.learning input { margin: 0 .4rem 0 0; } .learning label { margin-right: 1.2rem; font-size: .9rem; }
.learning .by-seconds { display: none; } #by-seconds:checked ~ .by-seconds { display: grid; }
#by-seconds:checked ~ .by-step { display: none; }
#tip { position: fixed; z-index: 9; pointer-events: none; background: var(--ink); color: var(--paper);
  padding: .5rem .7rem; border-radius: .4rem;
  font-size: .82rem; line-height: 1.4; white-space: pre-line; max-width: min(24rem, 90vw);
  box-shadow: 0 4px 16px rgb(0 0 0 / .25); } #tip[hidden] { display: none; }
@media (max-width: 40em) { /* a table becomes a list of its rows: no column is out of view */
  .scroll thead { display: none; } .scroll table, .scroll tbody, .scroll tr { display: block; }
  .scroll tr { padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .scroll td, .scroll td:first-child { display: flex; justify-content: space-between; gap: 1rem; position: static;
    border: 0; padding: .1rem 0; text-align: right; white-space: normal; }
  .scroll td::before { content: attr(data-head); color: var(--quiet); text-align: left; flex: none; max-width: 45%; }
  .scroll td:first-child { font-weight: 600; } .scroll td:empty { display: none; }
  .scroll td:first-child::before, .scroll td[data-head=""]::before { content: none; }
  td > code { white-space: normal; overflow-wrap: anywhere; text-align: left; } .barred { min-width: 6rem; }
  .scroll td > * { min-width: 0; overflow-wrap: anywhere; } .named, td small { white-space: normal; }
  .scroll td:has(details) { display: block; text-align: left; } pre { min-width: 0; } }
@media print { .facts div, .warning { border: 1px solid var(--line); } details { display: none; } }
"""

# Tooltips are `title` attributes and elements, which work without a script. The script shows them at once, and also on
# touch and keyboard focus.
SCRIPT = """
"use strict";
const tip = document.createElement("div");
tip.id = "tip"; tip.hidden = true; tip.setAttribute("role", "status"); document.body.append(tip);
for (const element of document.querySelectorAll("[title]")) {
  element.dataset.tip = element.title; element.removeAttribute("title");
}
for (const title of document.querySelectorAll("svg title")) {
  const mark = title.parentNode;
  mark.dataset.tip = title.textContent; mark.setAttribute("aria-label", title.textContent);
  mark.setAttribute("role", "img");
  title.remove();
}
function show(mark, x, y) {
  tip.textContent = mark.dataset.tip; tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  const top = y + 16 + box.height > innerHeight ? y - 16 - box.height : y + 16;
  tip.style.left = Math.max(4, Math.min(left, innerWidth - box.width - 4)) + "px";
  tip.style.top = Math.max(4, top) + "px";
}
function marked(event) { return event.target.closest ? event.target.closest("[data-tip]") : null; }
document.addEventListener("pointermove", (event) => {
  const mark = marked(event);
  if (mark) show(mark, event.clientX, event.clientY); else tip.hidden = true;
});
document.addEventListener("pointerdown", (event) => {
  const mark = marked(event);
  if (mark) show(mark, event.clientX, event.clientY); else tip.hidden = true;
});
document.addEventListener("focusin", (event) => {
  const mark = marked(event);
  if (!mark || !mark.matches(":focus-visible")) return;
  const box = mark.getBoundingClientRect();
  show(mark, box.left + box.width / 2, box.top + box.height / 2);
});
document.addEventListener("focusout", () => { tip.hidden = true; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
"""

__all__ = ["SCRIPT", "STYLE"]
