"""What `longspan swap` costs with real weights: measures one part after the other and writes docs/swap-results.md.

    python -m benchmarks.swap_results loss far decoding stories minilm   # some or all parts
    python -m benchmarks.swap_results                                   # only write the page again

Each part replaces its rows in docs/swap-results.json, from which the page is written. Needs the packages of weights.txt
and the folder LONGSPAN_DATA. One thread; times are CPU time, the least of several tokens, models and lengths in turns.
"""

import argparse
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

from benchmarks.swap_parts import decoding, encoders, losses

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "swap-results.json", DOCS / "swap-results.md"
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "loss": losses.smollm2,
    "far": losses.far_from_the_first_tokens,
    "decoding": decoding.by_length,
    "stories": losses.stories,
    "minilm": encoders.minilm,
}
SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "loss": losses.smollm2_section,
    "far": losses.far_section,
    "decoding": decoding.section,
    "stories": losses.stories_section,
    "minilm": encoders.section,
}
HEAD = """# What swapped attention costs, measured

Trained models with another attention and no training after it ([swap](swap.md)). Written by
`python -m benchmarks.swap_results` from `swap-results.json`; each section names its part.
"""


def write_page(results: dict[str, Any]) -> str:
    """The page of all parts that have been measured."""
    sections = []
    for name, section in SECTIONS.items():
        if name in results:
            when = f"Part `{name}`, measured on {results[name]['date']} on {results[name]['machine']}, one thread."
            sections.append(f"{section(results[name])}\n\n{when}\n")
    missing = [f"`{name}`" for name in SECTIONS if name not in results]
    if missing:
        sections.append(f"## Not measured yet\n\nThe parts {', '.join(missing)} of the benchmark.\n")
    return fit("\n".join([HEAD, *sections]))


def fit(page: str) -> str:
    """The page with its paragraphs wrapped to 100 columns; tables and headings stay."""
    blocks = (
        block if block.startswith(("|", "#")) else fill(" ".join(block.split()), 100, break_on_hyphens=False)
        for block in re.split(r"\n{2,}", page.strip())
    )
    return "\n\n".join(blocks) + "\n"


def machine() -> str:
    """The processor's name."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "an unknown CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    torch.set_num_threads(1)
    for name in parser.parse_args().parts:
        measured = PARTS[name]()
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = {"date": str(datetime.date.today()), "machine": machine(), **measured}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(write_page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
