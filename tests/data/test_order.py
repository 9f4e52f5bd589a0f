"""Computed orders are permutations, differ by epoch and seed, and can be entered anywhere."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.order import Shuffled, draws


@given(st.integers(0, 700), st.integers(0, 2**32), st.integers(0, 5))
def test_every_number_comes_once(size: int, seed: int, epoch: int) -> None:
    order = Shuffled(size, seed, epoch)
    assert sorted(order) == list(range(size)) and len(order) == size


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500))
def test_a_place_does_not_depend_on_how_one_got_there(size: int, start: int, stop: int) -> None:
    order = Shuffled(size, 3)
    assert order[start:stop] == list(order)[start:stop]
    assert order[start % size] == list(order)[start % size] and order[-1] == list(order)[-1]


def test_orders_differ_by_seed_and_epoch_and_are_no_shift_of_each_other() -> None:
    orders = [list(Shuffled(1000, seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for first in range(4):
        for second in range(first):
            same = np.mean(np.array(orders[first]) == np.array(orders[second]))
            assert same < 0.01


def test_places_are_evenly_drawn() -> None:
    """Over many epochs each number stands in each tenth about equally often: chi-square within 5 deviations."""
    counts = np.zeros((10, 10))
    for epoch in range(400):
        order = np.array(list(Shuffled(100, 7, epoch)))
        np.add.at(counts, (order // 10, np.arange(100) // 10), 1)
    expected = 400 * 100 / 100
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 81) < 5 * (2 * 81) ** 0.5


def test_a_large_order_takes_no_memory() -> None:
    order = Shuffled(10**15, 1)
    assert len({order[place] for place in range(100)}) == 100


def test_draws_belong_to_the_example() -> None:
    assert draws(1, 2, 3).integers(1 << 60) == draws(1, 2, 3).integers(1 << 60)
    assert (
        len(
            {
                int(draws(seed, epoch, number).integers(1 << 60))
                for seed in (0, 1)
                for epoch in (0, 1)
                for number in (0, 1)
            }
        )
        == 8
    )
