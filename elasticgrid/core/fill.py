"""How many nodes each provider gives, once it is known which may: whole slices, the spot cap, cheap or even.

Which totals are possible at all is kept as a set of bits in one integer (bit n: n nodes are possible), so that slices
of any sizes are answered exactly: 8 nodes out of slices of 3 and 4 are two of 4, and no greedy step may spoil that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Offer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A provider that may give nodes.

    Attributes:
        free: nodes it may give, whole slices or not.
        holds: nodes the job keeps there already; counted by `balance`.
    """

    provider: str
    free: int
    slice_nodes: int = 1
    spot: bool = False
    holds: int = 0

    @property
    def slices(self) -> int:
        """Whole slices it may give."""
        return self.free // self.slice_nodes


class Fill(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is taken from each offer, in the order of the offers.

    Attributes:
        spot_cap: the cap that was kept: the one asked for, or the least one under which the nodes could be had.
    """

    nodes: tuple[int, ...]
    spot_cap: int


def possible_totals(offers: Sequence[Offer], limit: int) -> int:
    """The numbers of nodes, up to `limit`, that can be taken from the offers together, as bits."""
    totals = 1
    for offer in offers:
        totals = _with_offer(totals, offer, limit)
    return totals


def _with_offer(totals: int, offer: Offer, limit: int) -> int:
    mask = (1 << (limit + 1)) - 1
    left, step = min(offer.slices, limit // offer.slice_nodes), 1
    while left > 0:
        slices = min(step, left)
        totals |= (totals << (slices * offer.slice_nodes)) & mask
        left -= slices
        step *= 2
    return totals


class _Rest(msgspec.Struct, frozen=True, gc=False):
    """What the offers from some place on can give together, on-demand and spot apart, as bits."""

    on_demand: int
    spot: int

    def least_spot(self, nodes: int, cap: int) -> int | None:
        """The fewest spot nodes, at most `cap`, with which `nodes` can be had exactly; None when they cannot."""
        first = max(0, nodes - self.on_demand.bit_length() + 1)
        last = min(nodes, cap, self.spot.bit_length() - 1)
        for spot in range(first, last + 1):
            if self.spot >> spot & 1 and self.on_demand >> (nodes - spot) & 1:
                return spot
        return None


def _rests(offers: Sequence[Offer], nodes: int) -> list[_Rest]:
    """For each place in the offers, and for the end, what is left from there on."""
    rests = [_Rest(1, 1)]
    for offer in reversed(offers):
        after = rests[-1]
        if offer.spot:
            rests.append(_Rest(after.on_demand, _with_offer(after.spot, offer, nodes)))
        else:
            rests.append(_Rest(_with_offer(after.on_demand, offer, nodes), after.spot))
    rests.reverse()
    return rests


def fill(offers: Sequence[Offer], nodes: int, *, spot_cap: int, prefer: Literal["cost", "balance"]) -> Fill:
    """Take exactly `nodes` nodes, which must be possible, from offers that stand in order of price.

    At most `spot_cap` of them are spot, unless on-demand cannot give the rest; then as few more as it takes.
    """
    least = _rests(offers, nodes)[0].least_spot(nodes, nodes)
    assert least is not None
    cap = max(spot_cap, least)
    taken = _cheapest(offers, nodes, cap) if prefer == "cost" else _even(offers, nodes, cap)
    return Fill(nodes=tuple(taken), spot_cap=cap)


def _cheapest(offers: Sequence[Offer], nodes: int, cap: int) -> list[int]:
    """As much as can be from each offer in turn, as long as the others can give exactly the rest."""
    rests = _rests(offers, nodes)
    taken = []
    for index, offer in enumerate(offers):
        given = _nearest(offer, nodes, nodes, cap, rests[index + 1])
        taken.append(given)
        nodes -= given
        cap -= given if offer.spot else 0
    return taken


def _nearest(offer: Offer, wanted: int, nodes: int, cap: int, rest: _Rest) -> int:
    """Whole slices of the offer, nearest to `wanted` nodes, that leave the rest possible."""
    most = min(offer.slices, (min(nodes, cap) if offer.spot else nodes) // offer.slice_nodes)
    choices = [slices * offer.slice_nodes for slices in range(most + 1)]
    if wanted >= nodes:
        choices.reverse()
    else:
        choices.sort(key=lambda given: (abs(given - wanted), given))
    for given in choices:
        if rest.least_spot(nodes - given, cap - given if offer.spot else cap) is not None:
            return given
    raise AssertionError("the rest was possible before")


def _even(offers: Sequence[Offer], nodes: int, cap: int) -> list[int]:
    """Every provider of the job as full as the others, as far as capacity, slices and the cap allow."""
    taken = [0] * len(offers)
    order = sorted(range(len(offers)), key=lambda index: -offers[index].slice_nodes)
    rests = _rests([offers[index] for index in order], nodes)
    for place, index in enumerate(order):
        offer = offers[index]
        left = sorted(order[place:])
        share = dict(zip(left, _levels([offers[each] for each in left], nodes, cap), strict=True))
        if offer.slice_nodes == 1:
            for each in left:
                taken[each] = share[each]
            break
        given = _nearest(offer, share[index], nodes, cap, rests[place + 1])
        taken[index] = given
        nodes -= given
        cap -= given if offer.spot else 0
    return taken


def _levels(offers: Sequence[Offer], nodes: int, cap: int) -> list[int]:
    """The even shares without regard to slices."""
    shares = _level(offers, nodes)
    if sum(share for offer, share in zip(offers, shares, strict=True) if offer.spot) <= cap:
        return shares
    spot = iter(_level([offer for offer in offers if offer.spot], cap))
    on_demand = iter(_level([offer for offer in offers if not offer.spot], nodes - cap))
    return [next(spot) if offer.spot else next(on_demand) for offer in offers]


def _level(offers: Sequence[Offer], nodes: int) -> list[int]:
    """Fill all to one level; what does not come out even goes to the cheapest, which stand first."""

    def at(level: int) -> list[int]:
        return [min(max(level - offer.holds, 0), offer.free) for offer in offers]

    low, high = 0, max((offer.holds + offer.free for offer in offers), default=0)
    while low < high:
        middle = (low + high) // 2
        if sum(at(middle)) >= nodes:
            high = middle
        else:
            low = middle + 1
    shares = at(low)
    below = at(low - 1) if low else shares
    too_many = sum(shares) - nodes
    for index in reversed(range(len(offers))):
        if too_many > 0 and shares[index] > below[index]:
            shares[index] -= 1
            too_many -= 1
    return shares
