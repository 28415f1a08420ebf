"""A RabbitMQ server of our own: started from what is installed, free to be stopped and killed, gone afterwards.

It takes half a dozen seconds to start, so one serves a whole run (`shared`). It has TLS, the management API, logins by
certificate, and takes messages of up to 512 KiB. It needs no epmd and starts none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import trustme

from tests.support.private_program import free_port
from tests.support.servers import ServerMissing

__all__ = ["MAX_MESSAGE", "PrivateRabbitmq", "shared"]

MAX_MESSAGE: Final = 512 * 1024
_PATIENCE: Final = 120.0
_GREETING: Final = b"AMQP\x00\x00\x09\x01"
_FOLDERS: Final = ("/usr/lib/rabbitmq/lib/*/sbin", "/usr/lib/rabbitmq/bin", "/opt/rabbitmq*/sbin", "/opt/homebrew/sbin")
_LEASH: Final = 'exec 3<&0; (cat <&3 >/dev/null; kill -KILL 0) & exec "$@" </dev/null 3<&-'
"""Runs a program that ends with whoever holds the other end of its input, however that one dies."""
_PLUGINS: Final = "[rabbitmq_management, rabbitmq_auth_mechanism_ssl]."
_SETTINGS: Final = """
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {folder}/authority.pem
ssl_options.certfile = {folder}/server.pem
ssl_options.keyfile = {folder}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
management.tcp.ip = 127.0.0.1
management.tcp.port = {management_port}
load_definitions = {folder}/definitions.json
max_message_size = {max_message}
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = warning
log.file = false
"""
_EVERYTHING: Final = {"configure": ".*", "write": ".*", "read": ".*"}
_DEFINITIONS: Final = {
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "users": [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "limited", "password": "canary-limited", "tags": []},
        {"name": "by-certificate", "password": "", "tags": []},
    ],
    "permissions": [
        {"user": "guest", "vhost": "/", **_EVERYTHING},
        {"user": "guest", "vhost": "shop", **_EVERYTHING},
        {"user": "by-certificate", "vhost": "/", **_EVERYTHING},
        {"user": "limited", "vhost": "/", "configure": "", "write": "^allowed", "read": ""},
    ],
}


@dataclass(slots=True)
class PrivateRabbitmq:
    """A server on free loopback ports, with its data in a temporary folder. Its methods block until done."""

    programs: Path
    folder: Path
    port: int
    tls_port: int
    management_port: int
    distribution_port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def started(cls) -> PrivateRabbitmq:
        """A new one that answers, or `ServerMissing`."""
        programs = next(iter(_program_folders()), None)
        if programs is None:
            raise ServerMissing("none answers at the usual port, and its programs are not installed")
        server = cls(programs, Path(tempfile.mkdtemp(prefix="pillarbox-rabbitmq-")), *(free_port() for _ in range(4)))
        try:
            server._prepare()
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def url(self) -> str:
        """As guest, who may do everything. The same after each restart."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def authority(self) -> Path:
        """The certificate of who signed the server's."""
        return self.folder / "authority.pem"

    @property
    def client_certificate(self) -> Path:
        """A certificate, with its key, of the user `by-certificate`."""
        return self.folder / "client.pem"

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self.management_port}"

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        path = self.folder / "out"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Run it, and return once it answers. Fine when it runs already."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            self._process = self._spawn("rabbitmq-server")
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerMissing(f"a private one did not start, and wrote: {self.log[-500:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as the kernel does when memory runs out: nothing more is written, nobody is told."""
        if self._process is not None:
            _end(self._process)
            self._process = None
        while _is_taken(self.port):
            time.sleep(0.01)

    def control(self, *arguments: str) -> None:
        """Run `rabbitmqctl` against it."""
        process = self._spawn("rabbitmqctl", "--quiet", *arguments)
        try:
            if process.wait(_PATIENCE) != 0:
                raise RuntimeError(f"rabbitmqctl {arguments[0]} failed: {self.log[-500:]}")
        finally:
            _end(process)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        """By AMQP, and by HTTP: the management API comes last."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
                line.sendall(_GREETING)
                return line.recv(1) == b"\x01" and _is_taken(self.management_port)
        except OSError:
            return False

    def _prepare(self) -> None:
        _write_certificates(self.folder)
        (self.folder / "definitions.json").write_bytes(msgspec.json.encode(_DEFINITIONS))
        (self.folder / "enabled_plugins").write_text(_PLUGINS)
        (self.folder / "rabbitmq.conf").write_text(
            _SETTINGS.format(
                folder=self.folder, port=self.port, tls_port=self.tls_port,
                management_port=self.management_port, max_message=MAX_MESSAGE,
            )
        )  # fmt: skip

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "out").open("ab") as out:
            return subprocess.Popen(
                ["/bin/sh", "-c", _LEASH, "leash", self.programs / program, *arguments],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for pytest, which then ends the server
            )

    def _environment(self) -> dict[str, str]:
        without_epmd = f"-start_epmd false -erl_epmd_port {self.distribution_port}"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"pillarbox{self.port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{without_epmd} -kernel inet_dist_use_interface {{127,0,0,1}}",
            "RABBITMQ_CTL_ERL_ARGS": f"{without_epmd} -dist_listen false",
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: it has a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_PATIENCE)
    assert process.stdin is not None
    process.stdin.close()


@cache
def shared() -> PrivateRabbitmq:
    """The one of this process, started when it is first asked for. Leave it running, and empty."""
    server = PrivateRabbitmq.started()
    atexit.register(server.close)
    return server


def _program_folders() -> Sequence[Path]:
    """Not Debian's `/usr/sbin`: the script there changes the user, and with it the folder that it may write to."""
    if named := os.environ.get("PILLARBOX_TEST_RABBITMQ_PROGRAMS"):
        return [Path(named)]
    folders = [folder for pattern in _FOLDERS for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    found = shutil.which("rabbitmq-server")
    others = [Path(found).parent] if found and not Path("/usr/lib/rabbitmq").exists() else []
    return [folder for folder in (*folders, *others) if (folder / "rabbitmq-server").exists()]


def _write_certificates(folder: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    server.private_key_pem.write_to_path(str(folder / "server.key"))
    client = authority.issue_cert("client@shop.test", common_name="by-certificate")
    client.private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))


def _is_taken(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
