"""One launch at its provider, through iroh-tinker's public surface. Every call may block: call it in a thread.

Its folder holds the specification before anything is created (`launch.json`), the state that iroh-tinker writes when
everything was (`job.json`), why nothing came of it (`failure.json`), and the logs.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import Any, Final

import msgspec
import structlog
from iroh_tinker.cloud.engines import create_engine
from iroh_tinker.cloud.job import JobManager, JobState
from iroh_tinker.cloud.spec import LaunchSpec, load_spec

from elasticgrid.core import failures
from elasticgrid.core.errors import InvalidInput, SetupFailed
from elasticgrid.core.events import FailureClass
from elasticgrid.launcher.bundle_store import BundleStore, BundleWish, write_atomically
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.launch_files import (
    BUNDLE_FILE,
    BUNDLE_KEY,
    REQUEST_KEY,
    SECRETS_KEY,
    WORKSPACE_DIR,
    BundleFile,
)
from elasticgrid.launcher.secret_files import bring_secrets
from elasticgrid.launcher.unpack import unpack

_log = structlog.get_logger("launcher")

#: How much of what a provider said, and of a node's last output, goes into an event.
TEXT_LENGTH: Final = 8_192
TAIL_LINES: Final = 20
TAIL_LENGTH: Final = 4_096


class Trouble(msgspec.Struct, frozen=True):
    """Why nothing came of a launch: in the provider's words where it was the provider, and its class."""

    text: str
    failure: FailureClass


class ProviderJob:
    """The iroh-tinker job of one launch.

    Args:
        config: where the folders of all launches and the bundles are, and what of this machine no job is given.
        name: of this launch.
    """

    def __init__(self, config: LauncherConfig, name: str) -> None:
        self.name = name
        self._dir = config.launches_dir / name
        self._bundles = BundleStore(config.bundles_dir, config.closed)
        self._closed = config.closed
        self._spec_path = self._dir / "launch.json"
        self._trouble_path = self._dir / "failure.json"
        self._manager = JobManager(config.launches_dir)

    def prepare(self, document: dict[str, Any]) -> None:
        """Write the specification; it is whole or not there."""
        self._dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._dir.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._spec_path, msgspec.json.encode(document))

    def discard(self) -> None:
        """Forget a launch that was prepared and of which nothing was created."""
        shutil.rmtree(self._dir, ignore_errors=True)

    def request_id(self) -> str:
        """The event id of the intent this was prepared for; empty when nothing was prepared here."""
        try:
            return str(msgspec.json.decode(self._spec_path.read_bytes()).get(REQUEST_KEY, ""))
        except (OSError, msgspec.MsgspecError):
            return ""

    def start(self) -> Trouble | None:
        """Create and start everything.

        Returns:
            None when it runs; why it does not otherwise. Then nothing of it runs, or the text says what could not be
            cleaned up.
        """
        try:
            document = msgspec.json.decode(self._spec_path.read_bytes())
            bring_secrets(document.get(SECRETS_KEY) or {}, self._dir, self._closed)
            self._bundle(document.get(BUNDLE_KEY))
            state = self._manager.launch(self._spec_path)
        except Exception as error:  # an engine is somebody else's code and may raise anything
            return self.release(self._trouble(error))
        self._save_for_manager(state)
        return None

    def failure(self) -> Trouble | None:
        """Why a start failed; None when no start is known to have failed."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._trouble_path.read_bytes(), type=Trouble)
        state = self._load()
        if state is not None and state.status != "running" and state.last_error:
            return _classified(_said(state))
        return None

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

    def release(self, trouble: Trouble) -> Trouble:
        """Stop and delete whatever a start that did not come to its end has left.

        Args:
            trouble: why it did not; kept in its folder.

        Returns:
            The same; with what could not be cleaned up and why, where something could not.
        """
        try:
            write_atomically(self._trouble_path, msgspec.json.encode(trouble))
            self._manager.save(self._unrecorded())
            stopped = self.stop()
        except Exception as error:  # an engine is somebody else's code and may raise anything
            _log.warning("a launch that failed could not be cleaned up", launch=self.name, error=str(error))
            return Trouble(f"{trouble.text}\nnot cleaned up: {_words(error)}", trouble.failure)
        return trouble if stopped else Trouble(f"{trouble.text}\nnot cleaned up: something runs", trouble.failure)

    def stop(self) -> bool:
        """Stop everything and look whether it did: True when nothing of it runs any more."""
        state = self._load() or self._unrecorded()
        if state.status != "running":
            # iroh-tinker notes that it stopped a job before anybody looked, and then would not stop it again.
            state.status = "running"
        self._save_for_manager(state)
        self._manager.stop(self.name)
        return all(status == "stopped" for status in self.statuses().values())

    def statuses(self) -> dict[int, str]:
        """`running`, `stopped` or `unknown` by rank, as the engine says.

        Raises what the engine raises: then nothing is known.
        """
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
        write_atomically(self._dir / "spec.json", self._spec_path.read_bytes())
        self._manager.save(state)

    def bundle_sha256(self) -> str:
        """Of the bundle that it was started with; empty when there is none."""
        try:
            return msgspec.json.decode((self._dir / BUNDLE_FILE).read_bytes(), type=BundleFile).digest
        except (OSError, msgspec.MsgspecError):
            return ""

    def _bundle(self, wanted: Any) -> None:
        """Make the job's bundle, where one is wanted, and unpack it where it is wanted here.

        Raises:
            InvalidInput: it cannot be made of the job's folders.
        """
        if wanted is None:
            return
        wish = msgspec.convert(wanted, BundleWish)
        bundle = self._bundles.bundle(wish)
        write_atomically(self._dir / BUNDLE_FILE, msgspec.json.encode(BundleFile(str(bundle.archive), bundle.digest)))
        if wish.here:
            unpack(bundle.archive, self._dir / WORKSPACE_DIR, bundle.digest)

    def _trouble(self, error: Exception) -> Trouble:
        """The provider's own words: what iroh-tinker puts around them names the launch, and names can mislead."""
        if isinstance(error, InvalidInput):
            return Trouble(_words(error), "invalid")
        if isinstance(error, SetupFailed):
            again = error.exit_code == failures.EXIT_TEMPORARY_FAILURE
            return Trouble(_words(error), "transient" if again else "invalid")
        state = self._load()
        if state is not None and state.status == "failed" and state.last_error:
            return _classified(_said(state))
        return _classified(_words(error))


def _classified(text: str) -> Trouble:
    return Trouble(text, failures.classify(text, operation="create"))


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
