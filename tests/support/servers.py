"""Finds the servers that tests talk to. One class per server, such as `tests.support.postgres_server.PostgresServer`.

In this order: the server that a variable names; the one at the usual local port; a private one, started for this
session and removed after it. Where none of them works the test is skipped with a sentence that says how to get one;
with CI=true it fails instead, so that nothing is left out unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import NoReturn, Protocol
from urllib.parse import urlsplit

import pytest

__all__ = ["PrivateServer", "Server", "ServerMissing", "found", "missing", "redacted"]


class ServerMissing(Exception):
    """No such server can be had here. The text is the reason alone."""


class PrivateServer(Protocol):
    """A running server that belongs to these tests."""

    @property
    def url(self) -> str:
        """Where it answers."""

    def close(self) -> None:
        """Stop it and remove all it made."""


class Server(Protocol):
    """One kind of server, and the ways to get at it."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def variable(self) -> str:
        """The environment variable that names one by its URL."""

    @property
    def remedy(self) -> str:
        """How to get one, as the end of a sentence."""

    def usual_urls(self) -> Sequence[str]:
        """Where one often runs on a developer's machine, best first."""

    def refusal(self, url: str) -> str | None:
        """Why the server at this URL cannot be used; None when it can."""

    def start_private(self) -> PrivateServer:
        """Start one of our own, or `ServerMissing`."""


@contextmanager
def found(server: Server, *, environ: Mapping[str, str]) -> Iterator[str]:
    """The URL of a server that answers, for as long as the block runs; or a skip, or with CI=true a failure.

    A variable that names a server which does not answer is always a failure: somebody meant that server.
    """
    url = environ.get(server.variable)
    if url:
        _insist(server, url)
    else:
        url = next((usual for usual in server.usual_urls() if server.refusal(usual) is None), None)
    if url is not None:
        yield url
        return
    try:
        private = server.start_private()
    except ServerMissing as reason:
        missing(server, reason=str(reason), environ=environ)
    with closing(private):
        yield private.url


def missing(server: Server, *, reason: str, environ: Mapping[str, str]) -> NoReturn:
    """End the test for want of a server: skipped on a developer's machine, failed in CI."""
    sentence = f"No {server.name} for this test ({reason}): {server.remedy}, or set {server.variable} to its URL."
    if environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


def _insist(server: Server, url: str) -> None:
    refusal = server.refusal(url)
    if refusal is not None:
        pytest.fail(f"{server.variable} names {redacted(url)}, which cannot be used: {refusal}.", pytrace=False)


def redacted(url: str) -> str:
    """The URL with its password hidden."""
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url
