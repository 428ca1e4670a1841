"""A language model that a page computes, in a real browser: what it takes, what it says, and that its steps can be undone."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import json
import re

import numpy as np
import pytest
from _browser import axe, in_both, in_both_colours, of_each, only_chromium, planted, visits
from _small_model import EXAMPLES, PARAMS, PART, WORDS, D, E, H, L, M, N, V, drawn, layer

from jattn import page

pytestmark = pytest.mark.structure


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    page.write(made / "model.html", "A model", PART)
    return made


@pytest.fixture
def visit(browser, folder):
    with visits(browser, folder) as go:
        yield lambda name="model.html", **how: go(name, **how)


def data(view, where, name):
    return np.array(json.loads(view.locator(where).get_attribute(f"data-{name}")))


def q_of(view):
    return data(view, "svg[data-q]", "q")


def press(view, name):
    view.get_by_role("button", name=name, exact=True).click()


def letters(where):
    return re.sub("[\u2068\u2069]", "", where.text_content())


def slide(view, rate):
    view.locator("#model-rate").evaluate(
        "(x, to) => { x.value = to; x.dispatchEvent(new Event('input')); }", np.log10(rate)
    )


def check_steps(view):
    """A step on one q goes along its −dL/dq, as far as the slider says; what moved comes back; the report has both."""
    assert view.get_by_role("button", name="Undo").is_disabled()
    assert view.get_by_role("button", name="Reset").is_disabled()
    view.select_option("#model-moves", "q")
    start, first = q_of(view), json.loads(view.locator("#model-loss").get_attribute("data-loss"))
    for rate in (0.01, 1.0):
        slide(view, rate)
        assert view.locator("#model-rate").get_attribute("aria-valuetext") == f"{rate:.3f}"
        before, pull, pulls = q_of(view), data(view, "[data-pulls]", "total"), data(view, "[data-pulls]", "pulls")
        press(view, "One gradient step")
        np.testing.assert_allclose(q_of(view) - before, rate * pull, atol=1e-12)
        np.testing.assert_allclose(pulls.sum(0), pull, atol=1e-12)
        after = json.loads(view.locator("#model-loss").get_attribute("data-loss"))
        if rate == 0.01:
            assert after - first == pytest.approx(-rate * pull @ pull, rel=0.05), "to first order"
    assert (
        "2 steps taken. This q alone moved, at the learning rate 1.000" in view.locator("#model-report").text_content()
    )
    assert view.locator("svg[data-q]").get_attribute("data-path") == "3"
    press(view, "Undo")
    assert "1 step taken. The last step is undone" in view.locator("#model-report").text_content()
    assert view.locator("svg[data-q]").get_attribute("data-path") == "2"
    np.testing.assert_array_equal(q_of(view), before)
    view.select_option("#model-moves", "all")
    q = q_of(view)
    press(view, "One gradient step")
    assert np.abs(q_of(view) - q).max() > 1e-3
    assert re.search("cosine −?[01].[0-9]{3} to its own", view.locator("#model-report").text_content())
    press(view, "Reset")
    np.testing.assert_array_equal(q_of(view), start)
    assert json.loads(view.locator("#model-loss").get_attribute("data-loss")) == first
    assert view.get_by_role("button", name="Undo").is_disabled()


def check_labels(view):
    """Each control has the name that stands beside it, and what changes by itself is read out."""
    assert view.get_by_role("combobox", name="Sentence", exact=True).input_value() == "the river"
    assert view.get_by_role("slider", name="learning rate").get_attribute("aria-valuetext") == "0.010"
    assert view.get_by_role("combobox", name="what moves").input_value() == "all"
    assert view.get_by_role("combobox", name="It should say").input_value() == "2"
    assert view.get_by_role("checkbox", name="close to q").count() == 1
    assert view.locator("#model-report[aria-live=polite]").count() == 1
    assert view.locator("#model-refused[role=alert]").count() == 1
    assert view.locator("[data-head]").count() == L * H
    assert view.get_by_role("button", name="layer 1, head 2").count() == 1


def check_words(view):
    """A word that is none of the model's is refused by name, with words that are; half a word is let be."""
    box, wrong = view.get_by_role("combobox", name="Sentence"), view.locator("#model-refused[role=alert]")
    heading = view.get_by_role("heading", name="After")
    box.fill("the riv")
    assert wrong.text_content() == "", "half a word is no mistake"
    assert view.locator("#model-whole option").evaluate_all("all => all.map(o => o.value)") == ["the river"]
    box.fill("The rivr the ")
    assert "“rivr” is not among the 23 words of this model. Did you mean river? Below stands" in letters(wrong)
    assert box.get_attribute("aria-invalid") == "true"
    assert letters(heading) == "After “the river”", "what was read last"
    wrong.get_by_role("button", name="river").click()
    assert (box.input_value(), wrong.text_content()) == ("The river the", "")
    assert letters(heading) == "After “the river the”"
    box.press("End")
    box.press_sequentially(" bank")
    view.locator("[data-head='1,2']").click()
    assert view.locator("[data-head='1,2']").get_attribute("aria-pressed") == "true", (
        "what is left behind takes no click away"
    )
    assert view.locator("[data-row]").count() == 4
    box.fill("qq ")
    assert "Choose from the list below." in wrong.text_content()
    box.fill(" ".join(["the"] * (N + 1)))
    assert "This model reads 11 words at most, and these are 12." in wrong.text_content()
    box.fill("")
    box.press("Enter")
    assert "Type at least one word." in wrong.text_content()
    view.locator("summary").click()
    view.locator("details").get_by_role("button", name="bank", exact=True).click()
    assert letters(heading) == "After “bank”"
    press(view, "word1 the word2 the river the → word3")
    assert view.locator("[data-row]").all_text_contents() == ["word1", "the(1)", "word2", "the(2)", "river", "the(3)"]
    assert view.locator("#model-next").input_value() == str(WORDS.index("word3"))


def check_requests(view):
    """Nothing is asked of any network, whatever is pressed, and nothing goes wrong."""
    press(view, "One gradient step")
    view.locator("[data-head='0,1']").click()
    view.locator("#model-close").check()
    view.wait_for_timeout(100)
    assert view.seen == []


CHECKS = {f.__name__: f for f in (check_steps, check_labels, check_words, check_requests)}


@of_each("check", CHECKS, in_firefox=["check_words", "check_requests"])
def test_the_page_of_a_model_shows_what_it_computes(visit, check):
    view = visit()
    CHECKS[check](view)
    assert view.seen == []


PLANTED = {
    "a request": ("check_requests", "history.push({ state, only });", 'history.push({ state, only }); fetch("https://example.org/");'),
    "a lost label": ("check_labels", '"learning rate", slider', '"", slider'),
    "a lost label of the sentence": ("check_labels", '"Sentence", input', "input"),
    "a frozen slider": ("check_steps", "const by = rate(), only", "const by = part.rate, only"),
    "a step against the slope": ("check_steps", "by: pull.map((x) => by * x)", "by: pull.map((x) => -by * x)"),
    "an undo that forgets nothing": ("check_steps", "state = history.pop().state;", "history.pop();"),
    "a reset by one step": ("check_steps", "state = start; history", "state = history.at(-1).state; history"),
    "a wrong word let through": ("check_words", "const bad = found.indexOf(undefined)", "const bad = -1"),
    "half a word refused": ("check_words", "!whole && (!typed.length", "false && (!typed.length"),
}  # fmt: skip


@only_chromium  # that a check can fail is shown once
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_into_the_page_is_noticed(visit, folder, name):
    check, old, new = PLANTED[name]
    view = visit(planted(folder, "model.html", old, new))
    view.set_default_timeout(700)
    with pytest.raises(Exception, match=r"assert|Timeout|Mismatch|Not equal"):
        CHECKS[check](view)


def test_a_reset_goes_back_farther_than_what_can_be_undone(visit):
    view = visit()
    before = q_of(view)
    view.evaluate("for (let i = 0; i < 60; i++) document.querySelector('button.main').click()")
    assert view.locator("#model-report").text_content().startswith("60 steps taken.")
    assert np.abs(q_of(view) - before).max() > 1e-3
    press(view, "Reset")
    np.testing.assert_array_equal(q_of(view), before)
    assert view.get_by_role("button", name="Reset").is_disabled()
    assert view.seen == []


def test_too_large_a_step_is_not_taken(visit):
    view = visit()
    before = q_of(view)
    for _ in range(12):
        slide(view, 10)
        press(view, "One gradient step")
        if "No step was taken: at the learning rate 10.000" in view.locator("#model-report").text_content():
            break
    assert np.isfinite(q_of(view)).all()
    assert "NaN" not in view.locator("main").inner_text()
    while view.get_by_role("button", name="Undo").is_enabled():
        press(view, "Undo")
    np.testing.assert_array_equal(q_of(view), before)
    assert view.seen == []


def test_steps_on_one_q_go_with_their_sentence_and_those_on_all_weights_stay(visit):
    view = visit()
    box, loss = view.get_by_role("combobox", name="Sentence"), view.locator("#model-loss")
    start = loss.get_attribute("data-loss")
    press(view, "One gradient step")
    taught = loss.get_attribute("data-loss")
    view.select_option("#model-moves", "q")
    press(view, "One gradient step")
    assert len({start, taught, loss.get_attribute("data-loss")}) == 3
    for sentence in ("the bank", "the river"):
        box.fill(sentence)
    assert loss.get_attribute("data-loss") == taught
    assert view.locator("#model-report").text_content().startswith("1 step taken. ")
    press(view, "Undo")
    assert loss.get_attribute("data-loss") == start
    assert view.get_by_role("button", name="Undo").is_disabled()


@in_both
def test_the_keyboard_alone_and_the_focus_stays(visit):
    view = visit()
    view.get_by_role("combobox", name="Sentence").focus()
    view.keyboard.type(" bank")
    view.keyboard.press("Enter")
    assert view.locator("[data-row]").count() == 3
    for where in ("[data-row='1']", "[data-head='1,2']", "[data-token='0']"):
        view.locator(where).focus()
        view.keyboard.press("Enter")
        assert view.evaluate("document.activeElement.matches(`" + where + "`)"), "it is drawn anew, and keeps the focus"
        assert view.locator(where).get_attribute("aria-pressed") == "true"
    view.locator("#model-rate").focus()
    view.keyboard.press("ArrowRight")
    assert view.locator("#model-rate").get_attribute("aria-valuetext") == "0.011"
    view.get_by_role("button", name="One gradient step", exact=True).focus()
    view.keyboard.press("Enter")
    assert "1 step taken" in view.locator("#model-report").text_content()
    assert view.seen == []


@in_both_colours
def test_axe_finds_no_fault_of_accessibility_in_a_page_of_a_model(visit, scheme):
    view = visit(color_scheme=scheme)
    view.get_by_role("combobox", name="Sentence").fill("nothing such ")
    press(view, "One gradient step")
    broken, report = axe(view)
    assert broken == set(), report
    view.evaluate(
        "document.querySelector('#model-text').replaceWith(Object.assign(document.createElement('input'), { type: 'text' }))"
    )
    view.evaluate(
        "document.querySelector('label[class=wide]').replaceWith(document.querySelector('label[class=wide] input'))"
    )
    assert axe(view, "label")[0] == {"label"}, "the control"


@in_both
def test_on_a_phone_nothing_of_a_page_of_a_model_is_cut_off(visit):
    view = visit(viewport={"width": 320, "height": 640})
    press(view, "word1 the word2 the river the → word3")
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert view.evaluate(sideways) == 0
    cut = "[...document.querySelectorAll('h2, h3, p, button, select, input, summary, li')].filter(e => e.checkVisibility() && !e.closest('.scroll, .skip, .hidden') && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
    assert view.evaluate(cut) == []


@only_chromium  # BiDi prints, but has no view of it
def test_on_paper_a_page_of_a_model_has_its_report_and_no_buttons(visit):
    view = visit()
    press(view, "word1 the word2 the river the → word3")
    view.emulate_media(media="print")
    for name in ("One gradient step", "Undo"):
        assert not view.get_by_role("button", name=name, exact=True).is_visible()
    assert view.get_by_role("heading", name="After “⁨word1 the word2 the river the⁩”").is_visible()
    assert view.locator("#model-report").is_visible()


def test_words_are_shown_letter_by_letter(visit):
    view = visit()
    view.get_by_role("combobox", name="Sentence").fill(" ".join(WORDS[:8]))
    view.get_by_role("combobox", name="Sentence").press("Enter")
    assert view.locator("[data-row]").all_text_contents() == WORDS[:8]
    assert view.locator("main b").count() == 0
    assert view.seen == []


def test_a_story_shows_a_head_and_keeps_what_the_reader_chose(visit, folder):
    steps = [page.Step("Ask", "A sentence.", ["next", "sentence"]), page.Step("Look", "A head.", "output", head=(1, 2), row=0, key=0)]  # fmt: skip
    page.write(folder / "told.html", "Told", page.story(PART, [*steps, page.Step("Pull", "Keys.", "pulls")]))
    view = visit("told.html", reduced_motion="reduce")
    assert view.locator(".lit h2").all_text_contents() == ["Type a sentence", "What comes next"]
    view.get_by_role("button", name="Next: Look").click()
    shown = lambda: view.locator("[data-head][aria-pressed=true], [data-row][aria-pressed=true]").all_text_contents()  # noqa: E731
    assert view.locator("[data-head='1,2']").get_attribute("aria-pressed") == "true"
    assert (shown(), view.locator("[data-token='0']").get_attribute("aria-pressed")) == (["", "the"], "true")
    view.locator("[data-row='1']").click()
    view.get_by_role("button", name="Next: Pull").click()
    assert shown() == ["", "river"]
    assert view.seen == []
    with pytest.raises(ValueError, match=r"steps\[0\].row must name a query, got steps\[0\].row 2 and of these 2"):
        page.story(PART, [page.Step("a", "b", row=2)])


def model(**more):
    return lambda: page.model(
        PARAMS | {n: x for n, x in more.items() if n in PARAMS},
        more.get("words", WORDS),
        examples=more.get("examples", EXAMPLES),
        rate=more.get("rate", 0.1),
    )


TAKES = "It takes embed, positions, unembed, norm, layers; of these norm may lack."
OF_LAYER = "It takes norm, q, k, v, out, mlp_norm, mlp_in, mlp_out; of these norm, mlp_norm, mlp_in, mlp_out may lack."
SPACES = "A sentence is taken apart at its spaces, and each word looked up."
REFUSED = [
    (lambda: page.model(3, WORDS, examples=EXAMPLES), TypeError, "model: params must map names to arrays, got params of type int. See the documentation for them."),
    (lambda: page.model({"embed": 1, "layers": []}, WORDS, examples=EXAMPLES), ValueError, f"model: params must hold the arrays of the model, got params with no positions, unembed. {TAKES}"),
    (lambda: page.model(PARAMS | {"bias": 1}, WORDS, examples=EXAMPLES), ValueError, f"model: params must hold the arrays of the model, got params with also bias. {TAKES}"),
    (model(layers=[]), TypeError, "model: params['layers'] must be a list of layers, got params['layers'] empty. Give at least one."),
    (model(layers={"q": 1}), TypeError, "model: params['layers'] must be a list of layers, got params['layers'] of type dict. Give at least one."),
    (model(layers=[layer(q_bias=drawn(H, D))]), ValueError, f"model: params['layers'][0] must hold the arrays of the model, got params['layers'][0] with also q_bias. {OF_LAYER}"),
    (model(layers=[layer(mlp_in=drawn(E, M))]), ValueError, f"model: params['layers'][0] must hold the arrays of the model, got params['layers'][0] with no mlp_out. {OF_LAYER}"),
    (model(layers=[layer(), layer(k=drawn(E, 1, D))]), ValueError, "model: params['layers'][1]['k'] must have the shape [E, H, D], got k [7, 1, 5]. With the arrays before it that is [7, 3, 5], and no axis is empty."),
    (model(embed=drawn(V)), ValueError, "model: params['embed'] must have the shape [V, E], got params['embed'] [23]. Here that is [any, any]: draw one head and two dimensions at a time."),
    (model(norm=np.full(E, np.nan)), ValueError, "model: params['norm'] must be finite, got params['norm'] [7]. Leave out what is not a number."),
    (model(words=WORDS[1:]), ValueError, "model: words must hold V = 23 names, got words of length 22. Give a list of them."),
    (model(words=["a b", *WORDS[1:]]), ValueError, f"model: words must be different, and without spaces, got words with one that is empty, has a space, or stands twice. {SPACES}"),
    (model(words=["river", *WORDS[1:]]), ValueError, f"model: words must be different, and without spaces, got words with one that is empty, has a space, or stands twice. {SPACES}"),
    (model(rate=20), ValueError, "model: rate must be from 0.001 to 10, got rate 20. The reader may change it on the page."),
    (model(rate=None), TypeError, "model: rate must be one number, got rate of type NoneType. Pass a Python float."),
    (model(examples=[]), ValueError, "model: examples must hold at least one pair, got examples with none. The page begins with the first."),
    (model(examples=["the river"]), TypeError, "model: examples[0] must be (sentence, next word), got examples[0] of type str. As in (\"near the river\", \"bank\")."),
    (model(examples=[("the sea", "bank")]), ValueError, "model: examples[0] must be made of words, got examples[0] with 'sea'. Each must stand in words, letter by letter."),
    (model(examples=[("", "bank")]), ValueError, "model: examples[0] must have from 1 to N words, got examples[0] of 0 and N 11. N is the number of rows of positions."),
    (lambda: page.html("x", PART, page.model(PARAMS, WORDS, examples=EXAMPLES)), ValueError, "html: a page shows model once, got parts with two model. Write two pages."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_page_of_a_model_refuses_what_it_cannot_compute(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
