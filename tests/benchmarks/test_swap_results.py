"""The page of swaps is what the measurements say, and states are lengthened as if the text had been read."""

import json

import torch

from benchmarks.swap_parts.decoding import lengthened
from benchmarks.swap_results import PAGE, RESULTS, write_page
from longspan.models import build


def test_the_page_is_written_from_the_measurements() -> None:
    assert PAGE.read_text() == write_page(json.loads(RESULTS.read_text()))


def test_a_lengthened_state_has_the_size_of_one_that_was_read() -> None:
    sizes = {"vocabulary": 11, "width": 8, "layers": 2, "heads": 2, "kv_heads": 1, "hidden": 8, "max_length": 200}
    for attention in ("softmax", {"name": "window", "window": 5, "sinks": 2, "sink_positions": "cache"}):
        model = build("decoder", **sizes, position="rotary", attention=attention).eval()
        ids = torch.randint(11, (1, 101))
        with torch.inference_mode():
            _, short = model.extend(ids[:, :20], model.start(1))
            _, read = model.extend(ids[:, :100], model.start(1))
            made = lengthened(short, 100, 2)
            assert made.bytes == read.bytes and made.length == read.length == 100
            _, after = model.extend(ids[:, 100:], made)
            _, expected = model.extend(ids[:, 100:], read)
        assert after.bytes == expected.bytes and after.length == 101
        first = short.blocks[0].mixer.inner
        if attention == "softmax":
            assert torch.equal(made.blocks[0].mixer.inner.k.value[:, :, :20], first.k.value)
