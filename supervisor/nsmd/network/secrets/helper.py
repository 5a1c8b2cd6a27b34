"""A program that reads the requests of one session or box, and puts its secrets into them.

There is one for each session or box with secrets or rules for requests, so that none is in the way
of another. It alone knows the values. It outlives the supervisor, and ends when its channel does.

Descriptor 0 is connected to the supervisor. Messages are packets (unix(7), SOCK_SEQPACKET) with one
JSON object each, some with descriptors:

``begin``   the secrets, the rules for requests, and a memory file for the certificate authority and
            the stand-ins. If that has some already, they are used: an earlier helper has died. The
            answer is ``ready`` or ``failed``
``carry``   a connection of code to a host: its socket, one that is connected to the host, and one
            to say that it is over. A byte on that ends the connection; its end does not, since a
            supervisor may have ended that way
``revoke``  use a secret no more
``strict``  end all connections of earlier supervisors: the list of hosts has changed

It sends ``used`` for each request with a secret, before the request, and ``refused``.
"""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]  # for names of hosts
import json
import os
import re
import resource
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio

from nsm.wire.decode import decode
from nsmd.fdstore.holder import descriptors_in
from nsmd.host.rights import give_up_rights
from nsmd.model.host_rules import AllowList
from nsmd.model.secrets import SecretRule
from nsmd.network.secrets.authority import PROTOCOL, Authority, now_utc
from nsmd.network.secrets.interception import Interceptor
from nsmd.network.secrets.vault import Asker, SourceError, Vault

PACKET_BYTES = 256 * 1024
"""Room for a message: the largest has 64 KiB of a client in hexadecimal digits."""

MAX_STATE_BYTES = 1024 * 1024
DESCRIPTORS_AT_ONCE = 3

_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""Name under which OpenSSL looks for an authority."""

_PR_SET_DUMPABLE = 4


class Helper:
    """All connections of one session or box."""

    def __init__(self, control: trio.socket.SocketType) -> None:
        self._control = control
        self._sending = trio.Lock()
        self._vault: Vault | None = None
        self._interceptor: Interceptor | None = None
        self._orphans: set[trio.CancelScope] = set()

    async def run(self) -> None:
        """Serve until the supervisor closes the channel, and keeps no copy of it."""
        async with trio.open_nursery() as nursery:
            while True:
                data, descriptors = await self._receive()
                if not data:
                    break
                message = json.loads(data)
                await self._carry_out(message, descriptors, nursery)
            nursery.cancel_scope.cancel()

    async def _carry_out(
        self, message: dict[str, Any], descriptors: Sequence[int], nursery: trio.Nursery
    ) -> None:
        op = message["op"]
        if op == "begin" and len(descriptors) == 1:
            # Told by another task, since that waits for ever if the supervisor has gone meanwhile.
            nursery.start_soon(self._send, await self._get_ready(message, descriptors[0]))
        elif op == "carry" and len(descriptors) == DESCRIPTORS_AT_ONCE:
            nursery.start_soon(self._intercept, message, descriptors)
        elif op == "revoke" and self._vault is not None:
            self._vault.revoke(message["name"])
        elif op == "strict":
            for scope in self._orphans:
                scope.cancel()

    async def _get_ready(self, message: dict[str, Any], state: int) -> dict[str, object]:
        """Get ready; returns the answer."""
        try:
            secrets = [decode(SecretRule, each) for each in message["secrets"]]
            known = json.loads(os.pread(state, MAX_STATE_BYTES, 0) or b"{}")
            vault = await Vault.read(secrets, known.get("stand_ins", {}), Asker(secrets).ask)
            request_rules = AllowList.of(message["request_rules"])
            names = [host.name for secret in secrets for host in secret.hosts]
            names += [rule.name for rule in request_rules.rules if rule.name is not None]
            authority = (
                Authority.from_pem(known["authority"])
                if "authority" in known
                else Authority.make(names, now_utc())
            )
            kept = {"authority": authority.to_pem(), "stand_ins": vault.stand_ins}
            os.pwrite(state, json.dumps(kept).encode(), 0)
            trusted = ssl.create_default_context()
            trusted.set_alpn_protocols([PROTOCOL])
            load_directories(trusted)
        except SourceError as error:
            return {"op": "failed", "why": str(error)}
        finally:
            os.close(state)
        for name in message.get("revoked", ()):
            vault.revoke(name)
        authority.context("nsm.invalid", now_utc())  # it imports what signing takes
        give_up_rights(memory_files=True)
        self._vault = vault
        self._interceptor = Interceptor(
            authority, vault, request_rules, trusted=trusted, tell=self._send
        )
        return {
            "op": "ready",
            "certificate": authority.certificate,
            "stand_ins": vault.stand_ins,
        }

    async def _intercept(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        client, server, over = (
            trio.SocketStream(trio.socket.from_stdlib_socket(_adopted(each)))
            for each in descriptors
        )
        counts = (0, 0)
        async with client, server, over, trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, over, nursery.cancel_scope)
            if self._interceptor is not None:
                early = bytes.fromhex(message["early"])
                host, port = message["host"], message["port"]
                try:
                    counts = await self._interceptor.intercept(client, server, host, port, early)
                # A bug of ours costs this connection. Its message may have a value.
                except Exception as error:  # noqa: BLE001
                    sys.stderr.write(f"a connection with secrets failed: {type(error).__name__}\n")
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await over.send_all(b"%d %d" % counts)
            nursery.cancel_scope.cancel()

    async def _watch(self, over: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            if await over.receive_some(1):
                scope.cancel()
                return
        self._orphans.add(scope)
        try:
            await trio.sleep_forever()
        finally:
            self._orphans.discard(scope)

    async def _receive(self) -> tuple[bytes, list[int]]:
        try:
            data, parts, _, _ = await self._control.recvmsg(
                PACKET_BYTES, socket.CMSG_LEN(4 * DESCRIPTORS_AT_ONCE), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return b"", []
        return data, descriptors_in(parts)

    async def _send(self, message: dict[str, object]) -> None:
        """Send a message; waits while nobody reads them. What was sent is kept by the kernel.

        It does not return if nobody can read it any more: then all of this is over.
        """
        async with self._sending:
            try:
                await self._control.send(json.dumps(message).encode())
            except OSError:
                await trio.sleep_forever()


def load_directories(context: ssl.SSLContext) -> None:
    """Load the certificates of the directories in which OpenSSL looks for the system's authorities:
    it reads them only once it needs one.
    """
    paths = ssl.get_default_verify_paths()
    directories = os.environ.get(paths.openssl_capath_env, paths.openssl_capath)
    known = set(context.get_ca_certs(binary_form=True))
    for directory in directories.split(os.pathsep):
        with suppress(OSError):
            for name in os.listdir(directory):
                if _HASHED.fullmatch(name):
                    _load_authority(context, os.path.join(directory, name), known)


def _load_authority(context: ssl.SSLContext, path: str, known: set[bytes]) -> None:
    with suppress(OSError):  # `ssl.SSLError` is one, too
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read()
        try:
            is_known = ssl.PEM_cert_to_DER_cert(text) in known
        except ValueError:  # there are several, or words around it
            is_known = False
        if not is_known:
            context.load_verify_locations(path)


def _adopted(descriptor: int) -> socket.socket:
    adopted = socket.socket(fileno=descriptor)
    adopted.setblocking(False)
    if adopted.family != socket.AF_UNIX:
        adopted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return adopted


def main() -> None:
    """Run as a program."""
    # Values are in this process only: in no core file, and out of reach of other processes.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    control = trio.socket.from_stdlib_socket(socket.socket(fileno=0))
    trio.run(Helper(control).run)
