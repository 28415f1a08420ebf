"""The answers to one send, as they come in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pillarbox.transports.kafka.records import Record
from pillarbox.transports.kafka.verdicts import DELIVERED, SILENT, Answer, Verdict, answer_of

__all__ = ["Batch", "ClientError"]


class ClientError(Protocol):
    """What the client says when it has not delivered."""

    def code(self) -> int: ...

    def str(self) -> str: ...

    def fatal(self) -> bool: ...


class Batch:
    """One answer per record. `done` when the last one is there, or no more are waited for."""

    __slots__ = ("_answers", "done", "left", "records")

    def __init__(self, records: Sequence[Record], *, done: asyncio.Future[None]) -> None:
        self.records = records
        self.done = done
        self._answers: list[Answer | None] = [None] * len(records)
        self.left = len(records)
        """How many answers are missing."""

    def answered(self, index: int, error: ClientError | None, message: object = None) -> None:  # noqa: ARG002
        """The cluster's word on one record, or the client's. What comes after the end is not heard."""
        if self.left:
            self._answers[index] = DELIVERED if error is None else self._read(index, error)
            self.left -= 1
            if not self.left:
                self._finish()

    def refused(self, index: int, error: ClientError) -> None:
        """The client did not even take this one: whatever it says is about this record alone."""
        self.answered(index, error)
        if (answer := self._answers[index]) is not None and answer.verdict is Verdict.SUSPECT:
            self._answers[index] = Answer(Verdict.REJECTED, answer.text)

    def end(self, answer: Answer = SILENT) -> None:
        """No more are waited for: this is the answer for those that are missing."""
        if self.left:
            self._answers = [answer if known is None else known for known in self._answers]
            self.left = 0
            self._finish()

    @property
    def answers(self) -> list[Answer]:
        """One per record."""
        return [SILENT if answer is None else answer for answer in self._answers]

    def _read(self, index: int, error: ClientError) -> Answer:
        topic = self.records[index].topic
        return answer_of(error.code(), topic=topic, said=error.str(), fatal=error.fatal())

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
