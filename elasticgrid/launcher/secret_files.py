"""A job's secrets on their way to its workers: copied for one launch, as private files, and removed when it is over.

Whoever submits names files of the launcher's machine. What is in them is in the copies, in the agents' hands and in
the workers' environment, and nowhere else; an error says which file it was and never what was in it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from elasticgrid.core.errors import InvalidJob
from elasticgrid.launcher.launch_files import SECRETS_DIR

#: More is no secret but data; all of a job's together must fit into an environment.
MAX_SECRET_BYTES: Final = 32 * 1024


def read_secret(variable: str, path: Path, closed: Iterable[Path] = ()) -> bytes:
    """What is in the file of a secret.

    Args:
        variable: what it is for, as errors name it.
        path: of the file.
        closed: files, and folders with files, that are no business of a job's.

    Raises:
        InvalidJob: it cannot be read, others may read it, or it is none that a variable can be set to.
    """
    where = f"secrets.{variable}: {path}"
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            # Where it is in truth, whatever links led to it and whoever changes them meanwhile.
            real = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))
            if any(real.is_relative_to(os.path.realpath(each)) for each in closed):
                raise InvalidJob("the file is the grid's own", where=where, hint="name a file of yours")
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidJob("this is no file", where=where, hint="a pipe, for one, can be read once only")
            if status.st_mode & stat.S_IRWXO:
                what = f"everybody on the machine may read or change it, its mode is {stat.S_IMODE(status.st_mode):04o}"
                raise InvalidJob(what, where=where, hint=f"chmod 600 {path}")
            text = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        hint = "it is read by the launcher, on the launcher's machine and as its user"
        raise InvalidJob(f"the file cannot be read: {error.strerror}", where=where, hint=hint) from error
    if len(text) > MAX_SECRET_BYTES:
        raise InvalidJob(f"there is more in it than {MAX_SECRET_BYTES:,} bytes", where=where, hint="see file_mounts")
    if not text.strip():
        raise InvalidJob("there is nothing in it", where=where)
    if b"\0" in text or not _is_text(text):
        raise InvalidJob("it holds no text, so no variable can be set to it", where=where, hint="encode it as base64")
    return text


def bring_secrets(files: Mapping[str, str], launch_folder: Path, closed: Iterable[Path] = ()) -> None:
    """Copy all files that are named into a launch's folder, each as `secrets/VARIABLE` with mode 0600.

    Raises:
        InvalidJob: see `read_secret`; nothing was copied.
        OSError: the disk does not do it.
    """
    forget_secrets(launch_folder)
    if not files:
        return
    texts = {variable: read_secret(variable, Path(path), closed) for variable, path in sorted(files.items())}
    folder = launch_folder / SECRETS_DIR
    folder.mkdir(mode=0o700)
    for variable, text in texts.items():
        descriptor = os.open(folder / variable, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text)


def brought_secrets(launch_folder: Path) -> dict[str, bytes]:
    """What was copied, by variable; nothing where nothing was.

    Raises:
        OSError: it cannot be read.
    """
    folder = launch_folder / SECRETS_DIR
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def forget_secrets(launch_folder: Path) -> None:
    """Remove the copies, if there are any."""
    shutil.rmtree(launch_folder / SECRETS_DIR, ignore_errors=True)


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting for whoever would write into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
