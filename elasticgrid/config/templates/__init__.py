"""The commented example files that `elasticgrid init` writes."""

from __future__ import annotations

from importlib import resources
from typing import Literal

TemplateKind = Literal["job", "grid"]


def template(kind: TemplateKind) -> str:
    """The text of an example `job.yaml` or `grid.yaml`; it is valid as it stands."""
    return resources.files(__package__).joinpath(f"{kind}.yaml").read_text(encoding="utf-8")
