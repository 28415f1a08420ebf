"""Messages that no handler takes: acknowledged, and said once for each type."""

from __future__ import annotations

import logging

import pytest

from pillarbox.cloudevents import from_message
from pillarbox.consumer.telemetry import LoggingConsumerTelemetry
from pillarbox.testing.samples import sample


def test_a_type_that_no_handler_takes_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = LoggingConsumerTelemetry()
    caplog.set_level(logging.DEBUG, "pillarbox.consumer")
    for type_ in ("orders.plcaed", "orders.plcaed", "orders.paid"):
        telemetry.on_ignored("billing", from_message(sample(type=type_)))
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "WARNING"]
    assert "no handler of billing takes the type orders.plcaed" in caplog.records[0].getMessage()


def test_senders_that_make_types_up_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = LoggingConsumerTelemetry()
    caplog.set_level(logging.WARNING, "pillarbox.consumer")
    for number in range(1_100):
        telemetry.on_ignored("billing", from_message(sample(type=f"made.up.{number}")))
    assert len(caplog.records) == 1_000
