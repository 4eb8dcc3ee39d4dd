"""One launch at its provider, through iroh-tinker's public surface. Every call may block: call it in a thread.

Its folder holds the specification before anything is created (`launch.json`), the state that iroh-tinker writes when
everything was (`job.json`), and the logs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from iroh_tinker.cloud.engines import create_engine
from iroh_tinker.cloud.job import JobManager, JobState
from iroh_tinker.cloud.spec import LaunchSpec, load_spec

from elasticgrid.launcher.launch_spec import REQUEST_KEY

_log = structlog.get_logger("launcher")

#: How much of what a provider said, and of a node's last output, goes into an event.
TEXT_LENGTH: Final = 8_192
TAIL_LINES: Final = 20
TAIL_LENGTH: Final = 4_096


class ProviderJob:
    """The iroh-tinker job of one launch.

    Args:
        launches_dir: where the folders of all launches are.
        name: of this launch.
    """

    def __init__(self, launches_dir: Path, name: str) -> None:
        self.name = name
        self._dir = launches_dir / name
        self._spec_path = self._dir / "launch.json"
        self._manager = JobManager(launches_dir)

    def prepare(self, document: dict[str, Any]) -> None:
        """Write the specification; it is whole or not there."""
        self._dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._dir.mkdir(mode=0o700, exist_ok=True)
        _write_atomically(self._spec_path, msgspec.json.encode(document))

    def discard(self) -> None:
        """Forget a launch that was prepared and of which nothing was created."""
        shutil.rmtree(self._dir, ignore_errors=True)

    def request_id(self) -> str:
        """The event id of the intent this was prepared for; empty when nothing was prepared here."""
        try:
            return str(msgspec.json.decode(self._spec_path.read_bytes()).get(REQUEST_KEY, ""))
        except (OSError, msgspec.MsgspecError):
            return ""

    def start(self) -> str | None:
        """Create and start everything.

        Returns:
            None when it runs; what the provider said when it does not. Then nothing of it runs, or the text says what
            could not be cleaned up.
        """
        try:
            state = self._manager.launch(self._spec_path)
        except Exception as error:  # an engine is somebody else's code and may raise anything
            text = self._provider_text(error)
            problem = self.release(text)
            return f"{text}\n{problem}" if problem else text
        self._save_for_manager(state)
        return None

    def failure(self) -> str | None:
        """What the provider said in a start that failed; None when no such start is known."""
        state = self._load()
        return _said(state) if state is not None and state.status != "running" and state.last_error else None

    def adopt(self) -> bool:
        """Whether all that was to be started was, by a launcher that could not say so any more."""
        state = self._load()
        if state is None:
            state = self._unrecorded()
            if not _all_run(state):
                return False
        elif state.status != "running":
            return False
        self._save_for_manager(state)
        return True

    def release(self, text: str = "") -> str:
        """Stop and delete whatever a start that did not come to its end has left.

        Args:
            text: why it did not; kept with the state.

        Returns:
            Empty, or what could not be cleaned up and why.
        """
        try:
            state = self._unrecorded()
            state.last_error = text or None
            self._manager.save(state)
            stopped = self.stop()
        except Exception as error:  # an engine is somebody else's code and may raise anything
            _log.warning("a launch that failed could not be cleaned up", launch=self.name, error=str(error))
            return f"not cleaned up: {_words(error)}"
        return "" if stopped else "not cleaned up: something of it still runs"

    def stop(self) -> bool:
        """Stop everything and look whether it did: True when nothing of it runs any more."""
        state = self._load() or self._unrecorded()
        if state.status != "running":
            # iroh-tinker notes that it stopped a job before anybody looked, and then would not stop it again.
            state.status = "running"
        self._save_for_manager(state)
        self._manager.stop(self.name)
        return "running" not in self.statuses().values()

    def statuses(self) -> dict[int, str]:
        """`running` or `stopped` by rank, as the engine says. Raises what the engine raises: then nothing is known."""
        state = self._load() or self._unrecorded()
        return _statuses(state, self._spec())

    def tail(self, rank: int) -> str:
        """The end of a node's output, empty when it cannot be had."""
        with contextlib.suppress(Exception):  # an engine is somebody else's code; the text is only for people
            return str(self._manager.logs(self.name, rank, tail=TAIL_LINES))[-TAIL_LENGTH:]
        return ""

    def _spec(self) -> LaunchSpec:
        return load_spec(self._spec_path)

    def _load(self) -> JobState | None:
        """The recorded state; None when there is none, or half of one: it is not written atomically."""
        try:
            return self._manager.load(self.name)
        except (KeyError, ValueError, TypeError, OSError):
            return None

    def _unrecorded(self) -> JobState:
        """A state for a job of which only the specification is known."""
        spec = self._spec()
        return JobState(
            name=self.name,
            status="running",
            engine=spec.resources.infra[0],
            spec_path=str(self._spec_path),
            job_dir=str(self._dir),
            created="",
            world_size=spec.world_size,
            backend=spec.backend,
            nodes=[{"rank": rank, "host": ""} for rank in range(spec.world_size)],
        )

    def _save_for_manager(self, state: JobState) -> None:
        """Write down what iroh-tinker needs to find the engine again.

        It keeps the engine's mere name, which has lost the region or names no engine at all, and a copy of the
        specification that may not have been written, or only half of it.
        """
        state.engine = self._spec().resources.infra[0]
        _write_atomically(self._dir / "spec.json", self._spec_path.read_bytes())
        self._manager.save(state)

    def _provider_text(self, error: Exception) -> str:
        """The provider's own words: what iroh-tinker puts around them names the launch, and names can mislead."""
        state = self._load()
        if state is not None and state.status == "failed" and state.last_error:
            return _said(state)
        return _words(error)


def _all_run(state: JobState) -> bool:
    try:
        statuses = _statuses(state, load_spec(state.spec_path))
    except Exception as error:  # an engine is somebody else's code and may raise anything
        _log.warning("what an earlier launcher began cannot be looked at", launch=state.name, error=str(error))
        return False
    return len(statuses) == state.world_size and set(statuses.values()) == {"running"}


def _statuses(state: JobState, spec: LaunchSpec) -> dict[int, str]:
    engine = create_engine(spec.resources.infra[0], spec)
    return {int(rank): str(status) for rank, status in engine.status(state.cluster()).items()}


def _said(state: JobState) -> str:
    return str(state.last_error).removeprefix(f"{state.engine}: ")[:TEXT_LENGTH]


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:TEXT_LENGTH]


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
