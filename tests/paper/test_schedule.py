"""Learning rates (Section 5.3): equation (3) against its golden table, and the shapes of the named departures."""

from decimal import Decimal, getcontext
from itertools import pairwise

import pytest

from dragoman.config import Config
from dragoman.training.schedule import constant_rate, cosine_rate, inverse_sqrt_rate, linear_rate, paper_rate, rate_of

WIDTHS = (128, 256, 512, 1024)
# Steps to rates for each width, warm-up 4000 (paper.md 1.3); as printed there.
GOLDEN = {
    1: ("3.4938562e-07", "2.4705294e-07", "1.7469281e-07", "1.2352647e-07"),
    100: ("3.4938562e-05", "2.4705294e-05", "1.7469281e-05", "1.2352647e-05"),
    1_000: ("3.4938562e-04", "2.4705294e-04", "1.7469281e-04", "1.2352647e-04"),
    4_000: ("1.3975425e-03", "9.8821177e-04", "6.9877124e-04", "4.9410588e-04"),
    4_001: ("1.3973678e-03", "9.8808827e-04", "6.9868391e-04", "4.9404413e-04"),
    10_000: ("8.8388348e-04", "6.2500000e-04", "4.4194174e-04", "3.1250000e-04"),
    100_000: ("2.7950850e-04", "1.9764235e-04", "1.3975425e-04", "9.8821177e-05"),
    300_000: ("1.6137431e-04", "1.1410887e-04", "8.0687153e-05", "5.7054433e-05"),
}
PEAK, WARMUP, LAST = 0.004, 50, 450


@pytest.mark.parametrize("step", GOLDEN)
@pytest.mark.parametrize("column", range(4))
def test_the_golden_table(step: int, column: int) -> None:
    rate = paper_rate(step, d_model=WIDTHS[column], warmup_steps=4000)
    assert rate == pytest.approx(float(GOLDEN[step][column]), rel=5e-8)  # half of the last digit
    getcontext().prec = 40
    d_model, at, warmup = Decimal(WIDTHS[column]), Decimal(step), Decimal(4000)
    exact = min(1 / at.sqrt(), at / (warmup * warmup.sqrt())) / d_model.sqrt()
    assert rate == pytest.approx(float(exact), rel=1e-12)


def test_the_peak_is_exactly_at_the_end_of_the_warmup() -> None:
    rates = [paper_rate(step, d_model=512, warmup_steps=4000) for step in range(1, 20_001)]
    assert rates.index(max(rates)) + 1 == 4000
    assert rates.count(max(rates)) == 1
    assert all(before < after for before, after in pairwise(rates[:4000]))
    assert all(before > after for before, after in pairwise(rates[3999:]))


def test_the_paper_settings_are_the_default_and_factor_multiplies() -> None:
    training = Config().training
    assert rate_of(training, d_model=512)(4000) == pytest.approx(6.9877124e-04, rel=1e-7)
    doubled = Config().with_values(training={"factor": 2.0}).training
    assert rate_of(doubled, d_model=512)(123) == 2 * rate_of(training, d_model=512)(123)


def test_inverse_sqrt_is_the_paper_with_its_peak_given() -> None:
    peak = paper_rate(4000, d_model=512, warmup_steps=4000)
    for step in (1, 77, 4000, 4001, 123_456):
        found = inverse_sqrt_rate(step, peak=peak, warmup_steps=4000)
        assert found == pytest.approx(paper_rate(step, d_model=512, warmup_steps=4000), rel=1e-12)


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_each_warms_up_in_a_line_to_its_peak(schedule: str) -> None:
    chosen = {"schedule": schedule, "learning_rate": PEAK, "warmup_steps": WARMUP, "max_steps": LAST}
    rate = rate_of(Config().with_values(training=chosen).training, d_model=512)
    assert [rate(step) for step in range(1, WARMUP + 1)] == pytest.approx([PEAK * step / WARMUP for step in range(1, WARMUP + 1)])
    after = [rate(step) for step in range(WARMUP, LAST + 1)]
    assert max(after) == after[0] == PEAK
    if schedule == "constant":
        assert set(after) == {PEAK}
    else:
        assert all(before > later for before, later in pairwise(after))


def test_what_is_left_at_quarters_of_the_decay() -> None:
    quarters = [WARMUP + part * (LAST - WARMUP) // 4 for part in range(5)]
    assert [linear_rate(step, peak=PEAK, warmup_steps=WARMUP, max_steps=LAST) / PEAK for step in quarters] == pytest.approx(
        [1, 0.75, 0.5, 0.25, 0]
    )
    assert [cosine_rate(step, peak=PEAK, warmup_steps=WARMUP, max_steps=LAST) / PEAK for step in quarters] == pytest.approx(
        [1, 0.8535533906, 0.5, 0.1464466094, 0]
    )
    assert inverse_sqrt_rate(4 * WARMUP, peak=PEAK, warmup_steps=WARMUP) == pytest.approx(PEAK / 2)
    assert constant_rate(9 * WARMUP, peak=PEAK, warmup_steps=WARMUP) == PEAK


@pytest.mark.parametrize(("schedule", "rates"), [
    ("linear", [0.004, 0.0032, 0.0024, 0.0016, 0.0008]), ("cosine", [0.004, 0.0035313708, 0.0024, 0.0012686292, 0.0008]),
])  # fmt: skip
def test_a_decay_ends_at_the_rate_that_is_the_least(schedule: str, rates: list[float]) -> None:
    """At quarters of the decay; a step beyond the last has the last one's rate."""
    chosen = {"schedule": schedule, "learning_rate": PEAK, "minimum_rate": 0.0008, "warmup_steps": WARMUP, "max_steps": LAST}
    rate = rate_of(Config().with_values(training=chosen).training, d_model=512)
    assert [rate(step) for step in (50, 150, 250, 350, 450, 451)] == pytest.approx([*rates, 0.0008], rel=1e-7)
    assert rate(5) == pytest.approx(0.0004)  # the warm-up is from 0 all the same


@pytest.mark.parametrize("schedule", ["paper", "inverse-sqrt", "cosine", "linear", "constant"])
def test_no_step_has_a_negative_or_endless_rate(schedule: str) -> None:
    """Also where the run is shorter than its warm-up, or goes on beyond max_steps."""
    for warmup_steps, max_steps in ((1, 1), (1, 10), (10, 10), (30, 10)):
        chosen = {"schedule": schedule, "learning_rate": PEAK, "warmup_steps": warmup_steps, "max_steps": max_steps}
        rate = rate_of(Config().with_values(training=chosen).training, d_model=16)
        assert all(0 <= rate(step) <= 1 for step in range(1, 40))
        assert rate(1) > 0
