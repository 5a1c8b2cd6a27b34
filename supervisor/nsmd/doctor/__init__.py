"""Needs of nsm on this host, and how to meet them: the rows of `nsm doctor`.

host          files, variables and user of the host that is checked
kernel        user namespaces, AppArmor, containers, what covers /proc
service       control groups, systemd, lingering
places        socket, lock, directories, free space
room          descriptors, processes, memory, the clock
jsonc         JSON with comments, as editors write it
clients       entries of MCP clients, and whether they start this nsm
bridge        definitions of programs, and the file that records calls
http          where MCP over HTTP listens, and its token
limit_checks  how sessions are kept to their limits
copy_checks   whether projects can be copied on write
report        the whole table, and trial jails
"""

from collections.abc import Iterator

from nsm.checks import Check
from nsmd.doctor.bridge import check_bridge
from nsmd.doctor.clients import check_clients
from nsmd.doctor.host import Host, this_host
from nsmd.doctor.http import check_http
from nsmd.doctor.kernel import check_kernel
from nsmd.doctor.places import check_places
from nsmd.doctor.room import check_room
from nsmd.doctor.service import check_service
from nsmd.model.settings import Settings

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
