"""Who plays: an order service, two relays and a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from pillarbox.demo import consumer, relays, shop
from pillarbox.demo.processes import Process
from pillarbox.demo.stage import Stage
from pillarbox.demo.story import Story

__all__ = ["Cast"]

_RELAYS: Final = 2


class Cast:
    """The processes. Leaving the block kills whoever is left."""

    def __init__(self, story: Story, stage: Stage) -> None:
        store, line = stage.place.settings, stage.line
        self._folder = stage.folder
        self.shop = self._process("order service", shop.MODULE, shop.arguments(story), store)
        self.consumer = self._process(
            "consumer", consumer.MODULE, consumer.arguments(ledger=stage.ledger_file), consumer.settings(line)
        )
        self.relays = [
            self._process(f"relay {number}", relays.MODULE, relays.arguments(), store | relays.settings(line))
            for number in range(1, _RELAYS + 1)
        ]

    def __enter__(self) -> Cast:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as everyone:
            for process in (self.shop, self.consumer, *self.relays):
                everyone.callback(process.kill)

    def _process(self, name: str, module: str, arguments: Sequence[str], settings: dict[str, str]) -> Process:
        return Process(name, module=module, arguments=arguments, folder=self._folder, settings=settings)
