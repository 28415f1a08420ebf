"""Queues of one region: found by name, or made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pillarbox.transports.aws.client import AwsClient, Refused
from pillarbox.transports.aws.names import is_fifo
from pillarbox.transports.aws.verdicts import Verdict

__all__ = ["Queues"]

_SAFE: Final = {"MessageRetentionPeriod": "1209600", "SqsManagedSseEnabled": "true"}
"""What a queue that we make is like: it keeps messages for the 14 days that are possible, encrypted."""


class Queues:
    """Places of SQS. One whose URL is given needs no look-up."""

    def __init__(self, client: AwsClient, *, declare: bool) -> None:
        self._client = client
        self._declare = declare
        self._urls: dict[str, str] = {}

    async def find(self, name: str) -> str:
        if name.startswith("http"):
            return name
        if name not in self._urls:
            self._urls[name] = await self._looked_up(name)
        return self._urls[name]

    def forget(self, name: str) -> None:
        self._urls.pop(name, None)

    async def post(self, target: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        return await self._client.call("send_message_batch", QueueUrl=target, Entries=entries)

    async def attributes(self, name: str) -> Mapping[str, str]:
        """A queue's settings."""
        url = await self.find(name)
        answer = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return dict(answer.get("Attributes", {}))

    async def check(self, name: str | None) -> None:
        """Ask for this queue, or for any."""
        if name is None:
            await self._client.call("list_queues", MaxResults=1)
        else:
            self.forget(name)
            url = await self.find(name)
            if url == name:
                await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["QueueArn"])

    async def _looked_up(self, name: str) -> str:
        try:
            answer = await self._client.call("get_queue_url", QueueName=name)
        except Refused as error:
            if error.why.verdict is not Verdict.MISSING or not self._declare:
                raise
            fifo = {"FifoQueue": "true"} if is_fifo(name) else {}
            answer = await self._client.call("create_queue", QueueName=name, Attributes=_SAFE | fifo)
        return str(answer["QueueUrl"])
