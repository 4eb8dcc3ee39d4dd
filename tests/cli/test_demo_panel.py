"""The demonstration's panel: whole at every width, and never higher than before."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from elasticgrid.core import events as ev
from elasticgrid.demo.progress import Progress
from elasticgrid.demo.view import View
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples

ARCHIVE = Path(__file__).parents[1] / "goldens" / "demo.egz"
RECORDS = list(ArchivedEvents(ARCHIVE))
MESSAGES = list(ArchivedSamples(ARCHIVE))


def at(sequence: int) -> View:
    """What is seen of a recorded demonstration after so many events."""
    submitted = next(each.event for each in RECORDS if isinstance(each.event, ev.Event) and each.event.tenant[0] != "_")
    view = View((submitted.tenant, submitted.job))
    seen = [record for record in RECORDS if record.sequence <= sequence]
    for record in seen:
        view.see_event(record)
    for message in MESSAGES:
        if message.time_ms <= seen[-1].recorded_ms:
            view.see_samples(message.sequence, message.time_ms, message.data)
    return view


def panel(view: View, width: int) -> list[str]:
    """The lines of the panel on a terminal."""
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system="truecolor", _environ={})
    with Progress(console, view) as progress:
        progress.update()
        shown = written.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")
    lines = plain[plain.rindex("╭") :].splitlines()
    return lines[: next(number for number, line in enumerate(lines) if line.startswith("╰")) + 1]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("sequence", [1, 4, 14, 31, 44, RECORDS[-1].sequence])
def test_the_panel_fits_keeps_its_height_and_says_its_numbers_whole(sequence: int, width: int) -> None:
    view = at(sequence)
    lines = panel(view, width)
    assert {len(line) for line in lines} == {min(width, 80)}
    assert len(lines) == 11
    text = "\n".join(lines)
    if view.signals.step_us:
        assert re.search(r" \d+ % for a worker, \d+ % for data ", text)
    training = "no step yet" if not view.step else f"step {view.step}"
    assert training in text
