"""Grid files: providers in plain units, each different from the others and possible in itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticgrid.config import grid_file
from elasticgrid.config.grid_file import parse_grid, read_grid
from elasticgrid.config.templates import template
from elasticgrid.core.errors import InvalidGrid, NotFound
from elasticgrid.core.spec import ProviderSpec


def refused(text: str) -> InvalidGrid:
    with pytest.raises(InvalidGrid) as caught:
        parse_grid(text, file="grid.yaml")
    return caught.value


def test_a_name_and_a_capacity_are_enough() -> None:
    assert parse_grid("providers: [{name: here, max_nodes: 2}]", file="grid.yaml") == (
        ProviderSpec(name="here", max_nodes=2),
    )


def test_every_field_arrives_in_its_exact_unit() -> None:
    (provider,) = parse_grid(
        """
providers:
  - name: cloud-spot
    engine: gcp/us-central1
    zone: us-central1-a
    market: spot
    accelerator: a100
    max_nodes: 16
    slice_nodes: 4
    price_usd_per_hour: 1.35
    quota_pool: a100
    tier: 2
    params: {machine_type: a2, port: 22}
""",
        file="grid.yaml",
    )
    assert provider == ProviderSpec(
        name="cloud-spot",
        engine="gcp/us-central1",
        region="us-central1",
        zone="us-central1-a",
        market="spot",
        accelerator="a100",
        max_nodes=16,
        slice_nodes=4,
        price_microdollars_per_hour=1_350_000,
        quota_pool="a100",
        tier=2,
        params={"machine_type": "a2", "port": "22"},
    )


def test_no_number_of_a_provider_is_out_of_reach_of_a_file() -> None:
    numbers = {quantity.field for quantity in grid_file.NUMBERS.values()}
    other = {"name", "engine", "region", "zone", "market", "accelerator", "quota_pool", "params"}
    assert numbers | other == set(ProviderSpec.__struct_fields__)


@pytest.mark.parametrize(
    ("price", "microdollars"), [("0.1", 100_000), ("0.000001", 1), ("3", 3_000_000), ("1e-2", 10_000)]
)
def test_a_price_is_exact_to_the_micro_dollar(price: str, microdollars: int) -> None:
    (provider,) = parse_grid(f"providers: [{{name: a, max_nodes: 1, price_usd_per_hour: {price}}}]", file="grid.yaml")
    assert provider.price_microdollars_per_hour == microdollars


def test_the_template_is_valid_and_so_is_what_its_comments_show() -> None:
    text = template("grid")
    assert [provider.name for provider in parse_grid(text, file="grid.yaml")] == ["here"]
    plain, commented = text.split("by the example of spot nodes in a cloud:\n")
    shown = plain + "\n" + re.sub("^  # ", "  ", commented, flags=re.MULTILINE)
    assert [provider.name for provider in parse_grid(shown, file="grid.yaml")] == ["here", "cloud-spot"]


def test_a_file_is_read_and_a_missing_one_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(template("grid"))
    assert len(read_grid(path)) == 1
    with pytest.raises(NotFound):
        read_grid(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("entry", "field", "hint"),
    [
        ("engine: locl", "engine", "did you mean `local`?"),
        ("engine: gcp", "engine", "gcp/REGION"),
        ("engine: sky", "engine", "module=package.module:Class"),
        ("engine: spotty/us-east-1", "engine", "module=package.module:Class"),
        ("engine: module=a.b", "engine", "module=package.module:Class"),
        ("engine: gcp/us-central1-a", "engine", "region us-central1"),
        ("engine: aws/us-east-1, region: us-east-1a", "region", "region us-east-1,"),
        ("engine: aws/us-east-1, region: us-west-2", "region", "name one"),
        ("region: europe-west4-b", "region", "region europe-west4"),
        ("market: sport", "market", "did you mean `spot`?"),
        ("max_node: 3", "max_node", "did you mean `max_nodes`?"),
        ("slice_nodes: 3", "max_nodes", "nearest: 3 or 6"),
        ("slice_nodes: 0", "slice_nodes", "at least 1"),
        ("tier: -1", "tier", "at least 0"),
        ("price_usd_per_hour: -0.1", "price_usd_per_hour", "at least 0"),
        ("price_usd_per_hour: $1", "price_usd_per_hour", ""),
        ("price_usd_per_hour: 0.0000001", "price_usd_per_hour", ""),
        ("params: [a]", "params", ""),
    ],
)
def test_a_provider_that_cannot_be_is_refused_with_its_field_and_a_hint(entry: str, field: str, hint: str) -> None:
    error = refused(f"providers:\n  - {{name: a, max_nodes: 4}}\n  - {{name: b, max_nodes: 4, {entry}}}\n")
    assert error.where == f"grid.yaml:3: providers[1].{field}"
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("providers: []", "grid.yaml:1: providers"),
        ("providers:", "grid.yaml:1: providers"),
        ("providers: {a: b}", "grid.yaml:1: providers"),
        ("providers: [a]", "grid.yaml:1: providers[0]"),
        ("providers: [{max_nodes: 1}]", "grid.yaml:1: providers[0].name"),
        ("providers: [{name: a}]", "grid.yaml:1: providers[0].max_nodes"),
        ("provider: []", "grid.yaml:1: providers"),
    ],
)
def test_a_grid_without_a_usable_provider_is_refused(text: str, where: str) -> None:
    assert refused(text).where == where


def test_two_providers_that_nothing_tells_apart_are_refused_with_the_line_of_the_first() -> None:
    error = refused("providers:\n  - {name: a, max_nodes: 1}\n  - {name: a, max_nodes: 9, tier: 2}\n")
    assert error.where == "grid.yaml:3: providers[1].name"
    assert "line 2" in error.what
    assert "differ in region, market or accelerator" in error.hint


def test_providers_of_one_name_are_told_apart_by_region_market_and_accelerator() -> None:
    text = """\
providers:
  - {name: aws, engine: aws/us-east-1, market: spot, max_nodes: 4}
  - {name: aws, engine: aws/us-east-1, max_nodes: 4}
  - {name: aws, engine: aws/eu-west-1, market: spot, max_nodes: 4, accelerator: A100}
  - {name: aws, engine: aws/eu-west-1, market: spot, max_nodes: 4, accelerator: p5.48xlarge}
  - {name: here, max_nodes: 4}
  - {name: there, max_nodes: 4}
  - {name: there, market: spot, max_nodes: 4}
"""
    assert [provider.name for provider in parse_grid(text, file="grid.yaml")] == [
        "aws-us-east-1-spot",
        "aws-us-east-1-on-demand",
        "aws-eu-west-1-spot-a100",
        "aws-eu-west-1-spot-p5-48xlarge",
        "here",
        "there-on-demand",
        "there-spot",
    ]


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("aws", "{name: aws, engine: aws/us-east-1, max_nodes: 9}", "`aws` is the provider on line 2 already"),
        ("aws", "{name: aws-eu-west-1-spot, max_nodes: 9}", "is the provider on line 3 already"),
        ("a" * 55, "{name: here, max_nodes: 9}", "is too long for a name"),
    ],
)
def test_what_no_name_tells_apart_is_refused(name: str, more: str, says: str) -> None:
    text = (
        f"providers:\n  - {{name: {name}, engine: aws/us-east-1, max_nodes: 4}}\n"
        f"  - {{name: {name}, engine: aws/eu-west-1, market: spot, max_nodes: 4}}\n  - {more}\n"
    )
    with pytest.raises(InvalidGrid, match=says):
        parse_grid(text, file="grid.yaml")
