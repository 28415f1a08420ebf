"""The order in which servers are found, and what becomes of a test that gets none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.support.servers import ServerMissing, found, redacted


@dataclass
class Started:
    """A private server that only notes its end."""

    url: str = "fake://private"
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeServer:
    """A kind of server of which only some answer."""

    answering: Sequence[str] = ()
    private: Started | None = field(default_factory=Started)
    name: str = "Fake"
    variable: str = "PILLARBOX_TEST_FAKE"
    remedy: str = "install Fake"

    def usual_urls(self) -> Sequence[str]:
        return ["fake://first", "fake://second"]

    def refusal(self, url: str) -> str | None:
        return None if url in self.answering else "nobody answers"

    def start_private(self) -> Started:
        if self.private is None:
            raise ServerMissing("no programs")
        return self.private


def url_of(server: FakeServer, **environ: str) -> str:
    with found(server, environ=environ) as url:
        return url


def test_the_variable_wins_over_the_usual_port() -> None:
    server = FakeServer(answering=["fake://named", "fake://first"])

    assert url_of(server, PILLARBOX_TEST_FAKE="fake://named") == "fake://named"


def test_the_first_usual_place_that_answers_is_taken() -> None:
    assert url_of(FakeServer(answering=["fake://second"])) == "fake://second"


def test_an_empty_variable_names_nothing() -> None:
    assert url_of(FakeServer(answering=["fake://first"]), PILLARBOX_TEST_FAKE="") == "fake://first"


def test_a_private_server_is_the_last_way_and_is_closed_afterwards() -> None:
    server = FakeServer()

    with found(server, environ={}) as url:
        assert url == "fake://private"
        assert server.private == Started(closed=False)

    assert server.private == Started(closed=True)


def test_a_private_server_is_closed_when_the_tests_break() -> None:
    server = FakeServer()

    with pytest.raises(KeyboardInterrupt), found(server, environ={}):
        raise KeyboardInterrupt

    assert server.private == Started(closed=True)


def test_a_named_server_that_does_not_answer_fails_and_hides_its_password() -> None:
    environ = {"PILLARBOX_TEST_FAKE": "fake://me:hunter2@named"}

    with pytest.raises(pytest.fail.Exception) as failure, found(FakeServer(), environ=environ):
        pass

    assert str(failure.value) == (
        "PILLARBOX_TEST_FAKE names fake://me:***@named, which cannot be used: nobody answers."
    )


def outcome_without_a_server(environ: Mapping[str, str]) -> BaseException:
    """What ends the test: caught whichever it is, for a skip that escaped would skip the test that looks for it."""
    with (
        pytest.raises((pytest.skip.Exception, pytest.fail.Exception)) as ended,
        found(FakeServer(private=None), environ=environ),
    ):
        pass
    assert str(ended.value) == (
        "No Fake for this test (no programs): install Fake, or set PILLARBOX_TEST_FAKE to its URL."
    )
    return ended.value


@pytest.mark.parametrize("environ", [{}, {"CI": ""}, {"CI": "false"}])
def test_a_missing_server_skips_with_a_sentence(environ: Mapping[str, str]) -> None:
    assert isinstance(outcome_without_a_server(environ), pytest.skip.Exception)


@pytest.mark.parametrize("word", ["true", "1"])
def test_in_ci_a_missing_server_is_a_failure(word: str) -> None:
    assert isinstance(outcome_without_a_server({"CI": word}), pytest.fail.Exception)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@localhost/x", "postgresql://me:***@localhost/x"),
        ("postgresql://me@localhost/x", "postgresql://me@localhost/x"),
    ],
)
def test_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown
