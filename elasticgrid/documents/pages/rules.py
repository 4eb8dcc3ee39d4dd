"""The page of the scaling rules: in their order, with what each goes by."""

from __future__ import annotations

import ast
import inspect
from types import FunctionType
from typing import Final

from elasticgrid.config.job_file import SCALING
from elasticgrid.core import gaps, scaling
from elasticgrid.documents.pages.markdown import code, page, summary, table

_NAME_IN_FILE: Final = {quantity.field: name for name, quantity in SCALING.items()}


def rules_page() -> str:
    """Every rule in order."""
    return page(
        "Scaling rules",
        f"Policy {code(scaling.POLICY_NAME)} version {scaling.POLICY_VERSION}. The rules are asked in this order, and "
        "the first that speaks decides; the decision names it with all numbers that were compared. The fields are "
        "those of [scaling](job-file.md#scaling) in the job file.",
        table(
            ("", "rule", "says", "goes by"),
            (
                (
                    str(number),
                    code(name),
                    summary(rule).replace("\n\n", " "),
                    ", ".join(code(_NAME_IN_FILE.get(field, field)) for field in policy_fields(rule)),
                )
                for number, (name, rule) in enumerate(scaling.RULES, 1)
            ),
        ),
        f"Signals that are older than {scaling.STALE_MS // 1000} s and than {scaling.STALE_STEPS} steps say nothing of "
        "now. When a round's samples were silent for "
        f"{gaps.FLOOR_MS // 60_000} minutes and {gaps.STEPS} times the usual step, and went on, that is on record as a "
        f"[decision.gap](events.md#decisiongap); evidence then are the steps completed from {gaps.SETTLE_MS // 1000} s "
        "behind it on.",
        "Besides these, and before them, a decision may name what a job's tenant may have ([quotas]"
        "(../how-to/share-a-grid.md#quotas)): `budget`, which takes all nodes away until the period ends, and `quota`, "
        "by which a job waits for nodes that its tenant's other jobs have, or grows less far.",
    )


def policy_fields(rule: object) -> list[str]:
    """The fields of the policy that a rule reads, itself or through the helpers of its module."""
    rules = {function for _, function in scaling.RULES}
    found: dict[str, None] = {}
    seen: set[object] = set()

    def look(function: object) -> None:
        if function in seen or not isinstance(function, FunctionType):
            return
        seen.add(function)
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "policy":
                found[node.attr] = None
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called = getattr(scaling, node.func.id, None)
                if called not in rules:
                    look(called)

    look(rule)
    return list(found)
