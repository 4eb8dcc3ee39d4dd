"""Logging: structlog to standard error, for people on a terminal and as JSON lines anywhere else."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from elasticgrid.terminal import is_plain


def configure_logging(*, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (standard error), as text on a terminal and as JSON elsewhere.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        stream: where to; a file object.
    """
    target = stream if stream is not None else sys.stderr
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    renderer = (
        structlog.dev.ConsoleRenderer(colors=not is_plain(target))
        if target.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=target, format="%(name)s: %(message)s", force=True)
