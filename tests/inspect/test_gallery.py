"""The gallery's data: pictures are `weights()`, patterns contain them, and mechanisms appear by themselves."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan import config
from longspan.attention import build, names
from longspan.attention.base import Attention, Cost, Supports
from longspan.attention.registry import ATTENTION, find
from longspan.config import option
from longspan.errors import InvalidOption, Notice
from longspan.inspect import gallery
from longspan.inspect.gallery_options import MARKED, SETUPS, setup
from longspan.inspect.visibility import LAYERS, POSITIONS, visibility
from longspan.report.gallery_data import DECADES, decode, encode, index_of
from longspan.report.payload import Payload


class EveryFew(Attention):
    """Reads a key now and then."""

    name, paper, survey_class = "every_few", "nobody 2026", ()
    order, exponent = "n²", 2.0
    supports = Supports()

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        step: int = option(100, "keys from one to the next", low=1)
        sharp: bool = option(False, "whether the largest wins")

    def define(self, q, k, extras):
        keep = torch.arange(k.shape[2]) % self.options.step == 0
        scores = (q @ k.mT) * (10 if self.options.sharp else 1)
        return scores.masked_fill(~keep, float("-inf")).softmax(-1)

    def attend(self, q, k, v, extras):
        return self.define(q, k, extras) @ v

    def cost(self, queries, keys):
        return Cost(4 * queries * keys, queries * keys)


@pytest.fixture(scope="module")
def entries() -> dict[str, gallery.Entry]:
    return {entry.name: entry for entry in gallery.collect()}


def first(entry: gallery.Entry, form: str) -> gallery.Picture:
    return entry.pictures[form][entry.start][0]


def test_every_registered_mechanism_is_there_in_every_form(entries):
    assert list(entries) == names()
    for name, entry in entries.items():
        supports = find(name).supports
        assert set(entry.pictures) == {
            form for form, has in (("causal", supports.causal), ("bidirectional", supports.bidirectional)) if has
        }
        assert all(entry.start in settings for settings in entry.pictures.values())


@pytest.mark.parametrize("name", names())
def test_the_picture_is_what_weights_says(entries, name):
    entry = entries[name]
    q, k, hidden = gallery.sample(0)
    for form in entry.pictures:
        torch.manual_seed(0)
        options = {key: value for key, value in setup(name).options.items() if key != MARKED}
        built = build(name, heads=1, head_dim=16, max_length=64, causal=form == "causal", **options).eval()
        if not built.supports.map:
            continue
        keys = k if "k" in built.projects else q
        streams = gallery._streams(built, q, keys, hidden, 2)
        assert torch.equal(first(entry, form).read, built.weights(q, keys, streams=streams)[0, 0])


def test_what_is_read_is_inside_of_what_could_be_read(entries):
    for entry in entries.values():
        for settings in entry.pictures.values():
            assert all(picture.outside == 0 for pictures in settings.values() for picture in pictures), entry.name


def test_causal_pictures_have_an_empty_upper_triangle(entries):
    for entry in entries.values():
        for pictures in entry.pictures.get("causal", {}).values():
            assert all(not picture.read.triu(1).any() for picture in pictures), entry.name


def test_only_patterns_that_depend_on_the_content_move(entries):
    assert {name for name, entry in entries.items() if entry.moves} == {"reformer", "routing", "cosformer"}
    for name, entry in entries.items():
        if not entry.moves and entry.shown == "weights":
            form = next(iter(entry.pictures))
            assert torch.equal(gallery.picture(name, form, setup(name).options, 7).could, first(entry, form).could), (
                name
            )


def test_random_numbers_of_others_stay_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    gallery.entry("performer")
    visibility()
    assert torch.equal(torch.rand(1), expected)


def test_a_window_reads_its_window():
    picture = gallery.picture("window", "causal", {"window": 6})
    offset = torch.arange(64)[:, None] - torch.arange(64)
    assert torch.equal(picture.could, (offset >= 0) & (offset <= 6))


def test_the_derivative_of_a_linear_map_is_its_weight():
    q, k, hidden = gallery.sample(0)
    built = build("softmax", heads=1, head_dim=16).eval()
    measured = gallery.derivative(built, q, k, hidden, {})
    assert (measured - built.float().weights(q, k)[0, 0]).abs().max() < 1e-6


def test_dials_have_three_to_six_values_and_start_at_one_of_them(entries):
    for entry in entries.values():
        for dial in entry.dials:
            assert 2 <= len(dial.values) <= 6 and 0 <= dial.start < len(dial.values)
        assert len(entry.dials) == len(setup(entry.name).dials)
    assert set(SETUPS) <= set(names())


def test_costs_are_those_of_the_mechanism(entries):
    built = build("window", heads=8, head_dim=64, max_length=4096)
    assert entries["window"].costs[4096] == tuple(built.cost(4096, 4096))
    assert list(entries["softmax"].costs) == [1024, 2048, 4096, 8192, 16384, 32768, 65536]
    assert entries["softmax"].state == {1000: 1000 * 2 * 64 * 4, 4000: 4000 * 2 * 64 * 4}
    assert entries["linformer"].state is None


def test_a_plugin_appears_with_dials_from_its_options(monkeypatch):
    monkeypatch.setitem(ATTENTION.registered, "every_few", EveryFew)
    assert names()[-1] == "every_few"
    (entry,) = gallery.collect(["every_few"])
    assert [(dial.name, dial.values, dial.start) for dial in entry.dials] == [
        ("step", (4, 8, 16, 32, 64), 2),
        ("sharp", (False, True), 0),
    ]
    assert len(entry.pictures["bidirectional"]) == 10
    assert torch.equal(first(entry, "bidirectional").could.nonzero()[:, 1].unique(), torch.arange(0, 64, 16))


def test_a_plugin_that_cannot_be_drawn_is_left_out(monkeypatch):
    class Picky(EveryFew):
        name = "picky"

        def __init__(self, shape, options=None, **rest):
            raise InvalidOption("picky needs more")

    monkeypatch.setattr(gallery, "names", lambda: ["linear", "picky"])
    monkeypatch.setitem(ATTENTION.registered, "picky", Picky)
    with pytest.warns(Notice, match="picky is left out of the gallery: picky needs more"):
        assert [entry.name for entry in gallery.collect()] == ["linear"]
    with pytest.raises(InvalidOption, match="picky needs more"):
        gallery.collect(["picky"])


def test_bytes_of_a_picture_are_its_weights_to_one_step(entries):
    for entry in entries.values():
        read = first(entry, next(iter(entry.pictures))).read.numpy()
        codes, peak, signed = encode(read)
        shown = decode(codes, peak, signed)
        large = np.abs(read) >= peak * 10**-DECADES
        step = 10 ** (DECADES / (126 if signed else 254))
        assert np.all(np.abs(shown[large] / read[large]) < step**0.51) and np.all(shown[read == 0] == 0)
        assert np.all(np.abs(read[large] / shown[large]) < step**0.51) and np.all((shown < 0) == (read < 0))


def test_all_pictures_take_little_room(entries):
    payload = Payload()
    index = index_of(payload, list(entries.values()))
    assert len(payload.markup(index)) < 1.5e6


def test_the_picture_of_the_docs_has_every_mechanism():
    """If this fails, run `longspan gallery --svg docs/gallery.svg`."""
    drawn = (Path(__file__).parents[2] / "docs" / "gallery.svg").read_text(encoding="utf-8")
    assert re.findall(r"class='name'[^>]*>(\w+)<", drawn) == list(ATTENTION.entries)


def test_visibility_of_bert_gpt_and_elmo():
    bert, gpt, elmo, local = visibility()
    below = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril()
    assert [len(sight.layers) for sight in (bert, gpt, elmo, local)] == [LAYERS, LAYERS, 2 * LAYERS, LAYERS]
    assert all(seen.all() for _, seen in bert.layers)
    assert all(torch.equal(seen, below) for _, seen in gpt.layers)
    assert all(torch.equal(seen, below if "forward" in title else below.T) for title, seen in elmo.layers)
    for layer, (_, seen) in enumerate(local.layers):  # layers times window
        assert torch.equal(seen, below & ~below.tril(-2 * (layer + 1) - 1))
