"""Learning rates against their closed forms."""

import math

import pytest

from longspan.train.schedule import Schedule

STEPS, WARM = 1000, 100


@pytest.mark.parametrize("step", [1, 50, 100, 400, 1000])
def test_rsqrt_is_that_of_the_arena(step: int):
    schedule = Schedule(kind="rsqrt", rate=0.05, warmup=WARM)
    assert schedule.at(step, STEPS) == pytest.approx(0.05 * min(1, step / WARM) / math.sqrt(max(step, WARM)))


@pytest.mark.parametrize("step", [1, 50, 100, 400, 1000])
def test_cosine_cycle_is_that_of_the_arena(step: int):
    schedule = Schedule(kind="cosine_cycle", rate=1e-3, warmup=WARM)
    turned = max(0, step - WARM) / STEPS % 1
    assert schedule.at(step, STEPS) == pytest.approx(1e-3 * min(1, step / WARM) * (1 + math.cos(math.pi * turned)) / 2)


def test_where_the_warm_up_ends():
    assert Schedule(kind="rsqrt", rate=0.05, warmup=WARM).at(WARM, STEPS) == pytest.approx(0.05 / math.sqrt(WARM))
    assert Schedule(kind="cosine_cycle", rate=0.05, warmup=WARM).at(WARM, STEPS) == pytest.approx(0.05)
    # The rates that the released configurations of ListOps and Text reach.
    assert Schedule(kind="rsqrt", rate=0.05, warmup=1000).at(1000, 5000) == pytest.approx(1.58e-3, rel=1e-2)
    assert Schedule(kind="rsqrt", rate=0.05, warmup=8000).at(8000, 20000) == pytest.approx(5.59e-4, rel=1e-2)


def test_without_a_warm_up():
    assert Schedule(kind="rsqrt", rate=1.0).at(4, STEPS) == pytest.approx(0.5)
    assert Schedule(kind="cosine_cycle", rate=1.0).at(STEPS // 2, STEPS) == pytest.approx(0.5)
    assert Schedule(kind="cosine_cycle", rate=1.0).at(STEPS, STEPS) == pytest.approx(1.0)  # a new cycle, as released
