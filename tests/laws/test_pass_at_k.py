from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrl.estimates import bootstrap_interval, overlap, pass_at_k, rescue_sets


@st.composite
def counted(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 400))
    return draw(st.integers(0, n)), n, draw(st.integers(1, n))


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n: int) -> None:
    for c in range(n + 1):
        samples = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            hits = [any(subset) for subset in combinations(samples, k)]
            assert pass_at_k([c], n, k)[0] == sum(hits) / len(hits)


@given(st.integers(1, 30), st.floats(0, 1), st.data())
def test_pass_at_k_is_unbiased(n: int, p: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    counts = np.arange(n + 1)
    # Probabilities of c successes among n, by convolution of n coins.
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, [1 - p, p])
    assert law @ pass_at_k(counts, n, k) == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@given(counted())
def test_pass_at_1_is_the_success_share(case: tuple[int, int, int]) -> None:
    c, n, _ = case
    assert pass_at_k([c], n, 1)[0] == c / n


@given(counted())
def test_pass_at_k_grows_with_k_and_with_successes(case: tuple[int, int, int]) -> None:
    c, n, k = case
    here = pass_at_k([c], n, k)[0]
    assert 0.0 <= here <= 1.0
    assert (here == 0.0) == (c == 0)
    if c > n - k:
        assert here == 1.0
    if k < n:
        assert pass_at_k([c], n, k + 1)[0] >= here
    if c < n:
        assert pass_at_k([c + 1], n, k)[0] >= here


def test_pass_at_k_stays_right_where_factorials_overflow_and_differences_cancel() -> None:
    assert pass_at_k([1], 10_000, 1)[0] == 1e-4
    assert pass_at_k([1], 2_000, 1_000)[0] == 0.5
    assert pass_at_k([5_000], 10_000, 5_000)[0] == 1.0
    # One success among n is in a subset of k with probability k / n.
    assert pass_at_k([1], 10_007, 3)[0] == 3 / 10_007


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(0, 2**63 - 1))
def test_bootstrap_bounds_lie_within_the_values_and_repeat(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, seed, resamples=50)
    rounding = 1e-12
    assert min(values) - rounding <= low <= high <= max(values) + rounding
    assert (low, high) == bootstrap_interval(values, seed, resamples=50)


def test_bootstrap_interval_widens_with_level_and_narrows_with_items() -> None:
    values = np.arange(40) % 2.0
    wide, narrow = (bootstrap_interval(values, 0, level) for level in (0.99, 0.5))
    assert wide[0] < narrow[0] < 0.5 < narrow[1] < wide[1]
    many = bootstrap_interval(np.tile(values, 25), 0, 0.99)
    assert wide[0] < many[0] < 0.5 < many[1] < wide[1]


@pytest.mark.slow
def test_bootstrap_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    runs, covered = 400, 0
    for seed in range(runs):
        low, high = bootstrap_interval(rng.random(100), seed, 0.9, resamples=400)
        covered += low <= 0.5 <= high
    # 0.9 within four standard errors; the percentile interval is a little short at 100 items.
    assert abs(covered / runs - 0.9) < 4 * np.sqrt(0.09 / runs) + 0.01


SETS = (
    st.integers(1, 4)
    .flatmap(
        lambda policies: st.lists(
            st.lists(st.integers(0, 3), min_size=policies, max_size=policies),
            min_size=1,
            max_size=12,
        )
    )
    .map(lambda rows: np.array(rows).T)
)


@given(SETS)
def test_overlap_is_the_jaccard_index_of_solved_sets(counts: np.ndarray) -> None:
    matrix = overlap(counts > 0)
    sets = [set(np.flatnonzero(row)) for row in counts]
    for i, mine in enumerate(sets):
        for j, its in enumerate(sets):
            if mine | its:
                assert matrix[i, j] == len(mine & its) / len(mine | its)
            else:
                assert np.isnan(matrix[i, j])


@given(SETS)
def test_rescue_sets_are_what_peers_add(counts: np.ndarray) -> None:
    rescued = rescue_sets(counts)
    solved = counts > 0
    assert not (rescued & solved).any()
    # A policy's own set and its rescue set together are what anyone solves.
    assert ((rescued | solved) == solved.any(axis=0)).all()
    if len(counts) == 1:
        assert not rescued.any()


@given(SETS)
def test_rescue_sets_do_not_depend_on_the_order_of_policies(counts: np.ndarray) -> None:
    for order in permutations(range(len(counts))):
        rows = list(order)
        assert (rescue_sets(counts[rows]) == rescue_sets(counts)[rows]).all()


def test_an_item_without_a_verified_sample_is_in_no_rescue_set() -> None:
    rescued = rescue_sets([[0, 0], [1, 1]], verified_counts=[[0, 3], [2, 2]])
    assert rescued.tolist() == [[False, True], [False, False]]
