"""`pytest tests/goldens --update-goldens` writes what is expected of each archive anew; the archives themselves stay.

The option is there when this folder is named; a run of all tests never writes.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write the expected states and verifications of tests/goldens anew, to be looked at before they are kept",
    )


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-goldens", default=False))
