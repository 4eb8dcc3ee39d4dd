"""Everything that reads bytes or text somebody else wrote: how it is called, what it may raise, what a good one is."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from elasticgrid import environment
from elasticgrid.agent.agreement import AskWhere, Position, lead_decoder, position_decoder
from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.notices.aws import AwsSource
from elasticgrid.agent.notices.azure import AzureSource
from elasticgrid.agent.notices.file import FileSource
from elasticgrid.agent.notices.gcp import GcpSource
from elasticgrid.agent.notices.notice import Source, SourceTrouble
from elasticgrid.agent.worker_files import read_error
from elasticgrid.bus.credentials import read_credentials
from elasticgrid.bus.subjects import parse_sample_subject
from elasticgrid.cli.times import time_ms
from elasticgrid.config.grid_file import parse_grid
from elasticgrid.config.job_file import parse_job
from elasticgrid.config.policy_file import parse_settings, read_policy
from elasticgrid.config.settings import resolve
from elasticgrid.config.skypilot_file import parse_task
from elasticgrid.core.errors import ElasticGridError
from elasticgrid.core.evidence import EvidenceFold
from elasticgrid.core.samples import SampleBatch, StepSample, admit, decode_batch, encode_batch
from elasticgrid.core.spec import JobSpec
from elasticgrid.gateway.auth import admin_key
from elasticgrid.gateway.bodies import InterruptRequest, PriorityRequest, ReasonRequest, ResizeRequest, decode_body
from elasticgrid.gateway.feed import EventFeed
from elasticgrid.gateway.first_interface import is_first_submit, read_first_submit
from elasticgrid.gateway.sessions import Session, read_session, signed_session
from elasticgrid.log.archive import read_archive
from elasticgrid.log.archive_format import read_seal
from elasticgrid.log.archive_secrets import without_credentials
from elasticgrid.log.codec import decode as decode_event
from elasticgrid.log.event_reader import ReadAnswer, StoredEvent, answer_decoder
from elasticgrid.projections.results import decode_cursor, encode_cursor
from elasticgrid.projections.views import Views
from elasticgrid.publish import checkpoint
from elasticgrid.publish.channel import agent_decoder, worker_decoder
from elasticgrid.publish.settings import read_settings
from elasticgrid.publish.spool import Spool

Reads = Callable[[bytes], object]
TOP = Path(__file__).parents[2]


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """Something that reads what others wrote.

    Attributes:
        name: for people.
        module: where it is.
        reads: calls it.
        good: examples that it takes, to be damaged.
        may_raise: its refusals; everything else is a failure.
    """

    name: str
    module: str
    reads: Reads
    good: tuple[bytes, ...]
    may_raise: tuple[type[Exception], ...] = (ElasticGridError,)


def text_of(data: bytes) -> str:
    """As text, whatever it is."""
    return data.decode("utf-8", "surrogateescape")


def in_file(data: bytes, read: Callable[[Path], object], name: str = "file", mode: int = 0o600) -> object:
    """What a reader of files makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        path.chmod(mode)
        return read(path)


def by_codec(decoder: Any) -> Reads:
    """A decoder of msgspec's, as its callers use it: they catch these three."""

    def read(data: bytes) -> object:
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    return read


def answered_with(data: bytes, make: Callable[[str], Source], *, raw: bool) -> object:
    """What a source of notices makes of a server that answers everything so."""

    async def ask() -> object:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data if raw else b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n\r\n" + data)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await make(f"http://127.0.0.1:{port}").look()

    return asyncio.run(ask())


def samples(data: bytes) -> object:
    batch = decode_batch(data)
    EvidenceFold().apply(("t", "j"), 1, 1, data)
    return [admit(batch, each) for each in batch.samples] if isinstance(batch, SampleBatch) else batch


def environ_of(data: bytes) -> dict[str, str]:
    """Variables from lines, as a process could be given them."""
    lines = [line.partition("=") for line in text_of(data.replace(b"\0", b"")).splitlines()]
    return {name: value for name, _, value in lines if name}


def agent_environ(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        # Folders are made where a variable says, so they stay where they may.
        own = {environment.NODE_DIR: folder, environment.SHARED_DIR: folder, "IROH_TINKER_NODE_HOST": "127.0.0.1"}
        return AgentConfig.from_environment({**environ_of(data), **own})


def project_file(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "elasticgrid.yaml").write_bytes(data)
        return resolve({}, {}, folder=Path(folder), home=Path(folder))


def spooled(path: Path) -> object:
    spool = Spool(path)
    try:
        return spool.first()
    finally:
        spool.close()


def manifest(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        uri = checkpoint.write(folder, 3, {"weights": b"1"})
        (Path(uri) / checkpoint.MANIFEST).write_bytes(data)
        return checkpoint.load(uri)


def good_manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return (Path(checkpoint.write(folder, 3, {"weights": b"1"})) / checkpoint.MANIFEST).read_bytes()


def last_event_id(data: bytes) -> object:
    return EventFeed(Views(Path("none"))).start_of(None, text_of(data))


STEP = StepSample(seq=0, step=1, duration_s=0.1, queue_s=0.0, data_wait_s=0.0, tokens=8, nodes=1, time_ms=1)
ENVIRON = (
    b"ELASTICGRID_NATS_URL=nats://x:1\nELASTICGRID_TENANT=t\nELASTICGRID_JOB=j\nELASTICGRID_PROVIDER=p\n"
    b"ELASTICGRID_ATTEMPT=a\nELASTICGRID_STUCK_AFTER_S=3\nRANK=1\nWORLD_SIZE=2\n"
)
JOB = (TOP / "examples/elastic_numpy/job.yaml").read_bytes()
GRID = (TOP / "examples/elastic_numpy/grid.yaml").read_bytes()
POLICY = b"scaling:\n  cooldown_up_s: 3\nplacement:\n  spot: forbid\n"
TASK = b"name: t\nresources: {cloud: aws, accelerators: A100:8}\nnum_nodes: 2\nrun: |\n  python train.py\n"
EVENTS = tuple(
    path.read_bytes() for path in sorted((TOP / "schemas/frozen").glob("*.v1.json")) if b'"data"' in path.read_bytes()
)
ARCHIVE = (TOP / "tests/goldens/cancelled.egz").read_bytes()
SUBMIT = msgspec.json.encode(JobSpec(name="n", command=("c",), workdir="/"))
SESSION = signed_session(b"secret", Session("id", "abcd", "mark", 5)).encode()
AWS_ACTION = b'{"action": "terminate", "time": "2025-10-09T08:55:48Z"}'
AZURE_EVENTS = (
    b'{"DocumentIncarnation": 1, "Events": [{"EventId": "a", "EventType": "Preempt", "Resources": ["x"],'
    b' "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}]}'
)

REFUSALS = (ElasticGridError,)
TROUBLE = (SourceTrouble,)


def _bodies() -> list[Decoder]:
    good = {
        JobSpec: SUBMIT,
        ReasonRequest: b'{"reason": "r"}',
        ResizeRequest: b'{"min_nodes": 1, "max_nodes": 3}',
        PriorityRequest: b'{"band": "interactive"}',
        InterruptRequest: b'{"notice_s": 3}',
    }
    return [
        Decoder(
            name=f"body {kind.__name__}",
            module="gateway/bodies.py",
            reads=lambda data, kind=kind: decode_body(data, kind),  # type: ignore[misc] # a default is no argument
            good=(body,),
        )
        for kind, body in good.items()
    ]


def _notices() -> list[Decoder]:
    makers: dict[str, tuple[Callable[[str], Source], bytes]] = {
        "aws": (AwsSource, AWS_ACTION),
        "gcp": (lambda url: GcpSource(url, wait_s=1), b"TRUE"),
        "azure": (AzureSource, AZURE_EVENTS),
    }
    found = []
    for name, (make, good) in makers.items():
        for raw in (False, True):
            whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(good), good) if raw else good
            found.append(
                Decoder(
                    name=f"{name} metadata {'answer' if raw else 'document'}",
                    module=f"agent/notices/{'http' if raw else name}.py",
                    reads=lambda data, make=make, raw=raw: answered_with(data, make, raw=raw),  # type: ignore[misc] # likewise
                    good=(whole,),
                    may_raise=TROUBLE,
                )
            )
    return found


def _decoder(
    name: str, module: str, reads: Reads, *good: bytes, may_raise: tuple[type[Exception], ...] = REFUSALS
) -> Decoder:
    return Decoder(name=name, module=module, reads=reads, good=good, may_raise=may_raise)


DECODERS: tuple[Decoder, ...] = (
    _decoder("job file", "config/job_file.py", lambda d: parse_job(d, file="f", folder=Path("/"), submitted_ms=0), JOB),
    _decoder("grid file", "config/grid_file.py", lambda d: parse_grid(d, file="f"), GRID),
    _decoder("policy file", "config/policy_file.py", lambda d: in_file(d, read_policy), POLICY),
    _decoder("--set", "config/policy_file.py", lambda d: parse_settings([text_of(d)]), b"scaling.cooldown_up_s=0"),
    _decoder(
        "task file",
        "config/skypilot_file.py",
        lambda d: parse_task(d, file="f", folder=Path("/"), submitted_ms=0),
        TASK,
    ),
    _decoder("project file", "config/settings.py", project_file, b"data_dir: x\ngateway_url: http://h:1\n"),
    _decoder("event", "log/codec.py", decode_event, *EVENTS),
    _decoder("archive", "log/archive_reader.py", lambda d: in_file(d, lambda path: list(read_archive(path))), ARCHIVE),
    _decoder(
        "damaged archive",
        "log/archive_reader.py",
        lambda d: in_file(d, lambda path: list(read_archive(path, salvage=True))),
        ARCHIVE,
    ),
    _decoder("seal", "log/archive_format.py", read_seal, b"\0" * 48, may_raise=()),
    _decoder("credentials in an event", "log/archive_secrets.py", without_credentials, *EVENTS, may_raise=()),
    _decoder("samples", "core/samples.py", samples, encode_batch(SampleBatch(1, 1, 0, [STEP])), may_raise=()),
    _decoder(
        "samples' subject",
        "bus/subjects.py",
        lambda d: parse_sample_subject(text_of(d)),
        b"grid.samples.t.j.0",
        may_raise=(),
    ),
    _decoder(
        "credential",
        "bus/credentials.py",
        lambda d: in_file(d, read_credentials),
        b'{"user": "a", "password": "b"}',
        b'{"token": "a.b.c"}',
    ),
    _decoder(
        "admin key",
        "gateway/auth.py",
        lambda d: in_file(d, lambda path: admin_key(path.parent), "admin.key"),
        b"k" * 40,
    ),
    _decoder(
        "session cookie", "gateway/sessions.py", lambda d: read_session(b"secret", text_of(d)), SESSION, may_raise=()
    ),
    _decoder(
        "is it the first interface",
        "gateway/first_interface.py",
        is_first_submit,
        b'{"name": "a", "command": "b"}',
        may_raise=(),
    ),
    _decoder(
        "first interface",
        "gateway/first_interface.py",
        lambda d: read_first_submit(d, Path("/")),
        b'{"name": "a", "command": "b", "nodes": 2, "metadata": {"x": 1}}',
    ),
    _decoder("Last-Event-ID", "gateway/feed.py", last_event_id, b"0", b"17"),
    _decoder(
        "cursor",
        "projections/results.py",
        lambda d: decode_cursor(text_of(d), tuple[int, str, str]),
        encode_cursor((1, "a", "b")).encode(),
    ),
    _decoder(
        "time",
        "cli/times.py",
        lambda d: time_ms(text_of(d), where="--at"),
        b"2026-01-31T12:30:00",
        b"15m",
        b"9999-12-31T23:59:59-14:00",
    ),
    _decoder("agent's variables", "agent/config.py", agent_environ, ENVIRON),
    _decoder("hook's variables", "publish/settings.py", lambda d: read_settings(environ_of(d)), ENVIRON, may_raise=()),
    _decoder(
        "worker's message",
        "publish/channel.py",
        by_codec(worker_decoder),
        b'{"type":"hello","round":1,"rank":0}',
        may_raise=(),
    ),
    _decoder(
        "agent's message", "publish/channel.py", by_codec(agent_decoder), b'{"type":"stop_at","step":1}', may_raise=()
    ),
    _decoder(
        "lead's question",
        "agent/agreement.py",
        by_codec(lead_decoder),
        msgspec.json.encode(AskWhere(round=1)),
        may_raise=(),
    ),
    _decoder(
        "member's position",
        "agent/agreement.py",
        by_codec(position_decoder),
        msgspec.json.encode(Position(round=1, condition="running")),
        may_raise=(),
    ),
    _decoder(
        "worker's error",
        "agent/worker_files.py",
        lambda d: in_file(d, read_error),
        b'{"message": {"message": "m"}}',
        may_raise=(),
    ),
    _decoder(
        "notice file",
        "agent/notices/file.py",
        lambda d: in_file(d, lambda path: asyncio.run(FileSource(path).look())),
        b'{"in_s": 3, "text": "t"}',
        may_raise=TROUBLE,
    ),
    _decoder("spool", "publish/spool.py", lambda d: in_file(d, spooled), b"", may_raise=(OSError,)),
    _decoder("checkpoint's manifest", "publish/checkpoint.py", manifest, good_manifest()),
    _decoder(
        "answer with events",
        "log/event_reader.py",
        by_codec(answer_decoder),
        msgspec.msgpack.encode(ReadAnswer(events=(StoredEvent(1, 2, "s", b"{}"),), end=1)),
        may_raise=(),
    ),
    *_bodies(),
    *_notices(),
)
