"""The throughput model: exact on what it can express, honest about what it cannot, the same everywhere."""

from __future__ import annotations

import csv
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.spec import PPM
from elasticgrid.core.throughput import Measurement, ThroughputModel, fit
from elasticgrid.core.window import median

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "scaling"
MODELS = ("bert", "cifar10", "imagenet", "yolov3")


def law(nodes: int, tokens: int, a: int, b: int, c: int, e: int) -> int:
    return a + b * tokens + (c + e * (nodes - 2) if nodes >= 2 else 0)


def measured(sizes: tuple[int, ...], tokens: tuple[int, ...], a: int, b: int, c: int, e: int) -> list[Measurement]:
    return [Measurement(n, u, law(n, u, a, b, c, e)) for n in sizes for u in tokens]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 2_000), st.integers(0, 10**6), st.integers(0, 10**5))
def test_a_curve_of_the_models_own_form_is_found_to_the_last_digit(a: int, b: int, c: int, e: int) -> None:
    model = fit(measured((1, 2, 4, 8), (100, 1_000), a, b, c, e))
    assert [model.fixed_us, model.token_us, model.several_us, model.node_us] == [
        Fraction(each) for each in (a, b, c, e)
    ]
    assert model.predict(16, 500).step_us == law(16, 500, a, b, c, e)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(Measurement, st.integers(1, 32), st.integers(0, 10_000), st.integers(1, 10**7)),
        min_size=1,
        max_size=12,
    ),
    st.randoms(),
)
def test_whatever_was_measured_no_coefficient_is_negative_and_the_order_does_not_matter(
    points: list[Measurement], random: object
) -> None:
    model = fit(points)
    assert min(model.fixed_us, model.token_us, model.several_us, model.node_us) >= 0
    assert fit(list(reversed(points))) == model


def test_no_other_coefficients_without_a_negative_one_have_a_smaller_error() -> None:
    points = [
        Measurement(1, 64, 90_000),
        Measurement(2, 64, 70_000),
        Measurement(4, 64, 75_000),
        Measurement(8, 32, 60_000),
    ]
    model = fit(points)

    def loss(a: Fraction, b: Fraction, c: Fraction, e: Fraction) -> Fraction:
        total = Fraction(0)
        for each in points:
            said = a + b * each.tokens + (c + e * (each.nodes - 2) if each.nodes >= 2 else 0)
            total += ((said - each.step_us) / each.step_us) ** 2
        return total

    best = (model.fixed_us, model.token_us, model.several_us, model.node_us)
    for index in range(4):
        for nudge in (Fraction(1), Fraction(-1), Fraction(1, 1000), Fraction(-1, 1000)):
            other = list(best)
            other[index] += nudge
            if other[index] >= 0:
                assert loss(*other) >= loss(*best)


def test_a_measured_size_answers_with_its_median_and_not_with_the_model() -> None:
    model = fit([*(Measurement(2, 100, step_us) for step_us in (900, 1_000, 50_000)), Measurement(4, 100, 700)])
    assert model.predict(2, 100) == model.predict(2, 105)
    assert model.predict(2, 100).step_us == 1_000
    assert model.predict(2, 100).measured
    assert not model.predict(2, 200).measured
    assert not model.predict(3, 100).measured


def test_more_than_twice_the_largest_measured_size_is_refused() -> None:
    model = fit([Measurement(1, 10, 100), Measurement(4, 10, 120)])
    assert model.largest_nodes == 8
    assert model.predict(8, 10).step_us > 0
    with pytest.raises(InvalidInput, match="9 nodes cannot be told from measurements with at most 4"):
        model.predict(9, 10)


def test_the_error_is_measured_on_sizes_the_model_has_not_seen() -> None:
    exact = fit(measured((1, 2, 4, 8, 16), (100, 200), 50, 2, 30, 4))
    assert [each.nodes for each in exact.held_out] == [1, 2, 4, 8, 16]
    assert [each.error_ppm for each in exact.held_out if each.nodes in (4, 8, 16)] == [0, 0, 0]
    off = fit([*measured((1, 2, 4), (100,), 50, 2, 30, 4), Measurement(8, 100, 2 * law(8, 100, 50, 2, 30, 4))])
    assert off.held_out[-1].error_ppm == PPM // 2
    alone = fit([Measurement(2, 100, 1_000)])
    assert alone.held_out == ()
    assert alone.error_ppm is None


def test_with_one_size_the_work_of_a_node_alone_explains_the_step() -> None:
    model = fit([Measurement(2, 100, 1_000)])
    assert not any((model.fixed_us, model.several_us, model.node_us))
    assert model.predict(4, 50).step_us == 500
    assert model.predict(1, 200).step_us == 2_000


@pytest.mark.parametrize("point", [Measurement(0, 1, 1), Measurement(1, -1, 1), Measurement(1, 1, 0)])
def test_what_is_no_measurement_is_refused(point: Measurement) -> None:
    with pytest.raises(InvalidInput):
        fit([point])
    with pytest.raises(InvalidInput, match="at least one"):
        fit([])


# --------------------------------------------------------------------------------------------------------------------
# Public measurements
# --------------------------------------------------------------------------------------------------------------------


def public(model: str) -> list[Measurement]:
    """Steps of one replica a node, `tokens` the local batch in thousandths of an example."""
    placements, sizes = (rows(PUBLIC / model / name) for name in ("placements.csv", "scalability.csv"))
    found = [(len(row["placement"]), row) for row in placements if set(row["placement"]) == {"1"}]
    found += [(int(row["num_nodes"]), row) for row in sizes if row["num_nodes"] == row["num_replicas"]]
    return [
        Measurement(nodes, 1_000 * int(row["local_bsz"]), round(float(row["step_time"]) * 1_000_000))
        for nodes, row in found
    ]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def error(model: ThroughputModel, point: Measurement) -> float:
    return float(abs(model.modelled_us(point.nodes, point.tokens) - point.step_us) / point.step_us)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public measurements are not on this machine")
def test_on_public_measurements_the_fit_and_one_doubling_ahead_are_close() -> None:
    fitted, ahead = [], []
    for name in MODELS:
        points = public(name)
        whole = fit(points)
        fitted += [error(whole, point) for point in points]
        sizes = sorted({point.nodes for point in points})
        for size, larger in ((size, 2 * size) for size in sizes if 2 * size in sizes and size > sizes[0]):
            known = fit([point for point in points if point.nodes <= size])
            assert larger <= known.largest_nodes
            ahead += [error(known, point) for point in points if point.nodes == larger]
    assert len(fitted) > 200
    assert median_of(fitted) < 0.09
    assert median_of(ahead) < 0.13
    assert all(first < second for first, second in pairwise([0.0, median_of(fitted), median_of(ahead)]))


def median_of(values: list[float]) -> float:
    return median([round(value * PPM) for value in values]) / PPM
