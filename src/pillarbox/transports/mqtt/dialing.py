"""A connected socket, with TLS if asked for, made without a thread and without blocking the loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

__all__ = ["dialed"]


async def dialed(host: str, port: int, *, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers; `OSError` or `TimeoutError` when none does in time."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        sock = await _first(loop, [(family, address) for family, _, _, _, address in found], share=seconds / len(found))
        try:
            # A batch is many small packets, and each of them should go at once.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if tls is None else await _encrypted(loop, sock, tls=tls, host=host)
        except BaseException:
            sock.close()
            raise


async def _first(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[tuple[int, tuple[object, ...]]], *, share: float
) -> socket.socket:
    """One that does not answer takes only its share of the time."""
    failure: OSError = OSError("the name has no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(share):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _encrypted(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, *, tls: ssl.SSLContext, host: str
) -> ssl.SSLSocket:
    secure = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await _moved(loop.add_reader, loop.remove_reader, secure)
            except ssl.SSLWantWriteError:
                await _moved(loop.add_writer, loop.remove_writer, secure)
            else:
                return secure
    except BaseException:
        secure.close()
        raise


async def _moved(watch: Callable[..., None], forget: Callable[[socket.socket], object], sock: socket.socket) -> None:
    """Until the socket can be read, or written."""
    moved = asyncio.Event()
    watch(sock, moved.set)
    try:
        await moved.wait()
    finally:
        forget(sock)
