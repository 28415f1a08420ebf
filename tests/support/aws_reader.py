"""A consumer that knows nothing of Pillarbox: boto3 alone. Its methods block."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import boto3
import msgspec

__all__ = ["Arrived", "AwsReader"]

REGION = "eu-central-1"


class Arrived(msgspec.Struct, frozen=True):
    """A message as SQS gave it."""

    body: str
    attributes: Mapping[str, str]
    system: Mapping[str, str]


class AwsReader:
    """Makes queues and topics with names of its own, in a moto that goes with them, and reads them."""

    def __init__(self, url: str) -> None:
        self.url = url
        login: Mapping[str, Any] = {
            "region_name": REGION,
            "aws_access_key_id": "reader",
            "aws_secret_access_key": "reader",
        }
        self.sqs = boto3.client("sqs", endpoint_url=url, **login)
        self.sns = boto3.client("sns", endpoint_url=url, **login)
        self._urls: dict[str, str] = {}

    def name(self, suffix: str = "") -> str:
        return f"test-{secrets.token_hex(6)}{suffix}"

    def queue(self, name: str, **attributes: str) -> str:
        """Make a queue; returns its URL."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        self._urls[name] = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return self._urls[name]

    def topic(self, name: str, *, queue: str | None = None) -> str:
        """Make a topic, and subscribe that queue to it, raw; returns its ARN."""
        attributes = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        arn: str = self.sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
        if queue is not None:
            raw = {"RawMessageDelivery": "true"}
            self.sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=self.queue_arn(queue), Attributes=raw)
        return arn

    def queue_arn(self, name: str) -> str:
        answer = self.sqs.get_queue_attributes(QueueUrl=self._url(name), AttributeNames=["QueueArn"])
        return str(answer["Attributes"]["QueueArn"])

    def settings(self, name: str) -> Mapping[str, str]:
        answer = self.sqs.get_queue_attributes(QueueUrl=self._url(name), AttributeNames=["All"])
        return dict(answer["Attributes"])

    def read(self, name: str) -> Sequence[Arrived]:
        """All that is in the queue now; it is gone from there afterwards."""
        url, arrived = self._url(name), []
        while found := self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        ).get("Messages"):
            handles = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)]
            self.sqs.delete_message_batch(QueueUrl=url, Entries=handles)
            arrived += [_arrived(message) for message in found]
        return arrived

    def close(self) -> None:
        """Let go of the connections."""
        self.sqs.close()
        self.sns.close()

    def _url(self, name: str) -> str:
        if name not in self._urls:
            self._urls[name] = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        return self._urls[name]


def _arrived(message: Mapping[str, Any]) -> Arrived:
    attributes = {name: value["StringValue"] for name, value in message.get("MessageAttributes", {}).items()}
    return Arrived(message["Body"], attributes, message.get("Attributes", {}))


def policy(target: str, *, tries: int) -> str:
    """A queue's RedrivePolicy."""
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": tries})
