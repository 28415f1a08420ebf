"""The options of the SQS and SNS transports, from a URL or a table."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pillarbox.brokers.aws import SnsTransport, SqsTransport
from pillarbox.brokers.factory import transport_from_url
from pillarbox.errors import ConfigError

CANARY = "canary-0123456789"


def refused(url: str, **options: object) -> str:
    with pytest.raises(ConfigError) as error:
        transport_from_url(url, options=options)
    return str(error.value)


def test_all_options_in_a_url() -> None:
    transport = transport_from_url(
        "sqs://eu-central-1?queue=shop-{topic}.fifo&user=key&password=secret&session_token=token&profile=shop"
        "&endpoint=http://localhost:4566&concurrency=3&mode=binary&timeout=2s&declare=true"
    )
    assert isinstance(transport, SqsTransport)
    assert (transport.settings.region, transport.settings.template) == ("eu-central-1", ("queue", "shop-{topic}.fifo"))
    assert (transport.settings.concurrency, transport.settings.mode) == (3, "binary")


def test_a_url_or_an_arn_instead_of_a_name() -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/{topic}"
    sqs = transport_from_url("sqs://eu-central-1", options={"queue_url": url})
    assert isinstance(sqs, SqsTransport)
    assert sqs.settings.template == ("queue_url", url)
    arn = "arn:aws:sns:eu-central-1:123456789012:{topic}"
    sns = transport_from_url("sns://us-gov-east-1", options={"topic_arn": arn})
    assert isinstance(sns, SnsTransport)
    assert sns.settings.template == ("topic_arn", arn)


def test_the_defaults_are_the_safe_ones() -> None:
    transport = transport_from_url("sqs://eu-central-1")
    assert isinstance(transport, SqsTransport)
    settings = transport.settings
    assert (settings.queue, settings.mode, settings.declare, settings.verify) == ("{topic}", "structured", False, True)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqs://Frankfurt!", "cannot be read"),
        ("sqs://frankfurt", "names a region"),
        ("sqs://eu-central-1/orders", "names a region"),
        ("sns://eu-central-1,eu-west-1", "names a region"),
        ("sqs:", "needs a host"),
        ("sqs://eu-central-1?queue={tenant}", "no such field"),
        ("sqs://eu-central-1?queue=" + "x" * 81, "1 to 80"),
        ("sqs://eu-central-1?queue_url=orders", "cannot be read"),
        ("sqs://eu-central-1?queue_url=https://a.example/1/q&declare=true", "needs queue"),
        ("sns://eu-central-1?topic_arn=orders", "cannot be read"),
        ("sns://eu-central-1?topic_arn=arn:aws:sns:x:1:q&declare=true", "needs topic"),
        ("sqs://eu-central-1?endpoint=localhost:4566", "is a URL such as"),
        ("sqs://eu-central-1?endpoint=http://a:b%40localhost", "without a login"),
        ("sqs://eu-central-1?endpoint=http://localstack:4566", "insecure=true"),
        ("sqs://eu-central-1?concurrency=0", "between 1 and 1000"),
        ("sqs://key@eu-central-1", "no password"),
        ("sqs://eu-central-1?topic=orders", "no option 'topic'"),
        ("sqs://eu-central-1?url=x", "twice"),
        ("sqs://eu-central-1?verify=false", "insecure=true"),
        ("sqs://eu-central-1?mode=raw", "binary or structured"),
    ],
)
def test_what_is_wrong_is_said(url: str, says: str) -> None:
    assert says in refused(url)


def test_an_unencrypted_endpoint_is_meant() -> None:
    transport_from_url("sqs://eu-central-1?endpoint=http://localstack:4566&insecure=true")
    transport_from_url("sqs://eu-central-1?endpoint=http://127.0.0.1:4566")


@pytest.mark.parametrize("scheme", ["sqs", "sns"])
def test_secrets_are_shown_nowhere(scheme: str) -> None:
    transport = transport_from_url(f"{scheme}://key:{CANARY}@eu-central-1?session_token={CANARY}")
    assert isinstance(transport, (SqsTransport, SnsTransport))
    assert CANARY not in repr(transport) + repr(transport.settings) + repr(transport.__dict__)
    assert CANARY not in refused(f"{scheme}://key:{CANARY}@eu-central-1?concurrency=x")


def test_a_missing_driver_names_its_command() -> None:
    program = (
        "import sys; sys.modules['aiobotocore'] = None\n"
        "from pillarbox.errors import MissingExtra\n"
        "from pillarbox.brokers.factory import transport_from_url\n"
        "try: transport_from_url('sqs://eu-central-1')\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "The sqs or sns transport needs the package aiobotocore, which is not installed: run pip install "
        '"pillarbox[aws]".'
    )
