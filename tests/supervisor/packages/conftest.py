"""A certificate authority for all tests of packages."""

from __future__ import annotations

import pytest

from packageindex import Authority, make_authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))
