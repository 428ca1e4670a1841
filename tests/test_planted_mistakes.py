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


def test_the_tests_that_should_notice_exist(request):
    """Of each file that is run as a whole here, with the case in brackets."""
    options = request.config.option
    cases = {item.nodeid for item in request.session.items}
    partly = options.keyword or options.markexpr or options.one_in > 1 or any("::" in a for a in request.config.args)
    whole = set() if partly else {case.partition("::")[0] for case in cases}

    def exists(test):
        file, _, name = test.partition("::")
        if file in whole and "[" in name:
            return test in cases
        path = planted.ROOT / file
        return path.exists() and (not name or f"def {name.partition('[')[0]}(" in path.read_text())

    assert [test for m in planted.TABLE for test in m.tests if not exists(test)] == []
    assert len({m.name for m in planted.TABLE}) == len(planted.TABLE)
