"""What a placement says for itself: every provider looked at, why a job waits, and why one can never run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from elasticgrid.core.errors import CannotPlace
from elasticgrid.core.events import Candidate, PlacementDecided
from elasticgrid.core.fill import Fill, Offer, possible_totals
from elasticgrid.core.fleet_state import Refusal, policy_refusal
from elasticgrid.core.spec import JobSpec, ProviderSpec

#: How many providers the sentence of a waiting job names.
REASONS_SAID: Final = 6


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """Every provider in order of price: an offer or a refusal for each, by name."""

    specs: list[ProviderSpec]
    offers: dict[str, Offer]
    refusals: dict[str, Refusal]

    def offer_list(self) -> list[Offer]:
        """The offers in order of price."""
        return [self.offers[spec.name] for spec in self.specs if spec.name in self.offers]


def looked_at(candidates: Candidates, filled: Fill | None, *, wanting: bool) -> tuple[Candidate, ...]:
    """Every provider with what was taken and why no more was.

    Args:
        filled: what was taken from the offers; None when nothing was.
        wanting: whether the job got less than its target.
    """
    offers = candidates.offer_list()
    taken = dict.fromkeys(candidates.offers, 0)
    spot_left = None
    if filled is not None:
        taken = {offer.provider: nodes for offer, nodes in zip(offers, filled.nodes, strict=True)}
        spot_left = filled.spot_cap - sum(taken[offer.provider] for offer in offers if offer.spot)
    more_wanted = wanting
    looked: list[Candidate] = []
    for spec in reversed(candidates.specs):
        offer = candidates.offers.get(spec.name)
        nodes = taken.get(spec.name, 0)
        if offer is None:
            refusal: Refusal | None = candidates.refusals[spec.name]
        else:
            refusal = _no_more(offer, nodes, spot_left) if more_wanted else None
        looked.append(
            Candidate(
                provider=spec.name,
                taken=nodes,
                free=offer.free if offer is not None else 0,
                price_microdollars_per_hour=spec.price_microdollars_per_hour,
                market=spec.market,
                refused=refusal.reason if refusal is not None else "",
                detail=refusal.detail if refusal is not None else "",
                until_ms=refusal.until_ms if refusal is not None else None,
            )
        )
        more_wanted = more_wanted or nodes > 0
    return tuple(reversed(looked))


def _no_more(offer: Offer, taken: int, spot_left: int | None) -> Refusal | None:
    """Why an offer gave no more although more was wanted; None when it was passed over for an even spread."""
    if taken == offer.free:
        return Refusal(reason="capacity", detail=f"all {offer.free} nodes that were free are taken")
    if spot_left is None:
        return Refusal(reason="capacity", detail=_has_free(offer))
    if offer.spot and spot_left < offer.slice_nodes:
        return Refusal(reason="spot_cap", detail="the job has as many spot nodes as its policy allows")
    if offer.slice_nodes > 1:
        return Refusal(reason="slice", detail=f"nodes come in slices of {offer.slice_nodes}")
    return None


def _has_free(offer: Offer) -> str:
    slices = f" in slices of {offer.slice_nodes}" if offer.slice_nodes > 1 else ""
    return f"{offer.free} nodes are free{slices}, too few for the job"


def waiting_because(looked: Sequence[Candidate], *, placed: int, target: int, least: int) -> str:
    """One sentence on why a job has less than its target."""
    begin = f"{placed} of {target} nodes are placed"
    if placed < least:
        begin += f", at least {least} are needed"
    reasons = [f"{each.provider}: {each.refused} ({each.detail})" for each in looked if each.refused]
    if len(reasons) > REASONS_SAID:
        reasons[REASONS_SAID:] = [f"and {len(reasons) - REASONS_SAID} more"]
    return "; ".join([begin, *reasons]) if looked else f"{begin}; the grid has no provider"


# --------------------------------------------------------------------------------------------------------------------
# Never
# --------------------------------------------------------------------------------------------------------------------


def never_because(spec: JobSpec, providers: Sequence[ProviderSpec], placement: PlacementDecided) -> CannotPlace | None:
    """Why the job can never run, given what the empty grid would do with it; None when it can."""
    unknown = _unknown_name(spec, providers)
    if unknown is not None:
        return unknown
    if placement.placed_nodes >= spec.min_nodes:
        return None
    fitting = [each for each in providers if _policy_allows(spec, each)]
    if not fitting:
        return CannotPlace(
            "no provider fits the job's placement policy",
            where="placement",
            hint="; ".join(f"{each.provider}: {each.detail}" for each in placement.candidates[:REASONS_SAID])
            or "the grid has no provider",
        )
    most = sum(each.max_nodes - each.max_nodes % each.slice_nodes for each in fitting)
    if most < spec.min_nodes:
        return CannotPlace(
            f"the job needs at least {spec.min_nodes} nodes, the providers that fit it have {most} together",
            where="min_nodes",
            hint=", ".join(f"{each.name} has {each.max_nodes}" for each in fitting[:REASONS_SAID]),
        )
    return _no_such_size(spec, fitting)


def _policy_allows(spec: JobSpec, provider: ProviderSpec) -> bool:
    price = provider.price_microdollars_per_hour
    refusal = policy_refusal(provider, spec.placement, price_microdollars_per_hour=price, market=provider.market)
    return refusal is None


def _unknown_name(spec: JobSpec, providers: Sequence[ProviderSpec]) -> CannotPlace | None:
    policy = spec.placement
    for field, asked, known in (
        ("providers", policy.providers, {each.name for each in providers}),
        ("regions", policy.regions, {each.region for each in providers} - {""}),
        ("accelerators", policy.accelerators, {each.accelerator for each in providers} - {""}),
    ):
        for index, name in enumerate(asked):
            if name not in known:
                return CannotPlace(
                    f"the grid has no {field.removesuffix('s')} {name!r}",
                    where=f"placement.{field}[{index}]",
                    hint=_name_hint(field, name, known, providers),
                )
    return None


def _name_hint(field: str, name: str, known: Iterable[str], providers: Sequence[ProviderSpec]) -> str:
    if field == "regions":
        region = next((each.region for each in providers if each.zone == name), "")
        if region:
            return f"{name!r} is a zone; its region is {region!r}"
    near = difflib.get_close_matches(name, sorted(known), n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"it has {', '.join(sorted(known)[:REASONS_SAID])}" if known else f"it has no {field}"


def _no_such_size(spec: JobSpec, fitting: Sequence[ProviderSpec]) -> CannotPlace:
    """The job's sizes fall between what whole slices make."""
    most = spec.max_nodes + spec.quantum * max(each.slice_nodes for each in fitting)
    offers = [Offer(provider=each.name, free=each.max_nodes, slice_nodes=each.slice_nodes) for each in fitting]
    totals = possible_totals(offers, most)
    possible = [n for n in range(1, most + 1) if totals >> n & 1 and n % spec.quantum == 0]
    below = [n for n in possible if n < spec.min_nodes][-1:]
    above = [n for n in possible if n > spec.max_nodes][:1]
    sizes = f"{spec.min_nodes}" if spec.min_nodes == spec.max_nodes else f"{spec.min_nodes} to {spec.max_nodes}"
    slices = ", ".join(f"{each.name} gives nodes in slices of {each.slice_nodes}" for each in fitting[:REASONS_SAID])
    nearest = " and ".join(map(str, below + above))
    return CannotPlace(
        f"no job of {sizes} nodes can be made up: {slices}",
        where="min_nodes",
        hint=f"the nearest possible sizes are {nearest}" if nearest else "no multiple of the job's quantum is possible",
    )
