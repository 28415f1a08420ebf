"""Topics that are created before they are used, and topics that were missing when they were."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from pillarbox.transports.kafka.verdicts import Answer, Verdict

__all__ = ["Topics"]


class Topics:
    """Which topics can be used. A missing one is asked for anew by each send: it may have been created."""

    def __init__(
        self,
        *,
        ask: Callable[[str], Awaitable[Answer]],
        create: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._ask = ask
        self._create = create
        self._created: set[str] = set()
        self._doubted: set[str] = set()

    async def unusable(self, topics: Iterable[str]) -> Mapping[str, Answer]:
        """Those that cannot be used now, and why."""
        if self._create is not None:
            await self._declare(set(topics) - self._created)
        if not self._doubted:
            return {}
        answers = {topic: await self._ask(topic) for topic in self._doubted.intersection(topics)}
        found = {topic: answer for topic, answer in answers.items() if answer.verdict is Verdict.OUTAGE}
        self._doubted -= answers.keys() - found.keys()
        return found

    def doubt(self, topic: str) -> None:
        """The cluster says that it cannot be used."""
        self._doubted.add(topic)
        self._created.discard(topic)

    async def _declare(self, missing: set[str]) -> None:
        if missing and self._create is not None:
            await self._create(sorted(missing))
            self._created |= missing
