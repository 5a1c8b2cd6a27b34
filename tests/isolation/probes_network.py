"""Probes of the network beyond its loopback: other protocols, ways out, ways to change it."""

from __future__ import annotations

from isolation.probe import Language, Probe
from isolation.stage import Stage
from isolation.weaken import (
    NO_NETWORK_NAMESPACE,
    STRONG,
    STRONG_FORK,
    UNFILTERED,
    UNFILTERED_FORK,
    Weakness,
    with_more,
)


def _hosts_names(stage: Stage) -> list[str]:
    return ["--ro-bind", f"{stage.directory}/resolv.conf", "/etc/resolv.conf"]


def _shared(name: str, source: str, code: str, language: Language = "python") -> Probe:
    return Probe(
        name=name,
        group="network",
        source=source,
        language=language,
        code=code,
        weakness=NO_NETWORK_NAMESPACE,
    )


def _filtered(name: str, source: str, code: str) -> Probe:
    return Probe(
        name=name,
        group="network",
        source=source,
        code=code,
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
        filtered=True,
    )


def _strong(name: str, source: str, code: str) -> Probe:
    return Probe(
        name=name,
        group="network",
        source=source,
        language="c",
        code=code,
        weakness=STRONG,
        fork_weakness=STRONG_FORK,
    )


_NETLINK = """
def opened(protocol):
    "Netlink of that protocol, RAW as all of it is."
    socket.socket(16, socket.SOCK_RAW, protocol).close()
    return True
"""

PROBES = (
    _shared(
        "host-datagrams",
        "ip(7): a resolver on the host's loopback",
        """
def answered():
    "Nobody there is an error of the second send."
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", STAGE["udp_port"]))
        one.send(b"1")
        one.send(b"2")
        return True
verdict(attempt(answered) and "somebody is there")
""",
    ),
    _shared(
        "way-out",
        "a cloud's metadata service, a name server, any address: 169.254.169.254 and others",
        """
def route(family, address, port):
    "Nothing is sent: the kernel looks for a route, and says from which address."
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.connect((address, port))
        return one.getsockname()[0]
places = [(socket.AF_INET, "169.254.169.254", 80), (socket.AF_INET, "192.0.2.1", 53)]
places += [(socket.AF_INET, "198.51.100.1", 443), (socket.AF_INET6, "2001:db8::1", 443)]
places += [(socket.AF_INET6, "fd00:ec2::254", 80), (socket.AF_INET, "255.255.255.255", 67)]
verdict([place[1] for place in places if attempt(route, *place)])
""",
    ),
    _shared(
        "names-of-host-sockets",
        "unix(7): /proc/net/unix names the abstract and path sockets of its namespace",
        """
found=; while read -r _ _ _ _ _ _ _ name; do
  case "$name" in *"$ABSTRACT"*) found="$found $name";; esac
done </proc/net/unix; verdict "$found"
""",
        "bash",
    ),
    Probe(
        name="resolver-of-the-host",
        group="network",
        source="resolver(5): names as a way out, whatever else is closed",
        code="""
# No name is asked for that the made-up hosts file does not know: where to ask would be enough.
# In a session with a list, the agent answers, at an address that leads nowhere else.
asked = {line.strip() for line in (attempt(open, "/etc/resolv.conf") or ()) if "nameserver" in line}
found = asked - {"nameserver 198.18.0.1"}
with open("/etc/nsswitch.conf") as file:
    found |= {line.strip() for line in file if line.startswith("hosts:") and line.split() != [
        "hosts:", "files", *(["dns"] if asked else ())]}
verdict(sorted(found))
""",
        weakness=Weakness(arguments=with_more(_hosts_names)),
    ),
    _filtered(
        "all-sockets-of-the-namespace",
        "sock_diag(7): lists sockets, and kills them for whoever may",
        _NETLINK + 'verdict(attempt(opened, 4) and "SOCK_DIAG")',
    ),
    _filtered(
        "generic-netlink",
        "netlink(7): NETLINK_GENERIC, where drivers and file systems put what has no other place",
        _NETLINK + 'verdict(attempt(opened, 16) and "GENERIC")',
    ),
    _filtered(
        "packet-filter-netlink",
        "netlink(7): NETLINK_NETFILTER; CVE-2022-32250, CVE-2024-1086",
        _NETLINK + 'verdict(attempt(opened, 12) and "NETFILTER")',
    ),
    _filtered(
        "audit-netlink",
        "netlink(7): NETLINK_AUDIT, the machine's record of what happens",
        _NETLINK + 'verdict(attempt(opened, 9) and "AUDIT")',
    ),
    _filtered(
        "device-events",
        "netlink(7): NETLINK_KOBJECT_UEVENT, what happens to the machine's devices",
        _NETLINK + 'verdict(attempt(opened, 15) and "UEVENT")',
    ),
    _filtered(
        "host-by-vsock",
        "vsock(7): knows no network namespace and reaches the hypervisor",
        """
def opened():
    socket.socket(40, socket.SOCK_STREAM).close()
    return True
verdict(attempt(opened) and "VSOCK")
""",
    ),
    _filtered(
        "odd-families",
        "address_families(7): CVE-2019-11815 (RDS), CVE-2021-43267 (TIPC)",
        """
UNIX, INET, INET6, NETLINK, VSOCK = 1, 2, 10, 16, 40
def reached(family, kind):
    "A family that the kernel has asks for a privilege or another type, if it refuses."
    try:
        socket.socket(family, kind).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True
found = {family for family in range(3, 64) for kind in (1, 2, 3, 5)
         if family not in (UNIX, INET, INET6, NETLINK, VSOCK) and reached(family, kind)}
with open("/proc/net/protocols") as file:
    there = {line.split()[0] for line in file} & {"PACKET", "ALG", "XDP", "KEY", "TIPC", "RDS"}
if found or there:
    verdict(sorted(found))
else:
    not_here("a family that is rarely used")
""",
    ),
    _filtered(
        "odd-protocols",
        "socket(2): SCTP, MPTCP, L2TP, UDP-Lite: each loads a module",
        """
def reached(kind, protocol):
    try:
        socket.socket(socket.AF_INET, kind, protocol).close()
    except OSError as error:
        return error.errno != errno.EPROTONOSUPPORT
    return True
kinds = {"SCTP": (1, 132), "MPTCP": (1, 262), "SMC": (1, 256), "L2TP": (2, 115)}
kinds["UDPLITE"] = (2, 136)
verdict([name for name, words in kinds.items() if reached(*words)])
""",
    ),
    _strong(
        "addresses-by-netlink",
        "rtnetlink(7), which is let through: getifaddrs(3) takes it",
        """
NEWADDR, REQUEST_ACK = 20, 5
def added():
    address = socket.inet_aton("127.9.9.9")
    body = struct.pack("BBBBI", socket.AF_INET, 32, 0, 0, 1)
    body += struct.pack("HH", 8, 2) + address + struct.pack("HH", 8, 1) + address
    with socket.socket(16, socket.SOCK_RAW, 0) as one:
        one.send(struct.pack("IHHII", 16 + len(body), NEWADDR, REQUEST_ACK, 1, 0) + body)
        error = struct.unpack_from("i", one.recv(4096), 16)[0]
    if error not in (0, -errno.EEXIST):
        raise OSError(-error, "refused")
    return True
verdict(attempt(added) and "added one")
""",
    ),
    _strong(
        "interfaces-by-ioctl",
        "netdevice(7): the old way to change interfaces",
        """
GET_FLAGS, SET_FLAGS = 0x8913, 0x8914
def changed():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = ctypes.create_string_buffer(struct.pack("16sH14x", b"lo", 0), 40)
        call("ioctl", one.fileno(), GET_FLAGS, request)
        call("ioctl", one.fileno(), SET_FLAGS, request)  # to what they are
    return True
verdict(attempt(changed) and "set its flags")
""",
    ),
    _strong(
        "foreign-addresses",
        "ip(7), IP_TRANSPARENT: sends and receives for addresses that are others'",
        """
TRANSPARENT = 19
def taken():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_IP, TRANSPARENT, 1)
        one.bind(("192.0.2.77", 0))
    return True
verdict(attempt(taken) and "bound")
""",
    ),
)
