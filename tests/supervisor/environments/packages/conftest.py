"""A certificate authority and servers for all tests of packages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsmd.environments.packages.indexes import Index, IndexAccess, IndexCredentials, Indexes
from packageindex import Authority, IndexServer, index_server, make_authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[IndexServer]:
    with index_server(authority.server) as server:
        yield server


@pytest.fixture
def other(authority: Authority) -> Iterator[IndexServer]:
    """Return a server on another port, which no configuration names by itself."""
    with index_server(authority.server) as server:
        yield server


@pytest.fixture
def indexes(server: IndexServer, authority: Authority) -> Indexes:
    """Return the server as the user's index of both kinds, with credentials."""
    server.login = "ada:hunter2hunter2"
    credentials = IndexCredentials(user="ada", password="hunter2hunter2")
    access = IndexAccess(certificates=authority.certificate, timeout_s=120)
    return Indexes(
        python=(Index(name="company", url=server.url("/simple"), credentials=credentials),),
        npm=(Index(name="company", url=server.url("/npm/"), credentials=credentials),),
        python_access=access,
        npm_access=access,
    )
