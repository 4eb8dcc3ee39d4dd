"""Grid files: the providers a grid is made of, in plain units."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from elasticgrid.config.document import load, shortened
from elasticgrid.config.fields import Fields, Quantity
from elasticgrid.config.files import read_source
from elasticgrid.config.job_file import MAX_NODES
from elasticgrid.config.problems import Problems, name_hint
from elasticgrid.core.errors import InvalidGrid
from elasticgrid.core.names import is_name
from elasticgrid.core.spec import PPM, ProviderSpec

MARKETS = {"on_demand": "on_demand", "on-demand": "on_demand", "spot": "spot"}
ENGINES = ("local", "ssh", "gcp", "aws", "azure")
#: In iroh-tinker's table of engines and not in its package.
_MISSING = frozenset(("sky", "spotty"))
#: Engines that need to be told where: `gcp/us-central1`.
_REGIONAL = frozenset(("gcp", "aws", "azure"))

NUMBERS = {
    "max_nodes": Quantity("max_nodes", most=MAX_NODES),
    "slice_nodes": Quantity("slice_nodes", most=MAX_NODES),
    "price_usd_per_hour": Quantity("price_microdollars_per_hour", PPM),
    "tier": Quantity("tier", most=1_000),
}

_MODULE_ENGINE = re.compile(r"module=[A-Za-z_][\w.]*:[A-Za-z_]\w*(/.+)?")
#: `us-central1-a` of one cloud and `us-east-1a` of another: a region with a letter for the zone in it.
_ZONE = re.compile(r"([a-z]+-[a-z]+\d+)-[a-z]|([a-z]+(?:-[a-z]+)+-\d+)[a-z]")


def read_grid(path: Path) -> tuple[ProviderSpec, ...]:
    """The providers in the file at `path`.

    Raises:
        NotFound: there is no such file.
        InvalidGrid: the file is wrong; the error tells every problem with its line.
    """
    return parse_grid(read_source(path, InvalidGrid), file=str(path))


def parse_grid(source: bytes | str, *, file: str) -> tuple[ProviderSpec, ...]:
    """The providers that `source` (YAML, or JSON when `file` ends in `.json`) lists, in its order.

    Raises:
        InvalidGrid: the text is wrong. The first problem is the error itself, the others are its story.
    """
    problems = Problems(file)
    root = load(source, problems)
    if root is None:
        problems.raise_as(InvalidGrid)
        raise AssertionError("text without a tree has a problem")
    fields = Fields(root, problems)
    entries = fields.sections("providers")
    if not entries and not problems.concerns("providers"):
        fields.missing("providers", "list at least one provider: `- name: here`")
    written = [_provider(entry) for entry in entries]
    providers: dict[str, ProviderSpec] = {}
    lines: dict[str, int] = {}
    for entry, provider in zip(entries, told_apart(written), strict=True):
        if provider.name in providers and not entry.absent("name"):
            entry.wrong(
                "name",
                f"`{provider.name}` is the provider on line {lines[provider.name]} already",
                "two of one name differ in region, market or accelerator; else give each its own",
            )
        elif not is_name(provider.name):
            entry.wrong("name", f"`{shortened(provider.name)}` is too long for a name", "give each its own")
        providers.setdefault(provider.name, provider)
        lines.setdefault(provider.name, entry.line)
    fields.done()
    problems.raise_as(InvalidGrid)
    return tuple(providers.values())


def told_apart(providers: Sequence[ProviderSpec]) -> list[ProviderSpec]:
    """The providers, those of one name called by it and what tells them apart: `aws-us-east-1-spot`.

    Region and market are in the name of each of them, and the accelerator where these are the same. A name that only
    one has stays, and so does that of what nothing tells apart.
    """
    given = Counter(each.name for each in providers)
    places = Counter((each.name, _place(each)) for each in providers)
    kinds = Counter((each.name, _place(each), _accelerator(each)) for each in providers)

    def name_of(each: ProviderSpec) -> str:
        if given[each.name] == 1 or kinds[each.name, _place(each), _accelerator(each)] > 1:
            return each.name
        alone = places[each.name, _place(each)] == 1
        return "-".join((each.name, _place(each)) if alone else (each.name, _place(each), _accelerator(each)))

    return [msgspec.structs.replace(each, name=name_of(each)) for each in providers]


def _place(provider: ProviderSpec) -> str:
    market = provider.market.replace("_", "-")
    return f"{_as_name(provider.region)}-{market}" if provider.region else market


def _accelerator(provider: ProviderSpec) -> str:
    return _as_name(provider.accelerator) or "none"


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _provider(fields: Fields) -> ProviderSpec:
    name = fields.name("name", "add `name: here`")
    engine = _engine(fields)
    region = _region(fields, engine)
    market = fields.choice("market", MARKETS, "on_demand")
    if fields.absent("max_nodes"):
        fields.missing("max_nodes", "say how many nodes it may hold at once: `max_nodes: 4`")
    numbers = {"max_nodes": 0, **fields.quantities(NUMBERS, ProviderSpec)}
    _whole_slices(fields, numbers["max_nodes"], numbers.get("slice_nodes", 1))
    provider = ProviderSpec(
        name=name,
        engine=engine,
        region=region,
        zone=fields.text("zone"),
        market=market,
        accelerator=fields.text("accelerator"),
        quota_pool=fields.text("quota_pool"),
        params=fields.text_map("params"),
        **numbers,
    )
    fields.done()
    return provider


def _engine(fields: Fields) -> str:
    engine = fields.text("engine", "local")
    family, _, target = engine.partition("/")
    if family.startswith("module="):
        if not _MODULE_ENGINE.fullmatch(engine):
            fields.wrong("engine", f"`{shortened(engine)}` names no class", "write module=package.module:Class")
    elif family in _MISSING:
        fields.wrong(
            "engine",
            f"iroh-tinker names the engine `{family}` and does not have it",
            f"one of {', '.join(ENGINES)}, or module=package.module:Class",
        )
    elif family not in ENGINES:
        fields.wrong("engine", f"there is no engine `{shortened(family)}`", name_hint(family, (*ENGINES, "module=")))
    elif family in _REGIONAL and not target:
        fields.wrong("engine", f"the engine `{family}` must know its region", f"write {family}/REGION")
    return engine


def _region(fields: Fields, engine: str) -> str:
    """The region: the field's, or the one in the engine's reference."""
    family, _, target = engine.partition("/")
    told = target if family in _REGIONAL else ""
    region = fields.text("region", told)
    field = "engine" if fields.absent("region") else "region"
    zone = _ZONE.fullmatch(region)
    if zone is not None:
        fields.wrong(field, f"`{region}` is a zone, not a region", f"region {zone[1] or zone[2]}, and `zone: {region}`")
    elif told and region != told:
        fields.wrong(
            "region", f"`{shortened(region)}` is not the region in the engine, `{shortened(told)}`", "name one"
        )
    return region


def _whole_slices(fields: Fields, nodes: int, slice_nodes: int) -> None:
    if nodes % slice_nodes:
        below = nodes - nodes % slice_nodes
        fields.wrong(
            "max_nodes",
            f"{nodes} nodes do not come in slices of {slice_nodes}",
            f"nearest: {below} or {below + slice_nodes}",
        )
