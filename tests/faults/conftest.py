"""A clean run for each number of ranks, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import Started, settings


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def clean(work):
    made: dict[int, Started] = {}

    def run(world: int) -> Started:
        if world not in made:
            made[world] = Started(work, settings(work, f"clean-{world}"), world).finish()
        return made[world]

    return run


@pytest.fixture
def start(work):
    """Started, with whatever is left of it killed at the end of the test."""
    begun: list[Started] = []

    def run(*arguments, **named) -> Started:
        begun.append(Started(work, *arguments, **named))
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
