"""Program in the jail of a build: py-rattler, the library of pixi, resolves and links packages of
conda. It runs none of their scripts.

Standard library and py-rattler only, since it runs on the host's Python. `resolve REQUEST RESULT`,
`fetch LIST CACHE [--offline]`, `link LIST CACHE PLACE`; all but CACHE and PLACE are JSON files.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

ENV = "/env"

_CONNECTIONS = 8
_TIMEOUT_S = 120


def resolve(request_path: str, result_path: str, *options: str) -> None:
    """Find the packages for what is wanted: their number of channel, place and hash."""
    import rattler  # noqa: PLC0415  # `fetch` needs none
    from rattler.repo_data import SourceConfig  # noqa: PLC0415

    request = _read(request_path)
    channels: list[str] = request["channels"]
    # Shards of a channel may be on other hosts than the channel.
    config = SourceConfig(sharded_enabled=False)
    if "--offline" in options:
        config.cache_action = "force-cache-only"

    async def solve() -> list[rattler.RepoDataRecord]:
        return await rattler.solve(
            sources=[rattler.Channel(channel) for channel in channels],
            specs=[
                rattler.MatchSpec(spec if number is None else f"{channels[number]}::{spec}")
                for number, spec in request["specs"]
            ],
            platforms=[request["platform"], "noarch"],
            virtual_packages=rattler.VirtualPackage.detect(),
            gateway=rattler.Gateway(
                cache_dir=request["cache"],
                default_config=config,
                client=rattler.Client.authenticated_client(),
            ),
        )

    found: list[tuple[int, str, str]] = []
    for record in asyncio.run(solve()):
        number = next(n for n, base in enumerate(channels) if record.url.startswith(base))
        if record.sha256 is None:
            raise ValueError(f"the channel has no hash (sha256) for {record.file_name}")
        place = record.url[len(channels[number]) :]
        found.append((number, place, record.sha256.hex()))
    _write(result_path, found)


def fetch(list_path: str, cache: str, *options: str) -> None:
    """Have all files in the cache, by their hash."""
    os.makedirs(cache, exist_ok=True)

    def get(row: tuple[str, str, str]) -> None:
        url, place, sha256 = row
        path = cached(cache, place, sha256)
        if os.path.exists(path):
            return
        if "--offline" in options:
            raise ValueError(f"{place} is not in the cache")
        _say(f"fetching {os.path.basename(place)}")
        new, digest = os.path.join(cache, f"{sha256}.{os.getpid()}"), hashlib.sha256()
        try:
            with urlopen(_request(url), timeout=_TIMEOUT_S) as answer, open(new, "xb") as file:  # noqa: S310  # of a channel
                while chunk := answer.read(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise ValueError(f"Hash mismatch: {place} is not what the lock names")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.rename(new, path)
        finally:
            if os.path.exists(new):
                os.unlink(new)

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(get, _read(list_path)))


def _request(url: str) -> Request:
    """Make a request with the user's login for that host, as py-rattler's file has it."""
    request = Request(url)  # noqa: S310  # of a channel
    with open(os.environ["RATTLER_AUTH_FILE"], encoding="utf-8") as file:
        login = json.load(file).get(urlsplit(url).hostname, {}).get("BasicHTTP")
    if login is not None:
        text = f"{login['username']}:{login['password']}"
        told = f"Basic {b64encode(text.encode()).decode()}"
        request.add_unredirected_header("Authorization", told)  # for that host alone
    return request


def cached(cache: str, place: str, sha256: str) -> str:
    """Path of a file in the cache; py-rattler wants it to have its own name."""
    return os.path.join(cache, sha256, os.path.basename(place))


def link(list_path: str, cache: str, place: str) -> None:
    """Make the environment. Its files say that it is at ENV, where sessions have it."""
    import rattler  # noqa: PLC0415

    prefix = os.path.realpath(ENV)

    async def install() -> None:
        records: list[rattler.RepoDataRecord] = []
        for _, path, sha256 in _read(list_path):
            file = cached(cache, path, sha256)
            record = await rattler.RepoDataRecord.from_package_archive(file)
            if record.sha256 is None or record.sha256.hex() != sha256:
                raise ValueError(f"Hash mismatch: {path} in the cache is not what the lock names")
            records.append(record)
        await rattler.install(
            records,
            target_prefix=prefix,
            alternative_target_prefix=ENV,
            cache_dir=Path(place, "extracted"),
            execute_link_scripts=False,
            show_progress=False,
        )

    asyncio.run(install())


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _write(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    # Python in isolated mode leaves the program's own directory out, which has py-rattler.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    actions: dict[str, Callable[..., None]] = {"resolve": resolve, "fetch": fetch, "link": link}
    try:
        actions[sys.argv[1]](*sys.argv[2:])
        status = 0
    except Exception as error:  # noqa: BLE001  # the installer reads that line
        _say(f"error: {' '.join(str(error).split())}")
        status = 1
    # Threads of py-rattler may still end, and Python would crash when it goes before them.
    os._exit(status)


if __name__ == "__main__":
    main()
