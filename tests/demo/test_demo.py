"""The demo: its measurements, its sentences and its page."""

from dataclasses import replace

import pytest
import torch

from longspan.demo.crossover import FUSED, MECHANISMS, Crossover, crossover
from longspan.demo.leaks import Leak, leaks, measure
from longspan.demo.learning import HALF, SYMBOLS, Learned, learn, texts
from longspan.report.demo import crossover_sentence, demo_page, leak_sentence, learning_sentence


def quiet(done: int, total: int, now: str) -> None:
    assert 0 <= done < total


def test_ours_leak_nothing_and_have_no_causal_big_bird():
    found = leaks()
    assert [leak.change for leak in found] == sorted((leak.change for leak in found), reverse=True)
    assert {leak.mechanism for leak in found if leak.ours is None} == {"bigbird"}
    assert {leak.ours for leak in found} == {None, 0.0}


def test_the_measurement_sees_a_leak():
    """The paper's form of Routing chooses among all tokens, later ones too."""
    assert measure("routing", causal=True, membership="sequence") > 1e-3


def test_the_sentence_on_leaks_follows_from_the_numbers():
    leak = Leak("a", "routing", "reads the future", 1.0, 0.0)
    assert "Ours: 0 everywhere." in leak_sentence([leak])
    assert "Ours: at most 0.2, and 1 of these" in leak_sentence([replace(leak, ours=0.2), replace(leak, ours=None)])


def test_crossover_times_every_mechanism_at_every_length():
    times = crossover(quiet, lengths=(16, 32), repeats=1)
    assert list(times.seconds) == [FUSED, *MECHANISMS]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in times.seconds.values())


def test_it_pays_from_the_length_after_which_it_is_always_faster():
    times = Crossover((256, 512, 1024), {FUSED: [1, 2, 4], "a": [0.5, 3, 3], "b": [2, 3, 5], "c": [0.1, 0.1, 0.1]})
    assert [times.pays_from(name) for name in "abc"] == [1024, None, 256]
    assert crossover_sentence(times).endswith("in tokens: a from 1024, b not up to 1024, c from 256.")


def test_a_text_is_its_first_half_again():
    ids = texts(5, torch.Generator().manual_seed(3))
    assert ids.shape == (5, 2 * HALF + 1)
    assert torch.equal(ids[:, :HALF], ids[:, HALF + 1 :]) and (ids[:, HALF] == SYMBOLS).all()


@pytest.mark.slow
def test_softmax_learns_to_copy_and_a_window_cannot():
    dense, window = learn(quiet, ("softmax", "window"))
    assert dense.accuracy[-1] > 0.95 and window.accuracy[-1] < 0.1
    assert dense.steps[-1] == 139 and dense.maps.shape == (2, 4, 41, 41)
    reach = torch.ones(41, 41).tril().triu(-8) > 0
    assert not window.maps[:, :, ~reach].any()


def test_the_page_holds_all_parts():
    times = Crossover((256, 512), {FUSED: [1.0, 2.0], **{name: [2.0, 1.0] for name in MECHANISMS}})
    maps = torch.eye(41).expand(2, 4, 41, 41)
    learned = [Learned(name, [0, 5], [0.1, share], maps) for name, share in (("softmax", 1.0), ("window", 0.03))]
    hostile = Leak("<script>", "routing", "reads the future", 2.0, 0.0)
    shown = demo_page("<?xml?><svg id='sheet'></svg>", [hostile], times, learned, "A machine.")
    assert "<svg class=\"sheet\" id='sheet'>" in shown
    assert "&lt;script&gt;" in shown and "window from 512" in shown
    assert "softmax 100%, window 3%" in learning_sentence(learned) and "after 6 steps" in shown
