"""Messages that no route wanted: the relay closes them as skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pillarbox.message import Message, State
from pillarbox.protocols import Outcome, TransportFeatures, Trouble
from pillarbox.relay.judging import Judge, Verdict

__all__ = ["SkippingJudge", "SkippingTransport"]


class SkippingTransport:
    """Sends nothing anywhere."""

    features: Final = TransportFeatures(name="skipping")

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [Outcome(True)] * len(messages)


class SkippingJudge(Judge):
    """Closes every message as skipped."""

    def judge(self, messages: Sequence[Message], outcomes: Sequence[Outcome], *, began: int, dice: float) -> Verdict:
        del outcomes, began, dice
        return Verdict([], [(message, _skip(message)) for message in messages], [])


def _skip(message: Message) -> Trouble:
    return Trouble(message_id=message.id, state=State.SKIPPED, error="no route matched")
