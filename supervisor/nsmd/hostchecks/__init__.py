"""What of a host commonly stands in nsm's way, looked at without starting anything: for the doctor.

host         files, variables and user of the host that is looked at
kernel       user namespaces, AppArmor, containers, what covers /proc
service      control groups, systemd, lingering
places       socket, lock, directories, free space
room         descriptors, processes, memory, the clock
clients      entries of MCP clients, and whether they lead here
bridge       definitions of programs, and where calls of them are written down
http         where MCP over HTTP is to listen, and the token
jsonc        JSON with comments, as editors write it
"""

from collections.abc import Iterator

from nsm.checks import Check
from nsmd.hostchecks.bridge import check_bridge
from nsmd.hostchecks.clients import check_clients
from nsmd.hostchecks.host import Host, this_host
from nsmd.hostchecks.http import check_http
from nsmd.hostchecks.kernel import check_kernel
from nsmd.hostchecks.places import check_places
from nsmd.hostchecks.room import check_room
from nsmd.hostchecks.service import check_service
from nsmd.settings import Settings

__all__ = ["Host", "check_host", "this_host"]


def check_host(host: Host, settings: Settings, *, jails_work: bool) -> Iterator[Check]:
    """A row for each thing, in the order in which they are shown.

    Args:
        jails_work: some were started; what forbids them to others is no failure then.
    """
    yield from check_kernel(host, jails_work=jails_work)
    yield from check_service(host)
    yield from check_places(host)
    yield from check_room(host, settings)
    yield from check_bridge(host, settings)
    yield from check_http(host, settings)
    yield from check_clients(host)
