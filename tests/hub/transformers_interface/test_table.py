"""The table of docs/hugging-face.md: what each mechanism does inside models of transformers, measured here."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.transformers_interface.families import FAMILIES, LENGTH, largest, texts
from tests.hub.transformers_interface.test_own_weights import fresh

from longspan.attention.registry import ATTENTION
from longspan.errors import LongspanError
from longspan.hub import use_attention
from longspan.hub.transformers_interface.mechanisms import keeps_weights
from longspan.hub.transformers_interface.names import Implementation

PAGE = Path(__file__).parents[3] / "docs" / "hugging-face.md"
SMALL: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "longformer": {"window": 3},
    "etc": {"global_tokens": 3, "radius": 2},
    "bigbird": {"block": 2, "random": 1},
    "sparse": {"stride": 3},
    "image_local": {"query_block": 2, "memory": 3},
    "axial": {"width": 3},
    "memory_compressed": {"stride": 2},
    "inducing": {"points": 3},
    "reformer": {"chunk": 3, "buckets": 4},
    "routing": {"clusters": 3, "window": 4, "block": 4},
    "sinkhorn": {"block": 4},
    "linformer": {"rank": 4},
    "nystrom": {"landmarks": 4, "kernel": 3},
    "performer": {"features": 16},
    "gated_linear": {"rank": 4},
    "window_linear": {"window": 3},
}


def made(family: str, name: str) -> Any:
    """A model with the mechanism, or None if it is refused."""
    try:
        return use_attention(fresh(family), name, **SMALL.get(name, {}))
    except LongspanError:
        return None


@torch.no_grad()
def works(model: Any, *args: Any, **given: Any) -> Any:
    try:
        return model(*args, **given)
    except LongspanError:
        return None


def row(name: str) -> list[str]:
    """What a mechanism does: in an encoder, in a decoder, with a cache, in cross-attention, its weights."""
    ids, mask = texts("right")
    encoder, decoder, pair = (made(family, name) for family in ("bert", "llama", "bart"))
    encoded = encoder and works(encoder, ids, attention_mask=mask)
    decoded = decoder and works(decoder, ids, use_cache=False)
    cached = False
    if decoded:
        first = works(decoder, ids[:, :7], use_cache=True)
        after = works(decoder, ids[:, 7:], past_key_values=first.past_key_values)
        cached = after is not None and largest(after.logits, decoded.logits[:, 7:]) < 1e-5
    reads_others = Implementation(name).kind.supports
    cross = reads_others.cross and reads_others.cross_rows and pair and works(pair, ids, decoder_input_ids=ids)
    chosen, whole = (encoder, encoded) if encoded else (decoder, decoded)
    maps = whole and works(chosen, ids, output_attentions=True, **({} if encoded else {"use_cache": False}))
    if maps:
        assert maps.attentions[0].shape == (2, 4, LENGTH, LENGTH)
    weights = bool(whole) and keeps_weights(Implementation(name, SMALL.get(name, {})))
    found = [encoded, decoded, cached, cross, maps, weights]
    return [f"`{name}`", *("yes" if it else "–" for it in found)]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    return {name: row(name) for name in ATTENTION.entries}


def test_the_table_of_the_page_is_what_is_measured(rows: dict[str, list[str]]) -> None:
    expected = [f"| {' | '.join(cells)} |" for cells in rows.values()]
    found = re.findall(r"^\| `\w+` \|(?: (?:yes|–) \|){6}$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found == expected, "the table should be:\n" + "\n".join(expected)


def test_every_mechanism_works_somewhere(rows: dict[str, list[str]]) -> None:
    assert [name for name, cells in rows.items() if "yes" not in cells[1:3]] == []
    assert set(FAMILIES) >= {"bert", "llama", "bart"}
