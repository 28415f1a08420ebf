"""Topics of one region: found by name, or made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pillarbox.transports.aws.client import AwsClient, Refused
from pillarbox.transports.aws.names import is_fifo
from pillarbox.transports.aws.verdicts import Refusal, Verdict

__all__ = ["Topics"]


class Topics:
    """Places of SNS. One whose ARN is given needs no look-up."""

    def __init__(self, client: AwsClient, *, declare: bool) -> None:
        self._client = client
        self._declare = declare
        self._arns: dict[str, str] = {}

    async def find(self, name: str) -> str:
        if name.startswith("arn:"):
            return name
        if name not in self._arns:
            self._arns[name] = await self._looked_up(name)
        return self._arns[name]

    def forget(self, name: str) -> None:
        self._arns.pop(name, None)

    async def post(self, target: str, entries: Sequence[Mapping[str, object]]) -> Mapping[str, Any]:
        return await self._client.call("publish_batch", TopicArn=target, PublishBatchRequestEntries=entries)

    async def attributes(self, name: str) -> Mapping[str, str]:
        """A topic's settings."""
        answer = await self._client.call("get_topic_attributes", TopicArn=await self.find(name))
        return dict(answer.get("Attributes", {}))

    async def subscriptions(self, name: str) -> Sequence[Mapping[str, str]]:
        """The settings of its first hundred subscriptions."""
        answer = await self._client.call("list_subscriptions_by_topic", TopicArn=await self.find(name))
        arns = [one["SubscriptionArn"] for one in answer.get("Subscriptions", ())]
        return [await self._subscription(arn) for arn in arns if arn.startswith("arn:")]

    async def check(self, name: str | None) -> None:
        """Ask for this topic, or for any."""
        if name is None:
            await self._client.call("list_topics")
        else:
            self.forget(name)
            await self._client.call("get_topic_attributes", TopicArn=await self.find(name))

    async def _subscription(self, arn: str) -> Mapping[str, str]:
        answer = await self._client.call("get_subscription_attributes", SubscriptionArn=arn)
        return dict(answer.get("Attributes", {}))

    async def _looked_up(self, name: str) -> str:
        """SNS cannot be asked for a name: it lists its topics, or makes one that is there already."""
        if self._declare:
            attributes = {"FifoTopic": "true"} if is_fifo(name) else {}
            answer = await self._client.call("create_topic", Name=name, Attributes=attributes)
            return str(answer["TopicArn"])
        token: dict[str, object] = {}
        while True:
            page = await self._client.call("list_topics", **token)
            for topic in page.get("Topics", ()):
                if topic["TopicArn"].rpartition(":")[2] == name:
                    return str(topic["TopicArn"])
            if not page.get("NextToken"):
                raise Refused(Refusal(Verdict.MISSING, "NotFound", ""))
            token = {"NextToken": page["NextToken"]}
