"""How long a step takes with so many nodes: measured where it was, and a model fitted to that where it was not.

With n nodes and u tokens per node and step::

    T(n, u) = a + b u + [n >= 2] (c + e (n - 2))        a, b, c, e >= 0

`a` is what every step costs, `b` what a token costs, `c` what going from one node to several costs, `e` what each
further node adds. The fit minimises the relative errors' squares. It is exact: every set of coefficients that may be
above zero is solved in rational numbers and the best one without a negative coefficient is taken, so the same
measurements give the same model everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations

import msgspec

from elasticgrid.core.errors import InvalidInput
from elasticgrid.core.spec import PPM
from elasticgrid.core.window import median

#: A size more than so many times the largest measured one is not predicted.
MAX_REACH = 2
_COEFFICIENTS = 4


class Measurement(msgspec.Struct, frozen=True):
    """A step that was seen: `nodes` nodes, `tokens` per node, `step_us` its length without the wait for data."""

    nodes: int
    tokens: int
    step_us: int


class Prediction(msgspec.Struct, frozen=True):
    """A step's length, and whether it is a median of measurements (or else the model's)."""

    step_us: int
    measured: bool


class HeldOut(msgspec.Struct, frozen=True):
    """How the model does on a size it was not fitted to.

    Attributes:
        nodes: the size that was left out.
        error_ppm: the median of |predicted - measured| / measured over its measurements.
    """

    nodes: int
    error_ppm: int


class ThroughputModel(msgspec.Struct, frozen=True, kw_only=True):
    """Step times by size.

    Attributes:
        fixed_us, token_us, several_us, node_us: the coefficients a, b, c and e.
        measured: the median step of every measured (nodes, tokens per node).
        held_out: the error on each size when the model is fitted to the others; empty with one size only.
    """

    fixed_us: Fraction
    token_us: Fraction
    several_us: Fraction
    node_us: Fraction
    measured: dict[tuple[int, int], int]
    held_out: tuple[HeldOut, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The measured sizes, smallest first."""
        return tuple(sorted({nodes for nodes, _ in self.measured}))

    @property
    def largest_nodes(self) -> int:
        """The largest size that is predicted."""
        return MAX_REACH * self.sizes[-1]

    @property
    def error_ppm(self) -> int | None:
        """The median error on held-out sizes; None when there was nothing to hold out."""
        return median([each.error_ppm for each in self.held_out]) if self.held_out else None

    def predict(self, nodes: int, tokens: int) -> Prediction:
        """How long a step of `tokens` tokens per node takes with `nodes` nodes, at least one microsecond.

        A measured size answers with what was measured at the nearest amount of tokens, if that is within a tenth.

        Raises:
            InvalidInput: `nodes` is below 1, or beyond `largest_nodes`.
        """
        if nodes < 1:
            raise InvalidInput(f"{nodes} nodes are no size")
        if nodes > self.largest_nodes:
            raise InvalidInput(
                f"a step with {nodes} nodes cannot be told from measurements with at most {self.sizes[-1]}",
                hint=f"at most {self.largest_nodes} nodes, {MAX_REACH} times the largest measured size, are predicted",
            )
        near = [(abs(each - tokens), each) for size, each in self.measured if size == nodes]
        if near and min(near)[0] * 10 <= tokens:
            return Prediction(self.measured[nodes, min(near)[1]], True)
        return Prediction(max(round(self.modelled_us(nodes, tokens)), 1), False)

    def modelled_us(self, nodes: int, tokens: int) -> Fraction:
        """What the formula says, measured or not."""
        step_us = self.fixed_us + self.token_us * tokens
        return step_us + self.several_us + self.node_us * (nodes - 2) if nodes >= 2 else step_us


def fit(measurements: Iterable[Measurement]) -> ThroughputModel:
    """The model of these measurements.

    Of several measurements of one (nodes, tokens) only the median counts, so that a size that was seen for long does
    not outweigh the others.

    Raises:
        InvalidInput: there are none, or one has no nodes, no time or negative tokens.
    """
    grouped: dict[tuple[int, int], list[int]] = {}
    for each in measurements:
        if each.nodes < 1 or each.step_us < 1 or each.tokens < 0:
            raise InvalidInput(f"{each.nodes} nodes, {each.tokens} tokens, {each.step_us} us are no measurement")
        grouped.setdefault((each.nodes, each.tokens), []).append(each.step_us)
    if not grouped:
        raise InvalidInput("a throughput model needs at least one measured step")
    points = {key: median(steps) for key, steps in sorted(grouped.items())}
    return _model(points, _held_out(points))


def _model(points: dict[tuple[int, int], int], held_out: tuple[HeldOut, ...] = ()) -> ThroughputModel:
    a, b, c, e = _solve([(*key, step_us) for key, step_us in points.items()])
    return ThroughputModel(fixed_us=a, token_us=b, several_us=c, node_us=e, measured=dict(points), held_out=held_out)


def _held_out(points: dict[tuple[int, int], int]) -> tuple[HeldOut, ...]:
    found = []
    sizes = sorted({nodes for nodes, _ in points})
    for left_out in sizes if len(sizes) > 1 else ():
        others = _model({key: step_us for key, step_us in points.items() if key[0] != left_out})
        errors = [
            round(abs(others.modelled_us(*key) - step_us) * PPM / step_us)
            for key, step_us in points.items()
            if key[0] == left_out
        ]
        found.append(HeldOut(left_out, median(errors)))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------------------
# Relative least squares with no negative coefficient
# --------------------------------------------------------------------------------------------------------------------

_Row = tuple[Fraction, ...]


def _solve(points: Sequence[tuple[int, int, int]]) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """The coefficients with the least sum of ((predicted - measured) / measured) squared."""
    rows = [_row(*point) for point in points]
    best: tuple[Fraction, tuple[Fraction, ...]] | None = None
    # Few coefficients come first, and what a token costs before what a step costs: where several sets fit equally
    # well the first one is kept, so with one measured size the work alone explains it.
    for count in range(1, _COEFFICIENTS + 1):
        for active in combinations((1, 0, 2, 3), count):
            found = _least_squares(rows, active)
            if found is None or any(value < 0 for value in found):
                continue
            loss = _loss(rows, active, found)
            if best is None or loss < best[0]:
                coefficients = [Fraction(0)] * _COEFFICIENTS
                for index, value in zip(active, found, strict=True):
                    coefficients[index] = value
                best = (loss, tuple(coefficients))
    assert best is not None, "a positive multiple of a positive column always fits"
    a, b, c, e = best[1]
    return a, b, c, e


def _row(nodes: int, tokens: int, step_us: int) -> _Row:
    """One measurement's columns over its step, so that the wanted value is 1."""
    several = int(nodes >= 2)
    return tuple(Fraction(value, step_us) for value in (1, tokens, several, several * (nodes - 2)))


def _least_squares(rows: Sequence[_Row], active: tuple[int, ...]) -> tuple[Fraction, ...] | None:
    """The unconstrained solution in these columns; None when they do not determine one."""
    size = len(active)
    matrix = [
        [sum((row[i] * row[j] for row in rows), Fraction(0)) for j in active]
        + [sum((row[i] for row in rows), Fraction(0))]
        for i in active
    ]
    for column in range(size):
        pivot = next((line for line in range(column, size) if matrix[line][column]), None)
        if pivot is None:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        head = matrix[column][column]
        matrix[column] = [value / head for value in matrix[column]]
        for line in range(size):
            factor = matrix[line][column]
            if line != column and factor:
                matrix[line] = [mine - factor * other for mine, other in zip(matrix[line], matrix[column], strict=True)]
    return tuple(line[size] for line in matrix)


def _loss(rows: Sequence[_Row], active: tuple[int, ...], found: tuple[Fraction, ...]) -> Fraction:
    total = Fraction(0)
    for row in rows:
        error = sum((value * row[index] for index, value in zip(active, found, strict=True)), Fraction(-1))
        total += error * error
    return total
