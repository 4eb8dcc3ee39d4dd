"""The page's files: where they lie in the package, under which addresses they are served, and compressed once."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

_FOLDER: Final = files("elasticgrid.gateway.dashboard") / "assets"
_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
PLOTLY: Final = "plotly.min.js"
_GZIP_LEVEL: Final = 6
_STYLE_ID: Final = re.compile(r"""if\(!document\.getElementById\("([0-9a-f]{40,64})"\)\)""")


class Asset(msgspec.Struct, frozen=True):
    """A file as it is sent: its type, its bytes, and the same compressed."""

    media_type: str
    content: bytes
    compressed: bytes


@cache
def own_digest() -> str:
    """Names the version of the page's own files; another file gives another one."""
    digest = hashlib.sha256()
    for name in sorted(_own_names()):
        digest.update(name.encode() + b"\0" + (_FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


@cache
def plotly_digest() -> str:
    """The same of Plotly's script; empty where Plotly is not installed."""
    path = _plotly_path()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path is not None else ""


@cache
def asset(digest: str, name: str) -> Asset | None:
    """The file of this name in this version; None when there is none."""
    if name == PLOTLY:
        path = _plotly_path()
        return _loaded(path.read_bytes(), ".js") if path is not None and digest == plotly_digest() else None
    if digest != own_digest() or name not in _own_names():
        return None
    return _loaded((_FOLDER / name).read_bytes(), Path(name).suffix)


@cache
def index_page(*, signed_in: bool) -> bytes:
    """The page itself, with the addresses of this version's files.

    Args:
        signed_in: whether it may ask for data at once; else it asks for a key first.
    """
    text = (_FOLDER / "index.html").read_text(encoding="utf-8")
    for name, value in {
        "{assets}": f"/ui/{own_digest()}",
        "{plotly}": f"/ui/{plotly_digest()}/{PLOTLY}" if plotly_digest() else "",
        "{plotly_styles}": " ".join(plotly_style_ids()),
        "{session}": "yes" if signed_in else "",
    }.items():
        text = text.replace(name, value)
    return text.encode()


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """The ids of the styles that Plotly's script puts into a page where no element has them yet."""
    path = _plotly_path()
    return tuple(sorted(set(_STYLE_ID.findall(path.read_text(encoding="utf-8"))))) if path is not None else ()


@cache
def _own_names() -> frozenset[str]:
    return frozenset(each.name for each in _FOLDER.iterdir() if Path(each.name).suffix in _TYPES)


def _plotly_path() -> Path | None:
    # The package itself is not imported: that takes a second, and only its script is wanted.
    found = find_spec("plotly")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "package_data" / PLOTLY
    return path if path.is_file() else None


def _loaded(content: bytes, suffix: str) -> Asset:
    return Asset(_TYPES[suffix], content, gzip.compress(content, _GZIP_LEVEL, mtime=0))
