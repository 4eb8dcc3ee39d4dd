"""The incident report as one HTML page that opens offline and asks the network for nothing.

The page carries Plotly's script and its own; a policy in its head allows these two by their hashes and nothing else,
so a text of the log that looks like a script is a text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any, Final

from elasticgrid.core.errors import NotFound
from elasticgrid.review import report_plots as plots
from elasticgrid.review import report_sections as sections
from elasticgrid.review.report_data import ReportData
from elasticgrid.review.report_sections import escaped

_ASSETS: Final = files("elasticgrid.review") / "report_assets"


def html_report(data: ReportData) -> str:
    """The page.

    Raises:
        NotFound: Plotly, which brings the script that draws, is not installed.
    """
    scripts = (_plotly(), (_ASSETS / "report.js").read_text(encoding="utf-8"))
    style = (_ASSETS / "report.css").read_text(encoding="utf-8")
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
        " form-action 'none'"
    )
    drawn: dict[str, Any] = {
        "span": plots.span(data),
        "plots": {
            "lanes": plots.lanes_plot(data),
            "size": plots.size_plot(data),
            "queue": plots.queue_plot(data),
            "rate": plots.rate_plot(data),
            "cost": plots.cost_plot(data),
        },
    }
    title = sections.title(data)
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>",
            '<a class="skip" href="#content">Skip to the report</a>',
            sections.header(data),
            '<main id="content" tabindex="-1">',
            *sections.all_sections(data),
            "</main>",
            sections.footer(data),
            f'<script type="application/json" id="report-data">{_inert(drawn)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as missing:
        raise NotFound(
            "Plotly, which draws the report, is not installed",
            hint="pip install 'elasticgrid[cli]', or write the report to a .md file",
        ) from missing
    # A script's text ends where it is closed, whatever the script means by it.
    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _inert(value: Any) -> str:
    """JSON that no parser of HTML takes for anything else."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
