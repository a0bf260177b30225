"""Stories that once broke a promise, as short as they get."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.story.notation import read_stories, written
from tests.story.story import apart, tell

FOUND = Path(__file__).with_name("found.txt").read_text()
STORIES = {rule: (seed, events) for rule, seed, events in read_stories(FOUND)}


@pytest.mark.parametrize("rule", STORIES)
def test_a_story_that_once_broke_a_promise_keeps_it(rule: str) -> None:
    seed, events = STORIES[rule]
    told = apart(lambda: tell(seed, events))
    assert not told.failure, "\n".join((*told.trace, told.failure))


def test_stories_are_written_as_they_are_read() -> None:
    assert "\n\n".join(written(rule, *story) for rule, story in STORIES.items()) + "\n" == FOUND
