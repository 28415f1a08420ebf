"""Threads whose work belongs to whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

__all__ = ["Threads"]


class Threads(ThreadPoolExecutor):
    """Work keeps the context of its caller: a statement belongs to a call."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))
