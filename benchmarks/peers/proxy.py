"""A plain local proxy, and the server behind it: what passing bytes on costs by itself.

proxy.py serve          listens on a free port, which it prints, and answers requests
proxy.py pass PORT      listens on a free port, which it prints, and passes connections on to PORT

A request is a line with a number; the answer is as many bytes. So the same server runs in a
session.
"""

from __future__ import annotations

import socket
import sys
import threading

PIECE_BYTES = 64 * 1024

SERVER = """
import asyncio, socket, threading

ZEROS = memoryview(bytes(1 << 20))

async def answer(connection):
    loop = asyncio.get_running_loop()
    with connection:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while request := await loop.sock_recv(connection, 100):
            left = int(request)
            while left:
                size = min(left, len(ZEROS))
                await loop.sock_sendall(connection, ZEROS[:size])
                left -= size

async def accept(server):
    loop, tasks = asyncio.get_running_loop(), set()
    while True:
        connection, _ = await loop.sock_accept(server)
        task = loop.create_task(answer(connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

def serve(port):
    server = socket.create_server(("127.0.0.1", port), backlog=1024)
    server.setblocking(False)
    threading.Thread(target=asyncio.run, args=(accept(server),), daemon=True).start()
    return server.getsockname()[1]
"""


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on in one direction, to their end."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    while size := source.recv_into(buffer):
        target.sendall(buffer[:size])
    target.shutdown(socket.SHUT_WR)


def join(accepted: socket.socket, port: int) -> None:
    """Pass bytes on in both directions."""
    with accepted, socket.create_connection(("127.0.0.1", port)) as other:
        for each in (accepted, other):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=pass_on, args=(other, accepted), daemon=True)
        back.start()
        pass_on(accepted, other)
        back.join()


def main() -> int:
    """Serve until standard input ends."""
    threading.stack_size(256 * 1024)
    if sys.argv[1] == "serve":
        names: dict[str, object] = {}
        exec(SERVER + "\nport = serve(0)\n", names)
        print(names["port"], flush=True)
    else:
        proxy = socket.create_server(("127.0.0.1", 0), backlog=1024)

        def accept() -> None:
            while True:
                accepted, _ = proxy.accept()
                arguments = (accepted, int(sys.argv[2]))
                threading.Thread(target=join, args=arguments, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        print(proxy.getsockname()[1], flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
