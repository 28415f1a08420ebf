"""The whole relay, several at a time, on virtual time: killed, frozen, cut off, lied to, and watched by a checker."""

from __future__ import annotations
