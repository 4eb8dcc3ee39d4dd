"""Operations on a node over ssh: the program for them is sent along, so the node needs ssh and Python and no more.

Program, request and payload go through the standard input: of all that is sent, nothing is in an argument list.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import mmap
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from elasticgrid.core.errors import EngineError, NodeUnreachable

#: Modules that run on the node, each after those it imports.
_MODULES: Final = (
    "elasticgrid.output_files",
    "elasticgrid.launcher.unpack",
    "elasticgrid.launcher.setup_run",
    "elasticgrid.marked_processes",
    "elasticgrid.launcher.engines.node_program",
)
#: Reads a line that says what follows, the modules, and leaves the rest of the input to the operation.
_BEGIN: Final = """\
import json, sys, types
f = sys.stdin.buffer
head = json.loads(f.readline())
for name, size in head["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(f.read(size), name, "exec"), module.__dict__)
module.main(head["request"], f)
"""
#: What ssh itself ends with when it did not get through.
_SSH_FAILED: Final = 255
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_\[][\w.:\[\]%-]*")
#: Given behind the user's own options, so that those win.
OPTIONS: Final = (
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "LogLevel=ERROR"),
)


class SshCalls:
    """Does operations of the node program on hosts.

    Args:
        command: ssh with its options.
        python: an interpreter of the nodes for the program.
    """

    def __init__(self, command: Sequence[str], python: str) -> None:
        self._command = (*command, *OPTIONS, "-T")
        self._python = python

    def __call__(
        self, host: str, operation: str, request: Mapping[str, Any], *, payload: bytes | Path = b"", timeout_s: float
    ) -> Any:
        """The answer of one operation.

        Raises:
            NodeUnreachable: the host did not answer: nothing is known of what it did.
            EngineError: it answered that it cannot do it.
        """
        if _HOST.fullmatch(host) is None:
            raise EngineError(f"invalid parameter hosts: {host!r} is no ssh target", hint="user@host")
        remote = shlex.join([self._python, "-I", "-c", _BEGIN])
        head = _head(dict(request) | {"operation": operation})
        process = subprocess.Popen(
            [*self._command, "--", host, remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process, _mapped(payload) as rest:
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(head)
                output, errors = process.communicate(rest, timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise NodeUnreachable(f"{operation} timed out after {timeout_s:g} s", where=host) from error
            finally:
                process.kill()
        return _answer(host, operation, process.returncode, output, errors.decode(errors="replace").strip())


def _answer(host: str, operation: str, code: int, output: bytes, errors: str) -> Any:
    if code == _SSH_FAILED:
        # A host that is not who it was is as good as one that refuses us, and the words do not say so.
        said = f"authentication failed: {errors}" if "Host key verification failed" in errors else errors
        raise NodeUnreachable(said or "ssh did not get through", where=host)
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1])
        if "problem" not in answer:
            return answer["answer"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        if code < 0:
            raise NodeUnreachable(f"{operation} was ended by signal {-code}", where=host) from error
        said = errors or " ".join(lines[-3:])
        raise EngineError(f"{operation} ended with {code}: {said}", where=host) from error
    raise EngineError(f"{operation}: {answer['problem']}", where=host)


@contextlib.contextmanager
def _mapped(payload: bytes | Path) -> Any:
    """The payload as bytes; a file's without reading it."""
    if isinstance(payload, bytes) or payload.stat().st_size == 0:
        yield payload if isinstance(payload, bytes) else b""
        return
    with payload.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped


def _head(request: dict[str, Any]) -> bytes:
    sources = _sources()
    modules = [(name, len(source)) for name, source in sources]
    line = json.dumps({"modules": modules, "request": request})
    return line.encode() + b"\n" + b"".join(source for _, source in sources)


@cache
def _sources() -> tuple[tuple[str, bytes], ...]:
    found = []
    for name in _MODULES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        found.append((name, Path(spec.origin).read_bytes()))
    return tuple(found)
