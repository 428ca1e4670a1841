"""A story on a page, in a real browser: its steps, its keys, its links, and who can read it."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import re

import numpy as np
import pytest
from _browser import axe, in_both, in_both_colours, of_each, only_chromium, planted, until, visits

from jattn import page

pytestmark = pytest.mark.structure

NAMES = ["river", "money", "the"]
K = np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])
F = 12
Q = np.stack([np.linspace(1, 3, F), np.linspace(0, -0.4, F)], 1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


P = softmax(Q @ K.T / np.sqrt(2))
RUN = page.run({"q": Q, "k": K, "weights": P, "loss": -np.log(P[:, 0])}, NAMES, target=0, optimiser="one")
OTHER = page.run({"q": -Q, "k": K, "weights": P[::-1]}, NAMES, target=1, optimiser="two")
LOGITS = K @ K.T / np.sqrt(2)
HEAD = page.weights(
    softmax(LOGITS),
    NAMES,
    NAMES,
    scores=K @ K.T,
    scaled=LOGITS,
    values=K,
    out=softmax(LOGITS) @ K,
    keys=K,
    gains=K @ K.T,
)
HEADS = page.heads(np.stack([softmax(LOGITS * n) for n in range(4)]).reshape(2, 2, 3, 3), NAMES, NAMES)
HOSTILE = "</noscript></script><b>loud</b> {{script}} \ud800"
STEPS = [
    page.Step("Start", "q at its start.\n\nA second paragraph.", "plane"),
    page.Step("Later", HOSTILE, ["pulls", "loss"], 7, "Drag it.", key=1),
    page.Step("Row", "One row.", "steps", part=1, row=2, key=0),
    page.Step("Other", "Another run.", ("weights", "training"), 3, "Press Play.", part=3),
    page.Step("Heads", "A head. " * 40, "arcs", part=2, head=(1, 0)),
]
PARTS = (RUN, HEAD, HEADS, OTHER)
LIT = [["The path of q over the field −dL/dq"], ["The pull of each key", "loss"], ["Every step of one row"],
       ["What it attends to, and why", "Training time"], ["The arcs of layer 1, head 0"]]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("stories")
    page.write(made / "story.html", "A story", page.story(PARTS, STEPS, title="Told"))
    return made


@pytest.fixture
def visit(browser, folder):
    with visits(browser, folder) as go:
        yield lambda name="story.html", **how: go(name, **{"reduced_motion": "reduce"} | how)  # what is clicked stays


def letters(text):
    return re.sub(r"[\s.?\ud800\ufffd]", "", text)


def told(view):
    return " ".join(view.locator(".told").text_content().split())


def check_steps(view):
    """Next and Back, and that each step shows what it should, says so, and is the one that is marked."""
    for i, step in enumerate(STEPS):
        assert told(view).startswith(f"{i + 1} of 5: {step.title}")
        lit = view.locator(".lit").all()
        heads = [
            x.evaluate("x => (x.querySelector('h2, h3') ?? x.closest('.panel').querySelector('h2')).textContent")
            for x in lit
        ]
        assert sorted(heads) == sorted(LIT[i])
        assert view.locator(".look a").all_text_contents() == LIT[i]
        assert view.locator("nav [aria-current=step]").all_text_contents() == [f"{i + 1} {step.title}"]
        if step.part in (0, 3):
            assert view.locator("#frame").input_value() == str(step.frame or 0)
            shown = [
                float(x) for x in view.locator("table.map").first.locator("td:not(.entropy)").all_text_contents() if x
            ]
            np.testing.assert_allclose(shown, (P[::-1] if step.part else P)[step.frame or 0], atol=6e-4)
        assert view.locator(".aside p").first.text_content() == (f"Try: {step.try_}" if step.try_ else "")
        after = STEPS[i + 1].title if i + 1 < len(STEPS) else None
        button = view.get_by_role("button", name=f"Next: {after}" if after else "Next", exact=True)
        assert button.get_attribute("aria-disabled") == str(after is None).lower()
        if after:
            button.click()
            assert view.evaluate("location.hash") == f"#step-{i + 2}"
    view.get_by_role("button", name="Back: Other").click()
    assert told(view).startswith("4 of 5")


def check_keys(view):
    """The arrows belong to the story while it has the focus, and to sliders and the query while they have it."""
    view.locator("#frame").focus()
    view.keyboard.press("ArrowRight")
    assert view.locator("#frame").input_value() == "1"
    view.locator(".handle").focus()
    view.keyboard.press("ArrowRight")
    assert told(view).startswith("1 of 5"), "the arrow moved q, and not the story"
    view.get_by_role("button", name="Next: Later").focus()
    for key, at in (
        ("ArrowRight", 2),
        ("ArrowRight", 3),
        ("ArrowLeft", 2),
        ("Shift+ArrowRight", 2),
        *[("ArrowRight", n) for n in (3, 4, 5, 5)],
    ):
        view.keyboard.press(key)
        assert told(view).startswith(f"{at} of 5")
    # What is disabled loses the focus when the page is drawn next.
    view.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert view.evaluate("document.activeElement.textContent") == "Next", "it keeps the focus at the end too"
    view.locator(".look a").focus()
    view.keyboard.press("ArrowLeft")
    view.keyboard.press("ArrowLeft")
    assert told(view).startswith("3 of 5"), "the focus is not lost with a link that goes"


def check_read(view):
    """What a screen reader is told: a region with a name, its steps as links, and the text where it is live."""
    region = view.get_by_role("region", name="Told", exact=True)
    links = view.get_by_role("navigation", name="Steps of “Told”").get_by_role("link")
    assert links.all_text_contents() == [f"{i + 1} {step.title}" for i, step in enumerate(STEPS)]
    assert [x.get_attribute("href") for x in links.all()] == [f"#step-{i + 1}" for i in range(5)]
    live = region.locator("[aria-live=polite]")
    assert "q at its start." in live.first.text_content()
    assert [x.get_attribute("aria-keyshortcuts") for x in region.get_by_role("button").all()] == [
        "ArrowLeft",
        "ArrowRight",
    ]
    names = view.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(names)) == len(names), "no id stands twice"


def check_shown(view):
    """What a step outlines comes into sight between the story and the player."""
    links = view.locator(".story nav a")
    for i in (2, 0, 4, 3, 1):
        links.nth(i).click()
        top, bottom = view.evaluate(
            "[document.querySelector('.story').getBoundingClientRect().bottom, document.querySelector('#player').getBoundingClientRect().top]"
        )
        box = view.locator(".lit").first.bounding_box()
        assert top - 2 <= box["y"] <= bottom - 60, (i, top, box, bottom)


CHECKS = {f.__name__: f for f in (check_steps, check_keys, check_read, check_shown)}


@of_each("check", CHECKS, in_firefox=["check_keys", "check_shown"])
def test_each_step_of_a_story_can_be_read_and_reached(visit, check):
    view = visit()
    CHECKS[check](view)
    assert view.seen == []


PLANTED = {
    "a frozen button": ("check_steps", "onclick: () => go(at + 1)", "onclick: () => go(at)"),
    "nothing is outlined": ("check_steps", 'x.classList.add("lit")', 'x.classList.add("dim")'),
    "a frame that is not shown": ("check_steps", "go(frame, fresh)", "go(0, fresh)"),
    "keys that are taken everywhere": ("check_keys", 'main.prepend(story.node);', 'main.prepend(story.node); addEventListener("keydown", (e) => e.key === "ArrowRight" && story.node.querySelector(".main").click());'),
    "the focus is lost at the end": ("check_keys", 'b.setAttribute("aria-disabled", String(!steps[to]));', 'b.setAttribute("aria-disabled", String(!steps[to])); b.disabled = !steps[to];'),
    "a lost label": ("check_read", '"aria-labelledby": heading.id, onkeydown', "onkeydown"),
    "nothing is read out": ("check_read", '"aria-live": "polite", "aria-atomic"', '"aria-atomic"'),
    "it stays where it is": ("check_shown", "    scroll();\n", ""),
}  # fmt: skip


@only_chromium  # that a check can fail is shown once
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_into_the_page_is_noticed(visit, folder, name):
    check, old, new = PLANTED[name]
    view = visit(planted(folder, "story.html", old, new))
    view.set_default_timeout(700)
    with pytest.raises(Exception, match=r"assert|Timeout"):
        CHECKS[check](view)


@in_both
def test_a_link_opens_a_step_and_the_address_follows(visit):
    view = visit(at="#step-4")
    until(view, "document.querySelector('.told h3').textContent.startsWith('4 of 5')")
    assert view.locator("#frame").input_value() == "3"
    view.evaluate("location.hash = '#step-2'")
    until(view, "document.querySelector('.told h3').textContent.startsWith('2 of 5')")
    view.evaluate("location.hash = '#main'")
    view.locator("nav a").nth(2).click()
    assert view.evaluate("location.hash") == "#step-3"
    view.locator(".look a").click()
    until(view, "document.activeElement.querySelector('h2')?.textContent === 'Every step of one row'")
    assert told(visit(at="#step-9")).startswith("1 of 5"), "no such step"
    assert view.seen == []


def test_with_reduced_motion_nothing_glides(visit):
    for motion in ("reduce", "no-preference"):
        view = visit(reduced_motion=motion)
        at = view.evaluate("document.querySelectorAll('.story nav a')[2].click(); scrollY")
        view.wait_for_timeout(900)
        assert (abs(view.evaluate("scrollY") - at) <= 1) == (motion == "reduce"), "but for the rest of a pixel"
        assert view.evaluate("scrollY") > 300


@in_both_colours
def test_axe_finds_no_fault_of_accessibility_in_a_story(visit, scheme):
    view = visit(color_scheme=scheme, at="#step-2")
    broken, report = axe(view)
    assert broken == set(), report
    view.evaluate(
        "document.querySelector('.story nav').removeAttribute('aria-label'); document.querySelector('.story .main').textContent = ''; document.querySelector('.story .main').removeAttribute('aria-label')"
    )
    assert axe(view, "button-name")[0] == {"button-name"}, "the control"


@in_both
def test_on_a_phone_the_buttons_stay_and_nothing_scrolls_sideways(visit):
    view = visit(viewport={"width": 320, "height": 640})
    for i in range(5):
        view.locator(".story nav a").nth(i).click()
        assert view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    view.evaluate("scrollTo(0, 2500)")
    assert 0 <= view.get_by_role("button", name="Back: Other").bounding_box()["y"] < 60
    view.get_by_role("button", name="Back: Other").click()
    assert 0 <= view.locator(".told").bounding_box()["y"] < 200, "the new text is in sight"
    assert view.evaluate("document.querySelector('.story').offsetHeight") > 200


def check_listed(steps):
    items = steps.locator("li").all()
    for item, step in zip(items, STEPS, strict=True):
        assert item.is_visible()
        tried = f"Try: {step.try_}" if step.try_ else ""
        assert letters(item.text_content()) == letters(step.title + step.text + tried)


@only_chromium  # no other prints to a view that can be asked
def test_on_paper_every_step_is_listed(visit):
    view = visit()
    whole = view.locator(".whole")
    assert not whole.is_visible()
    view.emulate_media(media="print")
    assert not view.locator(".told").is_visible()
    check_listed(whole)
    assert view.locator(".story b").count() == 0


@in_both
def test_without_scripts_every_step_is_listed(visit, folder):
    (folder / "sandbox.html").write_text(
        '<!DOCTYPE html><title>x</title><iframe sandbox="allow-same-origin" src="story.html"></iframe>',
        encoding="utf-8",
    )
    inner = visit("sandbox.html").frames[1]
    check_listed(inner.locator("main ol"))
    assert inner.locator("main b, .story").count() == 0


@in_both
def test_in_a_frame_it_leaves_the_page_around_it_alone(visit, folder):
    frame = page.story(PARTS, STEPS)._repr_html_()
    (folder / "notebook.html").write_text(
        f"<!DOCTYPE html><meta charset='windows-1252'><title>x</title><p style='height: 900px'></p>{frame}",
        encoding="utf-8",
    )
    view = visit("notebook.html")
    inner = view.frames[1]
    inner.wait_for_selector(".told h3")
    before = view.url, view.evaluate("scrollY")
    inner.evaluate("document.querySelectorAll('.story nav a')[2].click()")
    assert inner.locator(".told h3").text_content() == "3 of 5: Row"
    view.wait_for_timeout(200)
    assert (view.url, view.evaluate("scrollY")) == before
    assert inner.evaluate("document.documentElement.scrollHeight - frameElement.clientHeight") <= 1
    assert view.seen == []


@in_both
def test_a_step_shows_a_head_of_a_table(browser, tmp_path):
    table = page.head_table({"entropy": np.arange(6.0).reshape(2, 3), "effect": np.ones((2, 3))})
    steps = [page.Step("All", "Six heads.", "pictures"), page.Step("One", "A head.", ("table", "scatter"), head=(1, 2))]
    page.write(tmp_path / "table.html", "Heads", page.story(table, steps))
    with visits(browser, tmp_path) as go:
        view = go("table.html", at="#step-2", reduced_motion="reduce")
        assert view.locator(".lit").count() == 2
        assert view.locator("table.sorted button[aria-pressed=true]").all_text_contents() == ["1.2"]
    with pytest.raises(ValueError, match="Here these are table, scatter, pictures"):
        page.story(table, [page.Step("a", "b", "arcs")])


def test_a_part_is_shown_once():
    for text in (
        page.html("x", page.story(RUN, STEPS[0])),
        page.html("x", page.story(RUN, STEPS[0]), RUN),
        page.html("x", RUN, page.story([RUN], STEPS[:1])),
    ):
        assert text.count('"kind":"run"') == 1
    text = page.html("x", OTHER, page.story([HEAD, RUN], [page.Step("a", "b", part=1)]), HEADS)
    assert re.findall(r'"kind":"(\w+)"', text) == ["run", "weights", "run", "heads"]
    assert '"part":2' in text


def step(**more):
    return lambda: page.story(PARTS, [page.Step("a", "b"), page.Step(**({"title": "a", "text": "b"} | more))])


REFUSED = [
    (lambda: page.story("x", STEPS), TypeError, "story: part must be a part of a page, got part of type str. Make it with page.weights, heads, head_table, run, blocks or model."),
    (lambda: page.story(page.story(RUN, STEPS[0]), STEPS[0]), TypeError, "story: part must be a part of a page, got part story. Make it with page.weights, heads, head_table, run, blocks or model."),
    (lambda: page.story([], STEPS), ValueError, "story: part must not be empty, got part of length 0. Give at least one."),
    (lambda: page.story(RUN, []), ValueError, "story: steps must not be empty, got steps of length 0. Give at least one."),
    (lambda: page.story(RUN, [{"title": "a"}]), TypeError, "story: steps must hold page.Step, got steps[0] of type dict. Make each with page.Step(title, text)."),
    (step(text=3), TypeError, "story: steps[1].text must be text, got steps[1].text of type int. Pass a string."),
    (step(title=" "), ValueError, "story: steps[1].title must name the step, got steps[1].title with no letter. The link to the step bears this name."),
    (step(part=4), ValueError, "story: steps[1].part must name a part, got steps[1].part 4 and of these 4. Count from 0."),
    (step(frame=F), ValueError, "story: steps[1].frame must name a frame, got steps[1].frame 12 and of these 12. Count from 0."),
    (step(frame=-1), ValueError, "story: steps[1].frame must be at least 0, got steps[1].frame -1. Pass a Python int of at least 0."),
    (step(frame="2"), TypeError, "story: steps[1].frame must be a whole number, got steps[1].frame of type str. Pass a Python int of at least 0."),
    (step(key=3), ValueError, "story: steps[1].key must name a key, got steps[1].key 3 and of these 3. Count from 0."),
    (step(part=1, row=3), ValueError, "story: steps[1].row must name a query, got steps[1].row 3 and of these 3. Count from 0."),
    (step(part=1, frame=0), ValueError, "story: steps[1].frame must be None of page.weights, got steps[1].frame given. Only a part of page.run has one."),
    (step(part=2, key=0), ValueError, "story: steps[1].key must be None of page.heads, got steps[1].key given. Only a part of page.run or page.weights or page.model has one."),
    (step(part=2, head=(2, 0)), ValueError, "story: steps[1].head[0] must name a layer, got steps[1].head[0] 2 and of these 2. Count from 0."),
    (step(part=2, head=(0, 2)), ValueError, "story: steps[1].head[1] must name a head, got steps[1].head[1] 2 and of these 2. Count from 0."),
    (step(part=2, head=1), TypeError, "story: steps[1].head must be (layer, head), got steps[1].head of type int. Count both from 0."),
    (step(highlight="river"), ValueError, "story: steps[1].highlight must name views of its part, got steps[1].highlight[0] 'river'. Here these are plane, weights, pulls, training, loss."),
    (step(part=1, highlight=["steps", "plane"]), ValueError, "story: steps[1].highlight must name views of its part, got steps[1].highlight[1] 'plane'. Here these are weights, steps, pulls."),
    (step(highlight=3), TypeError, "story: steps[1].highlight must be names, got steps[1].highlight of type int. Pass a string, or a list of them."),
    (lambda: page.html("x", *[page.story(RUN, STEPS[0])] * 2), ValueError, "html: a page shows story once, got parts with two story. Write two pages."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_story_refuses_what_it_cannot_tell(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
