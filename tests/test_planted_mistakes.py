"""The table of planted mistakes is of the code as it is. `make mistakes` plants them."""

import planted_mistakes as planted
import pytest


def test_each_can_be_planted():
    assert planted.unplantable() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("no such line", ""),
        ("import", "from"),
        ("class Forward(", "class Forward("),
        ("class Forward(", " class Forward("),
    ],
)
def test_a_mistake_that_cannot_be_planted_is_reported(old, new, monkeypatch):
    slip = planted.Mistake("a slip", "jattn/engine/forward.py", old, new, ())
    monkeypatch.setattr(planted, "TABLE", [*planted.TABLE, slip])
    (told,) = planted.unplantable()
    assert told.startswith("a slip: ")


def test_the_tests_that_should_notice_exist():
    missing = []
    for test in sorted({test for m in planted.TABLE for test in m.tests}):
        file, _, name = test.partition("::")
        path = planted.ROOT / file
        if not path.exists() or (name and f"def {name.partition('[')[0]}(" not in path.read_text()):
            missing.append(test)
    assert missing == []
    assert len({m.name for m in planted.TABLE}) == len(planted.TABLE)
