"""Starts the coverage of a program that a test starts; see `coverage_plugin`."""

from __future__ import annotations

import coverage

coverage.process_startup()
