"""Learning rates against their closed forms."""

import math

import pytest

from longspan.errors import InvalidOption
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


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 1.746928e-7), (2000, 3.493856e-4), (4000, 6.987712e-4), (4001, 6.986839e-4), (100_000, 1.397542e-4)],
)
def test_noam_is_that_of_the_paper(step: int, rate: float) -> None:
    """Vaswani et al. 2017, section 5.3: d^-0.5 · min(s^-0.5, s·w^-1.5) with d = 512 and w = 4000."""
    schedule = Schedule(kind="noam", rate=1.0, warmup=4000)
    assert schedule.at(step, 100_000, 512) == pytest.approx(rate, rel=1e-6)
    assert schedule.at(step, 100_000, 512) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12)
    assert schedule.at(step, 100_000, 512) <= schedule.at(4000, 100_000, 512)
    assert Schedule(kind="noam", rate=2.0, warmup=4000).at(step, 100_000, 512) == pytest.approx(2 * rate, rel=1e-6)


def test_noam_needs_a_width() -> None:
    with pytest.raises(InvalidOption, match="noam divides by the square root of the model's width"):
        Schedule(kind="noam").at(1, 10)


@pytest.mark.parametrize(
    ("step", "linear", "from_start", "cosine"),
    [
        (1, 0.01, 0.01, 0.01),
        (50, 0.5, 0.5, 0.5),
        (99, 0.99, 0.99, 0.99),
        (100, 1.0, 0.9, 1.0),  # the warm-up ends; BERT's line began at step 0
        (325, 0.75, 0.675, (1 + math.sqrt(0.5)) / 2),
        (550, 0.5, 0.45, 0.5),
        (1000, 0.0, 0.0, 0.0),
        (1100, 0.0, 0.0, 0.0),  # after the last step
    ],
)
def test_linear_and_cosine_by_hand(step: int, linear: float, from_start: float, cosine: float) -> None:
    for kind, share in (("linear", linear), ("linear_from_start", from_start), ("cosine", cosine)):
        schedule = Schedule(kind=kind, rate=3e-4, warmup=WARM)
        assert schedule.at(step, STEPS) == pytest.approx(3e-4 * share, rel=1e-9, abs=1e-18)
        ending = Schedule(kind=kind, rate=3e-4, warmup=WARM, final=0.1)
        expected = share if step < WARM else 0.1 + 0.9 * share
        assert ending.at(step, STEPS) == pytest.approx(3e-4 * expected, rel=1e-9)


def test_constant_after_the_warm_up() -> None:
    schedule = Schedule(kind="constant", rate=0.2, warmup=10)
    assert [schedule.at(step, 100) for step in (1, 5, 10, 100)] == pytest.approx([0.02, 0.1, 0.2, 0.2])
