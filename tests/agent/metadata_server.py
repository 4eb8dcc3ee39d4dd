"""Metadata services as their documentation describes them, over real HTTP on a free port."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class MetadataServer:
    """Answers `handler` on a port of its own; `asked` is every request as (method, path with query)."""

    def __init__(self, handler: type[_Handler]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.changed = threading.Condition()
        self.values: dict[str, Any] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.metadata = self  # type: ignore[attr-defined] # how the handler finds it
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def set(self, **values: Any) -> None:
        """Change what is answered; who waits for a change is woken."""
        with self.changed:
            self.values |= values
            self.changed.notify_all()

    @contextlib.contextmanager
    def running(self) -> Iterator[MetadataServer]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self.set(closed=True)
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def metadata(self) -> MetadataServer:
        server: MetadataServer = self.server.metadata  # type: ignore[attr-defined] # set by MetadataServer
        server.asked.append((self.command, self.path))
        return server

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Aws(_Handler):
    """IMDSv2: `token` is the one that is valid, `action` and `rebalance` the documents, absent when None."""

    def do_PUT(self) -> None:
        server = self.metadata
        if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
            self.answer(400)
        else:
            self.answer(200, server.values["token"])

    def do_GET(self) -> None:
        server = self.metadata
        if self.headers.get("X-aws-ec2-metadata-token") != server.values["token"]:
            self.answer(401)
            return
        documents = {
            "/latest/meta-data/spot/instance-action": "action",
            "/latest/meta-data/events/recommendations/rebalance": "rebalance",
        }
        document = server.values.get(documents.get(self.path, ""))
        self.answer(404, "<html>404 - Not Found</html>") if document is None else self.answer(200, document)


class Gcp(_Handler):
    """`preempted` and `maintenance_event`; a question with the last etag waits until the value is another."""

    def do_GET(self) -> None:
        server, parts = self.metadata, urlsplit(self.path)
        key = parts.path.removeprefix("/computeMetadata/v1/instance/").replace("-", "_")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.headers.get("Metadata-Flavor") != "Google" or key not in server.values:
            self.answer(403)
            return
        with server.changed:
            if query.get("wait_for_change") == "true":
                server.changed.wait_for(
                    lambda: self._etag(server.values[key]) != query.get("last_etag") or "closed" in server.values,
                    timeout=float(query.get("timeout_sec", "60")),
                )
            value = server.values[key]
        self.answer(200, value, Metadata_Flavor="Google", ETag=self._etag(value))

    def _etag(self, value: str) -> str:
        return value.encode().hex()[:16]


class Azure(_Handler):
    """`name` of the machine, and `events` of its group; `started` are the events that need not wait."""

    def do_GET(self) -> None:
        server = self.metadata
        if self.headers.get("Metadata") != "true":
            self.answer(400, json.dumps({"error": "Bad request. Required metadata header not specified"}))
        elif self.path.startswith("/metadata/instance/compute/name?"):
            self.answer(200, server.values["name"])
        elif self.path.startswith("/metadata/scheduledevents?api-version="):
            self.answer(200, json.dumps({"DocumentIncarnation": 3, "Events": server.values["events"]}))
        else:
            self.answer(404)

    def do_POST(self) -> None:
        server = self.metadata
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.values.setdefault("started", []).extend(each["EventId"] for each in body["StartRequests"])
        self.answer(200)


class Rude(_Handler):
    """`say` is written as it is, and the connection closed; with `silent` nothing is ever said."""

    def do_GET(self) -> None:
        server = self.metadata
        if server.values.get("silent"):
            with server.changed:
                server.changed.wait_for(lambda: "closed" in server.values, timeout=30)
        else:
            self.wfile.write(server.values["say"])
        self.close_connection = True

    def do_PUT(self) -> None:
        self.do_GET()
