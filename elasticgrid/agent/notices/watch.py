"""Which sources of notices a node asks, and the asking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from elasticgrid import environment
from elasticgrid.agent.notices import aws, azure, gcp
from elasticgrid.agent.notices.file import FileSource
from elasticgrid.agent.notices.notice import Notice, Source, SourceTrouble
from elasticgrid.clock import Clock
from elasticgrid.core.errors import InvalidInput

_log = structlog.get_logger("elasticgrid.agent")

LONGEST_PAUSE_S: Final = 60.0
#: How long the sources may take to hear that the node was left.
FAREWELL_S: Final = 3.0
#: Where Linux says who made the machine, and what the clouds write there.
VENDOR_FILE: Final = Path("/sys/class/dmi/id/sys_vendor")
_VENDORS: Final = {"amazon": "aws", "google": "gcp", "microsoft": "azure"}
_FILE: Final = "file:"
_HINT: Final = "a list of aws, gcp, azure, file:PATH, signal and auto"


class NoticeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where notices come from.

    Attributes:
        names: `aws`, `gcp`, `azure`, `file:PATH`.
        by_signal: whether the first SIGTERM is a notice, with `signal_notice_s` until the node is taken.
        urls: of the metadata services, where they are not the usual ones.
    """

    names: tuple[str, ...] = ()
    by_signal: bool = False
    signal_notice_s: float = 30.0
    urls: dict[str, str] = {}

    @staticmethod
    def from_environment(environ: Mapping[str, str], *, vendor_file: Path = VENDOR_FILE) -> NoticeSettings:
        """The settings in `environ`; without any the node asks nobody.

        Raises:
            InvalidInput: something in the list is no source.
        """
        names: list[str] = []
        by_signal = False
        for part in environ.get(environment.NOTICES, "").split(","):
            name = part.strip()
            if name == "signal":
                by_signal = True
            elif name == "auto":
                names += [found] if (found := _this_cloud(vendor_file)) else []
            elif name in _CLOUDS or (name.startswith(_FILE) and len(name) > len(_FILE)):
                names.append(name)
            elif name:
                raise InvalidInput(f"{name!r} is no source of notices", where=environment.NOTICES, hint=_HINT)
        urls = {name: environ[variable] for name, variable in _URL_VARIABLES.items() if environ.get(variable)}
        return NoticeSettings(
            names=tuple(dict.fromkeys(names)),
            by_signal=by_signal,
            signal_notice_s=_signal_notice_s(environ),
            urls=urls,
        )

    def sources(self) -> list[Source]:
        """The sources to ask."""
        return [
            FileSource(Path(name.removeprefix(_FILE)))
            if name.startswith(_FILE)
            else _CLOUDS[name](self.urls.get(name, _USUAL_URLS[name]))
            for name in self.names
        ]


_CLOUDS: Final[dict[str, Callable[[str], Source]]] = {
    "aws": aws.AwsSource,
    "gcp": gcp.GcpSource,
    "azure": azure.AzureSource,
}
_USUAL_URLS: Final = {"aws": aws.BASE_URL, "gcp": gcp.BASE_URL, "azure": azure.BASE_URL}
_URL_VARIABLES: Final = {
    "aws": environment.AWS_METADATA_URL,
    "gcp": environment.GCP_METADATA_URL,
    "azure": environment.AZURE_METADATA_URL,
}


def _this_cloud(vendor_file: Path) -> str:
    """The cloud this machine is of, by what its firmware says; empty for any other machine."""
    try:
        vendor = vendor_file.read_text(errors="replace").strip().lower()
    except OSError:
        return ""
    return next((name for word, name in _VENDORS.items() if vendor.startswith(word)), "")


def _signal_notice_s(environ: Mapping[str, str]) -> float:
    text = environ.get(environment.SIGNAL_NOTICE_S, "").strip()
    try:
        seconds = float(text) if text else NoticeSettings().signal_notice_s
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise InvalidInput(f"{text!r} is not usable", where=environment.SIGNAL_NOTICE_S, hint="seconds above 0")
    return seconds


class NoticeWatch:
    """Asks every source again and again and hands on what is new.

    Args:
        sources: to ask.
        on_notice: called with each notice that differs from the source's last one.
        clock: how to wait.

    Attributes:
        trouble: how often a source could not be asked.
    """

    def __init__(self, sources: list[Source], on_notice: Callable[[Notice], None], clock: Clock) -> None:
        self.trouble = 0
        self._sources = sources
        self._on_notice = on_notice
        self._clock = clock

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as asking:
            for source in self._sources:
                asking.create_task(self._ask(source))

    async def _ask(self, source: Source) -> None:
        last: Notice | None = None
        failures = 0
        while True:
            try:
                notice = await source.look()
            except SourceTrouble as error:
                failures += 1
                self.trouble += 1
                if failures == 1:
                    _log.warning("a source of notices cannot be asked; trying on", error=str(error))
            else:
                failures = 0
                # The time of a notice without one is counted from when it was read: only the first reading is true.
                if notice is not None and (last is None or notice.text != last.text):
                    last = notice
                    self._on_notice(notice)
            await self._clock.sleep(min(source.pause_s * 2 ** min(failures, 6), max(LONGEST_PAUSE_S, source.pause_s)))

    async def node_left(self) -> None:
        """Tell the sources that nothing of the job runs here any more; briefly."""

        async def tell(source: Source) -> None:
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await source.node_left()
            except (SourceTrouble, TimeoutError) as error:
                _log.warning("a source of notices was not told that the node was left", error=str(error))

        await asyncio.gather(*(tell(source) for source in self._sources))
