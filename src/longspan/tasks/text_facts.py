"""What can be said of texts without understanding them: scripts, addresses and other personal data, control signs."""

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from itertools import islice
from typing import Any

from longspan.tasks.survey import Opened

ROWS = 20_000  # read at most
MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
WEB = re.compile(r"https?://|\bwww\.")
PHONE = re.compile(r"(?<![\w.,])\+?\d[\d ()/-]{7,}\d(?![\w.,]\d)")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LARGEST = 4  # scripts that are named


def text_facts(opened: Opened) -> dict[str, Any]:
    """Shares of letters by script, and rows that have e-mail or web addresses, phone-like numbers or control signs."""
    scripts: Counter[str] = Counter()
    found = Counter({"e-mail addresses": 0, "web addresses": 0, "numbers like phone numbers": 0, "control signs": 0})
    rows = 0
    for row in islice(opened.rows, ROWS):
        text = " ".join(row.fields.get(name, "") for name in opened.texts.values())
        rows += 1
        for letter, count in Counter(text).items():
            if letter.isalpha():
                scripts[_script(letter)] += count
        for name, pattern in zip(tuple(found), (MAIL, WEB, PHONE, CONTROL)):
            found[name] += pattern.search(text) is not None
    letters = scripts.total()
    return {
        "rows": rows,
        "scripts": {name: count / letters for name, count in scripts.most_common(LARGEST)} if letters else {},
        "rows_with": dict(found),
    }


@lru_cache(4096)
def _script(letter: str) -> str:
    """The first word of a letter's Unicode name, which is its script for all large ones: LATIN, CYRILLIC, CJK."""
    return unicodedata.name(letter, "unknown").partition(" ")[0].capitalize()


__all__ = ["ROWS", "text_facts"]
