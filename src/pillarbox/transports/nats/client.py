"""The one place that knows the insides of nats-py: what a transport needs and the client does otherwise.

Private names of the client are used here and nowhere else. When a release changes them, the transport's contract and
its TLS tests fail.
"""

from __future__ import annotations

from pillarbox.errors import MissingExtra

try:
    from nats.aio.client import Client as NatsClient
    from nats.errors import SecureConnWantedError
except ModuleNotFoundError as error:
    raise MissingExtra("nats-py", extra="nats", needed_for="The nats transport") from error

__all__ = ["Client"]


class Client(NatsClient):
    """A connection that dies once, at once, and takes what was not written with it."""

    def __init__(self, *, must_encrypt: bool = False, nkey: str | None = None) -> None:
        super().__init__()
        self._must_encrypt = must_encrypt
        self._public_nkey = nkey

    def write(self, commands: bytes) -> None:
        """Hand many commands to the socket at once: one by one the client takes five times as long.

        Its own buffer is passed by. What is written must be bounded by whoever writes.
        """
        if not self.is_connected or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._transport.write(commands)

    def abort(self) -> None:
        """Close the socket, whether or not the far side still reads."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def _connect_command(self) -> bytes:
        """The login. The client encrypts only if the server says so, and anyone in between can say otherwise."""
        writer = getattr(self._transport, "_io_writer", None)
        if self._must_encrypt and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise SecureConnWantedError
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Without the last flush, and without waiting for a far side that may be silent, or failed at TLS."""
        self._pending.clear()
        self._pending_data_size = 0
        self.abort()
        self._transport = None
        await super()._close(status, do_cbs)
