"""What is said to the inbox's table and what its answers mean: generators that no driver knows of. Pure.

A program yields statements and is sent what each did; what it returns is the answer to its `InboxAsk`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pillarbox.protocols import InboxAsk
from pillarbox.writers.inbox import conflict, mysql
from pillarbox.writers.inbox.did import Did, Program
from pillarbox.writers.statements import Statement, Style

__all__ = ["Did", "Program", "perform", "perform_async", "program"]


def program(ask: InboxAsk, style: Style) -> Program:
    """The statements that do what is asked."""
    return mysql.program(ask) if style is Style.MYSQL else conflict.program(ask, style)


def perform(program: Program, execute: Callable[[Statement], Did]) -> Any:
    """Run a program on a synchronous handle."""
    statement = next(program)
    while True:
        try:
            statement = program.send(execute(statement))
        except StopIteration as end:
            return end.value


async def perform_async(program: Program, execute: Callable[[Statement], Awaitable[Did]]) -> Any:
    """Run a program on a handle that must be awaited."""
    statement = next(program)
    while True:
        try:
            statement = program.send(await execute(statement))
        except StopIteration as end:
            return end.value
