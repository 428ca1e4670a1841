"""The page, in a real browser: it fetches nothing, shows what it was given, and computes what jax.grad does."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import csv
import io
import json
import os
import re
import xml.etree.ElementTree as ET
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _browser import (
    axe,
    hears,
    in_both,
    in_both_colours,
    of_each,
    only_chromium,
    planted,
    saved,
    type_over,
    until,
    visits,
)

import jattn
from jattn import flow, page

LABELS = ["river", "money", "the", "flows"]
F, S, D, TARGET = 200, 4, 2, 0
HOSTILE = ["</script><script>document.title='hit'</script>", "</script ", "<!--", "<img src=x onerror=alert(1)>", "👩‍👩‍👧 🏞️", "שלום",
           "نهر", "", "'\"`&lt;", "\u2028\u202e", "\ud800"]  # fmt: skip
LONG = [*HOSTILE, *(f"token{i}" for i in range(60 - len(HOSTILE)))]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def descent(rate=0.4, moving=True):
    """Gradient descent on −log p_target by its closed form, in NumPy."""
    rng = np.random.default_rng(7)
    q, k = np.array([0.3, -0.2]), rng.normal(size=(S, D))
    made = {"q": [], "k": [], "weights": [], "loss": []}
    for _ in range(F):
        p = softmax(k @ q / np.sqrt(D))
        for name, x in zip(made, (q, k, p, -np.log(p[TARGET])), strict=True):
            made[name].append(x)
        lead = np.eye(S)[TARGET] - p
        q, k = q + rate * lead @ k / np.sqrt(D), k + moving * rate * np.outer(lead, q) / np.sqrt(D)
    made = {name: np.array(x) for name, x in made.items()}
    norms = np.linalg.norm(made["q"], axis=1)
    cosines = {"k_river": (made["q"] * made["k"][:, 0]).sum(1), "max margin": norms}
    return made | {"norm": norms, "margin": norms + 1, "p": made["weights"][:, TARGET], "cosines": cosines}


RUN, FROZEN = descent(), descent(moving=False)
VALUES, GOAL = np.random.default_rng(1).normal(size=(S, 3)), np.array([0.5, -0.2, 0.1])
CONSERVED = {"Σ dk": (0.0, np.zeros(F)), "slips": (np.zeros(F), np.linspace(0, 1, F))}
PARTS = (
    page.run(FROZEN, LABELS, target=TARGET, rays={"max margin": [1.0, 0.5]}, conserved=CONSERVED, loss="−log p_river",
             optimiser="gradient descent"),
    page.run(RUN, LABELS, target=TARGET, loss="−log p_river", optimiser="Adam"),
    page.run(FROZEN, LABELS, target=TARGET, values=VALUES, goal=GOAL, loss="½|out − goal|²",
             optimiser="gradient descent"),
)  # fmt: skip


def whole(tokens=LONG):
    """Every part on one page, with tokens that would break out if they could."""
    n = len(tokens)
    x = np.random.default_rng(2).normal(size=(n, 3))
    steps = jattn.explain(*(jnp.asarray(x, jnp.float32),) * 3)
    weights = np.array(steps.weights)
    weights[3, 5] = np.nan
    scaled = np.where(np.arange(n) > 50, -np.inf, steps.scaled)
    row = page.weights(weights, tokens, tokens, scores=steps.scores, scaled=scaled, values=x, out=steps.out, keys=x,
                         gains=np.random.default_rng(3).normal(size=(n, n)))  # fmt: skip
    heads = page.heads(softmax(np.random.default_rng(4).normal(size=(2, 3, n, n))), tokens, tokens)
    numbers = page.head_table({tokens[0]: np.eye(2, 3), "knock-out": [[-0.3, np.nan, 0.2], [0.1, 0.0, 7e-9]]})
    return page.html("All of it: <b>&", *PARTS, row, heads, numbers, note="a note </p>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    (made / "whole.html").write_text(whole(), encoding="utf-8")
    (made / "few.html").write_text(whole(LONG[:8]), encoding="utf-8")
    page.write(made / "runs.html", "Runs", *PARTS)
    return made


@pytest.fixture
def visit(browser, folder):
    with visits(browser, folder) as go:
        yield lambda name="runs.html", **how: go(name, **how)


def held(view, where, name):
    return np.array(json.loads(view.locator(where).first.get_attribute(f"data-{name}")))


def number(text):
    return float(text.removeprefix("sum ").replace("−", "-"))


def test_the_steps_the_pulls_and_the_heads_are_those_of_the_arrays(visit, folder):
    text = (folder / "few.html").read_text(encoding="utf-8")
    head = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["parts"][3]
    view, t = visit("few.html"), 5
    view.locator(f"[data-row='{t}']").click()
    steps = view.locator(".panel").filter(has_text="Every step of one row").locator("table")
    rows = [[cell.strip() for cell in row.locator("td").all_text_contents()] for row in steps.locator("tbody tr").all()]
    scaled = np.array(head["scaled"][t])
    exps = np.exp(scaled - scaled.max())
    for s, row in enumerate(rows):
        shown = [number(x) for x in row[:4]]
        want = [head["scores"][t][s], scaled[s], exps[s], head["weights"][t][s]]
        np.testing.assert_allclose(shown, want, atol=6e-4)
    assert number(steps.locator("tfoot td").nth(2).text_content()) == pytest.approx(exps.sum(), abs=6e-5)
    view.get_by_role("button", name="1 scores").click()
    assert len(steps.locator("tbody tr").first.locator("td").all()) == 1, "one step at a time"
    p, a, k = np.array(head["weights"][t]), np.array(head["gains"][t]), np.array(head["keys"])
    ahead = a - a[p.argmax()]  # the weights are float32, and sum to 1 to its rounding alone
    pulls = (p * (ahead - p @ ahead))[:, None] * k / np.sqrt(3)
    reasons = view.locator("table[data-pulls]").nth(1)
    np.testing.assert_allclose(json.loads(reasons.get_attribute("data-pulls")), pulls, atol=1e-12)
    np.testing.assert_allclose(json.loads(reasons.get_attribute("data-total")), pulls.sum(0), atol=1e-12)

    heads = softmax(np.random.default_rng(4).normal(size=(2, 3, 8, 8)))
    button = view.locator("[data-head='1,2']")
    assert button.get_attribute("aria-label").endswith(f"{heads[1, 2].max():.3f}")
    button.click()
    arcs = view.locator(".panel").filter(has_text="The arcs of layer 1, head 2")
    assert arcs.locator("svg path").count() == (heads[1, 2].astype(np.float32) >= 0.02).sum()
    strongest = [float(x) for x in arcs.locator("tbody td:last-child").all_text_contents()]
    np.testing.assert_allclose(strongest, np.sort(heads[1, 2].ravel())[::-1][:8], atol=6e-4)
    view.select_option("#arcs-of", "3")
    assert arcs.locator("svg path").count() == (heads[1, 2, 3] >= 0.02).sum()
    assert view.seen == []


def test_a_saturated_row_keeps_its_tail_on_the_page(visit, folder, x64):
    """1 − p_r is the sum of the other weights, in a run with either loss and in a row of a head."""
    q, k = np.array([60.0, 30.0]), np.array([[1.0, 0.2], [0.1, -0.3], [-0.2, 0.3]])
    names, goal = ["river", "money", "the"], np.array([0.5, -0.2])
    weights = np.asarray(jattn.softmax(jnp.asarray(k @ q / np.sqrt(2))))
    run = {"q": q[None], "k": k, "weights": weights[None]}
    gains = np.array([[1 / weights[0], 0, 0]])
    row = page.weights(weights[None], ["q"], names, keys=k, gains=gains)
    page.write(folder / "tail.html", "Tail", page.run(run, names, target=0), row)
    page.write(folder / "output.html", "Tail", page.run(run, names, target=0, values=k, goal=goal))
    for name, objective in (("tail", flow.cross_entropy(0)), ("output", flow.squared_error(goal))):
        view = visit(f"{name}.html")
        want = np.asarray(flow.pulls(q[None], k, k, objective).on_q[0])
        assert 0 < np.abs(want).max() < 1e-16
        for table in range(view.locator("table[data-pulls]").count()):
            found = json.loads(view.locator("table[data-pulls]").nth(table).get_attribute("data-pulls"))
            np.testing.assert_allclose(found, want, rtol=1e-9)
    view = visit("tail.html")
    assert float(view.locator("#arrow").get_attribute("data-loss")) == pytest.approx(weights[1:].sum(), rel=1e-9)


@only_chromium
def test_at_1200_pixels_the_weights_and_pulls_of_twelve_keys_and_the_names_of_lines_are_whole(visit, folder):
    names = ["Donaudampfschiff", "👩🏽👩🏽👩🏽👩🏽👩🏽👩🏽", *(f"token {i}" for i in range(10))]
    k = np.random.default_rng(5).normal(size=(12, 3))
    k[5] /= 999  # a pull of many letters
    head = page.weights(softmax(k @ k.T), names, names, keys=k, gains=np.eye(12))
    for n in (8, 12):
        run = {"q": k[:1] / 99, "k": k[:n], "weights": softmax(k[:1] @ k[:n].T / 99)}
        page.write(folder / f"{n}.html", "Many", page.run(run, names[:n], target=0), head)
        view = visit(f"{n}.html", viewport={"width": 1200, "height": 800})
        cut = "[...document.querySelectorAll('.map')].map(x => x.parentNode.scrollWidth - x.parentNode.clientWidth)"
        assert view.evaluate(cut) == [0, 0]
        assert view.locator(".map tbody td").first.text_content().startswith(".")
        pulls = "[...document.querySelectorAll('.lines')].map(x => x.parentNode.scrollWidth - x.parentNode.clientWidth)"
        assert max(view.evaluate(pulls)) == 0
        view.set_viewport_size({"width": 1200, "height": 700})
        beyond = "[...document.querySelectorAll('.chart text')].map(x => x.getBoundingClientRect().right - x.ownerSVGElement.getBoundingClientRect().right)"
        assert max(view.evaluate(beyond)) <= 0
        assert "\ufffd" not in view.evaluate("document.body.innerText.toWellFormed()")
    view.evaluate("document.querySelector('.map td').style.minWidth = '40rem'")
    assert view.evaluate(cut)[0] > 0, "the control"


@only_chromium
def test_a_gradient_of_0_is_said_to_be_0(visit, folder):
    """With one key nothing pulls: no length is so many times as long as another."""
    page.write(
        folder / "one.html",
        "One",
        page.run({"q": np.ones((2, 2)), "k": np.ones((1, 2)), "weights": np.ones((2, 1))}, ["bank"], target=0),
    )
    said = visit("one.html").locator(".note", has_text="The arrow at q")
    assert said.text_content() == "The arrow at q is −dL/dq, which is 0 all along the path."


def at_frame(view, k):
    view.get_by_role("slider", name="Frame").evaluate(
        "(x, k) => { x.value = k; x.dispatchEvent(new Event('input')); }", k
    )


@in_both
def test_nothing_is_asked_of_any_network_and_nothing_goes_wrong(visit, folder):
    view = visit("whole.html")
    view.locator("[data-row='4']").click()
    view.locator("[data-head='1,2']").click()
    at_frame(view, 150)
    view.wait_for_timeout(300)  # an event reaches the test after what caused it
    assert view.seen == []
    text = (folder / "few.html").read_text(encoding="utf-8")
    asking = text.replace("</main>", '<img src="https://example.org/x.png" alt=""></main>')
    (folder / "planted.html").write_text(asking.replace("img-src data:", "img-src https:"), encoding="utf-8")
    assert hears(visit("planted.html"), "example.org"), "the control: a request would be seen"
    (folder / "refused.html").write_text(asking, encoding="utf-8")
    assert hears(visit("refused.html"), "violates the following"), "and the policy forbids it"


def test_the_policy_lets_in_what_was_inlined_and_nothing_else(folder):
    text = (folder / "whole.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "<" not in re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"""\b(src|href)="(?!data:,|#main)|@import|url\(|https?://(?!www\.w3\.org)""", text)


def check_slider(view, run, k):
    at_frame(view, k)
    np.testing.assert_array_equal(held(view, "#arrow", "q"), run["q"][k])
    np.testing.assert_array_equal(held(view, "table.map", "weights"), run["weights"][k])
    assert float(view.locator("#arrow").get_attribute("data-loss")) == pytest.approx(run["loss"][k], abs=1e-12)
    cells = view.locator("table.map").first.locator("tbody td:not(.entropy)").all_text_contents()
    assert cells == [f"{w:.3f}" for w in run["weights"][k]]
    assert view.locator("#player output").text_content() == f"step {k} of 199"
    readings = view.locator(".charts .chart p").all_text_contents()
    assert f"{run['norm'][k]:.3f}" in readings


def test_the_slider_at_frame_k_shows_the_trajectory_at_k(visit):
    view = visit()
    for loss, optimiser, run in (("−log p_river", "Adam", RUN), ("−log p_river", "gradient descent", FROZEN)):
        view.select_option("#optimiser", optimiser)
        assert view.locator("#loss").input_value() == loss
        for k in (57, 199, 0):
            check_slider(view, run, k)
    assert view.seen == []


PLANTED = {
    "a frozen slider": ("go(Number(slider.value))", "go(state.frame)"),
    "a lost label": ('"aria-label": "Frame", ', ""),
    "a request": (
        "    state.frame = clamp(f,",
        '    new Image().src = "https://example.org/x.png"; state.frame = clamp(f,',
    ),
}


@only_chromium  # that a check can fail is shown once
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_into_the_page_is_noticed(visit, folder, name):
    view = visit(planted(folder, "runs.html", *PLANTED[name]))
    view.set_default_timeout(700)
    if name == "a request":
        assert hears(view, "example.org"), "the policy refuses it, and says so"
    else:
        with pytest.raises(Exception, match=r"Arrays are not equal|Timeout"):
            check_slider(view, FROZEN, 57)


def gradient(loss):
    return jax.jit(jax.vmap(jax.grad(loss)))


def cross_entropy(q):
    return -jattn.log_softmax(jattn.explain(q[None], jnp.asarray(FROZEN["k"][0]), jnp.zeros((S, 1))).scaled[0])[TARGET]


def missing(q):
    out = jattn.attention(q[None], jnp.asarray(FROZEN["k"][0]), jnp.asarray(VALUES))[0]
    return jnp.sum((out - jnp.asarray(GOAL)) ** 2) / 2


LOSSES = {"−log p_river": cross_entropy, "½|out − goal|²": missing}


@of_each("label", LOSSES, in_firefox=["½|out − goal|²"])
def test_the_dragged_arrow_is_what_jax_differentiates(visit, x64, label):
    view, rng = visit(), np.random.default_rng(5)
    view.select_option("#loss", label)
    plane = view.locator(".panel").filter(has=view.locator("#arrow")).locator("svg[role=group]")
    grip, box = plane.locator(".handle .halo"), plane.bounding_box()
    q, arrows, sums = [], [], []
    start = grip.bounding_box()
    view.mouse.move(start["x"] + 8, start["y"] + 8)
    view.mouse.down()
    for x, y in rng.uniform(0.03, 0.97, (20, 2)):
        view.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        q.append(held(view, "#arrow", "q"))
        arrows.append(held(view, "#arrow", "arrow"))
        sums.append(held(view, "table[data-pulls]", "pulls").sum(0))
    view.mouse.up()
    assert np.ptp(q, axis=0).min() > 0.5, "the query did follow the pointer"
    want = -np.array(gradient(LOSSES[label])(jnp.array(q)))
    np.testing.assert_allclose(arrows, want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sums, want, rtol=0, atol=1e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(np.array(arrows) + 2e-6, want, rtol=0, atol=1e-6)
    view.get_by_role("button", name="Back to the path").click()
    np.testing.assert_array_equal(held(view, "#arrow", "q"), FROZEN["q"][0])


WIDE = {"q": np.random.default_rng(3).normal(size=(5, 4)) * [3, 2, 1, 0.5], "weights": np.full((5, 9), 1 / 9)}
WIDE["k"] = np.random.default_rng(4).normal(size=(9, 4))


@only_chromium
def test_the_page_says_what_its_plane_leaves_out(visit, folder):
    points = np.concatenate([WIDE["q"], *[WIDE["k"]] * 5])  # keys at rest stand in every frame
    variances = np.sort(np.linalg.eigvalsh(np.cov(points.T, bias=True)))[::-1]
    one, many = list("abcdefghi"), WIDE | {"cosines": {"k_a": np.zeros(5)}}
    part = page.run(many, one, target=0)
    assert part.data["holds"] == pytest.approx(variances[:2].sum() / variances.sum())
    chosen = page.run(WIDE, one, target=0, plane=[[2.0, 0, 0, 0], [1.0, 1.0, 0, 0]])
    assert chosen.data["holds"] == pytest.approx(points.var(0)[:2].sum() / points.var(0).sum()), "any base of it"
    told = {}
    for name, made in {"axes": part, "chosen": chosen, "flat": PARTS[0]}.items():
        page.write(folder / f"{name}.html", name, made)
        view = visit(f"{name}.html")
        told[name] = (
            view.locator(".panel .note", has_text="thin ones are the pulls").text_content().partition("to it.")[2]
        )
        assert view.seen == []
    percent = [f"{100 * x.data['holds']:.0f}" for x in (part, chosen)]
    assert told == {
        "axes": f" q has 4 dimensions. The plane holds the two in which its path and the keys spread most, {percent[0]} % of their variance: angles in it are not those whose cosines are given below.",
        "chosen": f" q has 4 dimensions. The plane holds two of them, {percent[1]} % of the variance of its path and the keys: angles in it are not those of all 4.",
        "flat": "",
    }


@only_chromium
def test_fourteen_keys_look_different_in_the_plane_the_table_and_the_chart(visit, folder):
    run = {
        "q": np.zeros((3, 2)),
        "k": np.random.default_rng(5).normal(size=(14, 2)),
        "weights": np.full((3, 14), 1 / 14),
    }
    page.write(folder / "fourteen.html", "14", page.run(run, [f"w{i}" for i in range(14)], target=0))
    view = visit("fourteen.html")
    look = """nodes => nodes.map(x => [x.localName, (x.getAttribute("points") ?? "").split(" ").length,
        (x.getAttribute("points") ?? "0").split(",")[1] > 5, getComputedStyle(x).fill, getComputedStyle(x).stroke].join())"""
    swatches = view.locator("table[data-pulls] .swatch > *").evaluate_all(look)
    assert len(set(swatches)) == 14
    ink = "nodes => nodes.map(x => [getComputedStyle(x).stroke, getComputedStyle(x).strokeDasharray].join())"
    lines = view.locator(".chart").first.locator("path").evaluate_all(ink)
    assert len(lines) == len(set(lines)) == 14
    panel = view.locator("table[data-pulls] .swatch > *").nth(7).evaluate("x => getComputedStyle(x).fill")
    plane = view.locator(".panel").filter(has=view.locator("#arrow")).locator("svg[role=group]")
    fills = plane.locator("[data-key]").evaluate_all("nodes => nodes.map(x => getComputedStyle(x).fill)")
    assert [x == panel for x in fills] == [False] * 7 + [True] * 7
    assert view.seen == []
    text = press_and_save(view, "Save the view as SVG")
    assert "var(" not in text


REACHABLE = "button:not(:disabled), select, input, a[href], [tabindex='0']"


@in_both
def test_the_keyboard_reaches_everything(visit):
    view = visit()
    total = view.evaluate(
        f'[...document.querySelectorAll("{REACHABLE}")].filter(e => e.checkVisibility()).map((e, i) => (e.dataset.n = i)).length'
    )
    reached = set()
    for _ in range(total + 2):
        view.keyboard.press("Tab")
        reached.add(view.evaluate("document.activeElement.dataset.n ?? null"))
    assert reached - {None} == {str(i) for i in range(total)}
    assert total > 25


@in_both
def test_a_walk_with_the_keyboard_alone(visit):
    view = visit()
    tokens = view.locator("button.token")
    tokens.nth(1).focus()
    view.keyboard.press("Enter")
    assert tokens.nth(1).get_attribute("aria-pressed") == "true"
    assert view.evaluate("document.activeElement.dataset.token") == "1", "the focus stays where it was"
    pull = held(view, "table[data-pulls]", "pulls")[1]
    shown = view.locator("table[data-pulls]").locator("xpath=ancestor::div[1]/following-sibling::p").text_content()
    assert f"{pull[0]:.4f}".replace("-", "−") in shown
    view.locator("#frame").focus()
    for press, frame in (("ArrowRight", 1), ("End", 199), ("ArrowLeft", 198), ("Home", 0)):
        view.keyboard.press(press)
        np.testing.assert_array_equal(held(view, "#arrow", "q"), FROZEN["q"][frame])
    view.locator(".handle").focus()
    view.keyboard.press("ArrowRight")
    view.keyboard.press("Shift+ArrowUp")
    moved = held(view, "#arrow", "q") - FROZEN["q"][0]
    assert moved[0] > 5 * moved[1] > 0
    assert view.evaluate("document.activeElement.classList.contains('handle')")
    view.keyboard.press("Escape")
    np.testing.assert_array_equal(held(view, "#arrow", "q"), FROZEN["q"][0])
    type_over(view.locator("#q0"), "1.25")
    np.testing.assert_array_equal(held(view, "#arrow", "q"), [1.25, float(f"{FROZEN['q'][0][1]:.6g}")])
    view.get_by_role("button", name="Play").focus()
    view.keyboard.press("Enter")
    until(view, "Number(document.getElementById('frame').value) > 3")
    view.keyboard.press("Enter")
    assert view.get_by_role("button", name="Play").count() == 1
    assert view.seen == []


def test_with_reduced_motion_play_shows_stills(visit):
    for motion in ("reduce", "no-preference"):
        view = visit(reduced_motion=motion)
        at_frame(view, 60)  # in log time the frames then follow each other fast
        view.evaluate(
            "window.n = 0; new MutationObserver(() => n++).observe(document.querySelector('#player output'), "
            "{ childList: true })"
        )
        view.get_by_role("button", name="Play").click()
        if motion == "reduce":
            view.wait_for_timeout(1000)
            assert 1 <= view.evaluate("n") <= 3
        else:
            until(view, "n > 5")


def press_and_save(view, name):
    return saved(view, view.get_by_role("button", name=name).first.click)


@in_both
def test_the_saved_view_parses_and_opens_again(visit, folder):
    view = visit("whole.html")
    at_frame(view, 57)
    for name in ("Save the view as SVG", "Save “Training time” as SVG"):
        text = press_and_save(view, name)
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in text, "every colour is resolved"
        (folder / "saved.svg").write_text(text, encoding="utf-8")
        again = visit("saved.svg")
        assert again.seen == []
        shown = again.evaluate("[...document.querySelectorAll('text')].map(t => t.textContent).join(' ')")
        assert f"{FROZEN['norm'][57]:.3f}" in shown
        assert again.evaluate("document.querySelectorAll('path').length") > 8


def test_the_saved_data_are_the_data(visit):
    view = visit("whole.html")
    data = json.loads(press_and_save(view, "Save all data as JSON"))
    np.testing.assert_array_equal(data["parts"][1]["k"], RUN["k"])
    assert data["parts"][3]["rows"] == LONG
    assert data["parts"][3]["weights"][3][5] is None
    rows = list(csv.DictReader(io.StringIO(press_and_save(view, "Save the run as CSV"))))
    assert [int(row["frame"]) for row in rows] == list(range(F))
    np.testing.assert_array_equal([[float(r["q_1"]), float(r["q_2"])] for r in rows], FROZEN["q"])
    np.testing.assert_array_equal([[float(r[f"weight {x}"]) for x in LABELS] for r in rows], FROZEN["weights"])
    np.testing.assert_array_equal([float(r["cosines k_river"]) for r in rows], FROZEN["cosines"]["k_river"])
    rows = list(csv.DictReader(io.StringIO(press_and_save(view, "Save the weights as CSV"))))
    assert len(rows) == 60 * 60 * 7
    assert rows[0]["query token"] == HOSTILE[0]
    assert rows[185]["weight"] == "NaN"


@in_both
def test_tokens_are_shown_letter_by_letter_and_run_nothing(visit):
    view = visit("whole.html")
    assert view.title() == "All of it: <b>&"
    shown = view.locator("table.map").nth(1).locator("tbody th").all_text_contents()
    safe = [token or "∅" for token in LONG]
    safe[LONG.index("\ud800")] = "\ufffd"
    assert [s.encode("utf-8", "replace").decode().replace("?", "\ufffd") for s in shown] == safe
    assert view.locator("main script, main img").count() == 0
    assert "NaN" in view.locator("table.map").nth(1).locator("tbody tr").nth(3).locator("td").all_text_contents()
    view.locator("[data-row='3']").click()
    assert view.seen == []


@in_both_colours
def test_axe_finds_no_fault_of_accessibility_in_a_page(visit, scheme):
    view = visit("few.html", color_scheme=scheme)
    assert view.evaluate("document.documentElement.dataset.theme") == scheme
    broken, report = axe(view)
    assert broken == set(), report
    view.evaluate("document.querySelector('#note').style.color = '#777777'")
    view.evaluate("document.querySelector('#frame').removeAttribute('aria-label')")
    assert axe(view, "label", "color-contrast")[0] == {"label", "color-contrast"}, "the control"


@only_chromium  # what axe looks at is the same document in either; here that takes it ten seconds
def test_axe_finds_no_fault_of_accessibility_in_a_page_of_200_tokens(visit, folder):
    x = np.random.default_rng(2).normal(size=(200, 3)).astype(np.float32)
    names = [f"token{i}" for i in range(200)]
    steps = jattn.explain(x, x, x)
    row = page.weights(steps.weights, names, names, scores=steps.scores, scaled=steps.scaled, values=x, out=steps.out,
                       keys=x, gains=x @ x.T)  # fmt: skip
    page.write(folder / "many.html", "Many", row, page.heads(steps.weights, names, names))
    view = visit("many.html")
    view.set_default_timeout(120_000)
    alike = "document.querySelectorAll('tbody tr:nth-child(n + 9)')"
    assert view.evaluate(f"{alike}.length") == 3 * 192
    view.evaluate(f"for (const row of {alike}) row.remove()")  # of rows that are made alike eight are looked at
    broken, report = axe(view)
    assert broken == set(), report
    view.evaluate(
        "for (const part of document.querySelectorAll('table, label')) part.replaceWith(...part.querySelectorAll('select'))"
    )
    assert axe(view, "select-name")[0] == {"select-name"}, "the control"


@in_both
def test_at_320_pixels_nothing_scrolls_sideways(visit):
    view = visit("whole.html", viewport={"width": 320, "height": 640})
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert view.evaluate(sideways) == 0
    cut = "[...document.querySelectorAll('h1, h2, h3, p, button, svg, label')].filter(e => e.checkVisibility() && !e.closest('.scroll, .overview, .skip, .hidden') && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
    assert view.evaluate(cut) == []
    view.evaluate("document.querySelector('h1').style.width = '400px'")
    assert view.evaluate(sideways) > 0, "the control"


def test_a_very_long_key_is_cut_in_every_table(visit, folder):
    names = ["bank", "a" * 300, "of several words " * 30]
    weights = np.full((3, 3), 1 / 3)
    run = {"q": np.ones((2, 2)), "k": np.eye(3, 2), "weights": weights[:2]}
    parts = page.heads(weights, names, names), page.weights(weights, names, names), page.run(run, names, target=1)
    page.write(folder / "longest.html", "Long keys", *parts)
    view = visit("longest.html", viewport={"width": 1000, "height": 640})
    panel = view.locator(".panel").filter(has_text="The arcs of")
    assert panel.locator("tbody td bdi").count() > 2, "keys in cells that are no heads of rows"
    assert view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    panel.locator("tbody td bdi").first.evaluate("e => { e.style.maxWidth = 'none'; e.style.width = '3000px'; }")
    assert view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") > 0, (
        "the control"
    )


def test_a_derivative_is_by_q_whatever_the_query_is_called(visit, folder):
    page.write(folder / "named.html", "Named", page.run(FROZEN, LABELS, target=TARGET, query="bank"))
    view = visit("named.html")
    said = view.locator("main").text_content()
    assert said.count("−dL/dq") >= 5
    assert "dL/dbank" not in said
    assert "The path of bank over the field −dL/dq" in said


def test_a_run_of_four_tokens_and_200_frames_is_small():
    text = page.html("run", page.run(RUN, LABELS, target=TARGET, conserved=CONSERVED, rays={"max margin": RUN["q"]}))
    assert len(text.encode()) <= 300_000


def test_a_page_is_written_whole_and_is_the_same_twice(tmp_path, monkeypatch):
    first = page.write(tmp_path / "a" / "run.html", "run", PARTS[0]).read_bytes()
    assert first == page.write(tmp_path / "b.html", "run", PARTS[0]).read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        page.write(tmp_path / "a" / "run.html", "other", PARTS[0])
    assert (tmp_path / "a" / "run.html").read_bytes() == first
    assert os.listdir(tmp_path / "a") == ["run.html"]


def test_half_a_surrogate_pair_in_a_title_is_no_error(tmp_path):
    file = page.write(tmp_path / "page.html", "bank \ud800", page.weights(np.ones((1, 1)), ["a"], ["b"]))
    assert "<title>bank ?</title>" in file.read_text("utf-8")


def test_what_the_page_is_made_of_is_shipped():
    from jattn.page import _document

    folder = resources.files("jattn.page")
    assert all((folder / name).is_file() for name in ("template.html", "page.css", *_document._SCRIPTS))


def test_any_width_has_a_plane_and_nothing_at_all_is_a_page():
    rng = np.random.default_rng(0)
    for width in (1, 3, 5):
        run = {"q": rng.normal(size=(2, width)), "k": rng.normal(size=(3, width)), "weights": np.full((2, 3), 1 / 3)}
        plane = page.run(run, list("abc"), target=1).data["plane"]
        assert plane.shape == (2, width)
        np.testing.assert_allclose(plane @ plane.T, np.diag([1.0, width > 1]), atol=1e-12)
    assert "parts" in page.html("nothing")


ARRAYS = {"q": np.zeros((2, 2)), "k": np.zeros((3, 2)), "weights": np.full((2, 3), 1 / 3)}


def test_what_is_not_a_number_is_not_said_to_be_conserved(visit, folder):
    """Each frame is held against its own prediction, as in the terminal."""
    kept = {"lost": (0.0, [np.nan, 0.0]), "small beside large": ([1e9, 1.0], [1e9, 1.5]), "near": (1e9, [1e9, 1e9 + 1])}
    frames = {name: x[:2] for name, x in FROZEN.items() if name in ("q", "k", "weights")}
    page.write(folder / "kept.html", "Kept", page.run(frames, LABELS, target=TARGET, conserved=kept))
    view = visit("kept.html")
    assert view.locator(".holds, .fails").all_text_contents() == ["✗ fails", "✗ fails", "✓ holds"]
    assert view.locator("tr", has_text="lost").locator("td").nth(2).text_content() == "NaN"


def test_a_run_that_left_what_is_finite_is_drawn_as_far_as_it_is(visit, folder):
    """No picture holds NaN, no ring stands where no query is, and the arrows before are drawn and not said to be 0."""
    q, k = FROZEN["q"][:4].copy(), RUN["k"][:4].copy()
    q[2], q[3], k[3] = np.inf, np.nan, np.nan
    weights = np.where(np.isfinite(q[:, :1]), FROZEN["weights"][:4], np.nan)
    page.write(folder / "lost.html", "Lost", page.run({"q": q, "k": k, "weights": weights}, LABELS, target=TARGET))
    view = visit("lost.html")
    whole = "[...document.querySelectorAll('svg *')].every(x => [...x.attributes].every(a => !/NaN|Infinity/.test(a.value)))"
    for frame, rings in enumerate((1, 1, 0, 0)):
        view.locator("#frame").fill(str(frame))
        until(view, f"document.querySelectorAll('.handle').length === {rings}")
        assert view.evaluate(whole)
        assert "0 all along" not in view.locator("main").text_content()
    assert view.seen == []


NAMES = ["a", "b", "c"]
REFUSED = [
    (lambda: page.run(ARRAYS, NAMES, target=0, rays=[1]), TypeError, "run: rays must map names to directions, got rays of type list. Pass a mapping, or None."),
    (lambda: page.run(ARRAYS, NAMES, target=0, rays={"a": [[1.0], [1.0, 2.0]]}), TypeError, "run: rays['a'] must be an array of numbers [D], got rays['a'] of type list. Pass real numbers, in one shape throughout."),
    (lambda: page.run(ARRAYS | {"k": [[1.0], [1.0, 2.0]]}, NAMES, target=0), TypeError, "run: run.k must be an array of numbers [F, S, D], got run.k of type list. Pass real numbers, in one shape throughout."),
    (lambda: page.run(ARRAYS, NAMES, target=0, conserved={"a": (0.0, [0.0])}), ValueError, "run: conserved['a'][1] must have the shape [F], got conserved['a'][1] [1]. Here that is [2]: draw one head and two dimensions at a time."),
    (lambda: page.run(ARRAYS, NAMES, target=0, scale="1"), TypeError, "run: scale must be one number, got scale of type str. Pass a Python float."),
    (lambda: page.weights([[1.0]], ["a"], ["b"], scale=[1.0, 2.0]), TypeError, "weights: scale must be one number, got scale [2]. Pass a Python float."),
    (lambda: page.weights([[1.0]], ["a"], ["b"], scale=np.nan), ValueError, "weights: scale must be finite, got scale nan. Pass a Python float."),
    (lambda: page.run(ARRAYS, NAMES, target=3), ValueError, "run: target must name a key, got target 3 and S 3. Count from 0."),
    (lambda: page.run(ARRAYS, NAMES, target=-1), ValueError, "run: target must be at least 0, got target -1. Pass a Python int of at least 0."),
    (lambda: page.run(ARRAYS, NAMES, target=0, values=np.zeros((3, 1))), ValueError, "run: values and goal must be given together, got no goal. Give both or neither."),
    (lambda: page.run(ARRAYS, NAMES, target=0, plane=np.eye(3)), ValueError, "run: plane must have the shape [2, D], got plane [3, 3]. Here that is [2, 2]: draw one head and two dimensions at a time."),
    (lambda: page.run({"q": 1}, NAMES, target=0), TypeError, "run: run must hold q, k and weights, got run of type dict with q. Pass a mapping, or an object with these attributes."),
    (lambda: page.run(3, NAMES, target=0), TypeError, "run: run must hold q, k and weights, got run of type int. Pass a mapping, or an object with these attributes."),
    (lambda: page.run(ARRAYS | {"q": np.zeros((0, 2))}, NAMES, target=0), ValueError, "run: run must have at least one frame, got run.q [0, 2]. Record the start."),
    (lambda: page.run(ARRAYS | {"steps": [1, 1]}, NAMES, target=0), ValueError, "run: run.steps must increase, got run.steps in another order. Sort the frames by step."),
    (lambda: page.run(ARRAYS, NAMES, target=0, conserved=3), TypeError, "run: conserved must map each quantity to (predicted, measured), got conserved of type int. Pass a mapping."),
    (lambda: page.run(ARRAYS, NAMES, target=0, conserved={"a": 1}), TypeError, "run: conserved['a'] must be (predicted, measured), got conserved['a'] of type int. Give both, in this order."),
    (lambda: page.heads(np.zeros(3), NAMES, NAMES), ValueError, "heads: weights must have the axes [T, S], [H, T, S] or [L, H, T, S], got weights [3]. Take the batch apart first."),
    (lambda: page.html("x", "y"), TypeError, "html: parts must be parts of a page, got parts of type str. Make each with page.weights, heads, head_table, run, blocks, model or story."),
    (lambda: page.html("x", *[page.weights(np.ones((1, 1)), ["a"], ["b"])] * 2), ValueError, "html: a page shows weights once, got parts with two weights. Write two pages."),
    (lambda: page.html("x", *[page.heads(np.ones((1, 1)), ["a"], ["b"])] * 2), ValueError, "html: a page shows heads once, got parts with two heads. Write two pages."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_part_of_a_page_refuses_what_it_cannot_show(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_a_folder_in_the_place_of_a_page_leaves_nothing_written(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"^write: file must not name a folder, got \S+ that is a folder\."):
        page.write(tmp_path, "a page")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("weights", lambda x: page.heads(x, ["a", "b"], ["a", "b"])),
        ("mass", lambda x: page.blocks(x, np.eye(2), T=4, S=4)),
        ("largest", lambda x: page.blocks(np.eye(2), x, T=4, S=4)),
        (r"rows\[0\]", lambda x: page.blocks(np.eye(2), np.eye(2), T=4, S=4, rows={0: x.ravel()})),
    ],
)
def test_a_number_that_float32_holds_as_an_infinity_alone_is_refused(name, make):
    make(np.array([[np.inf, np.nan], [3e38, -3e38]]))
    with pytest.raises(ValueError, match=f"^(heads|blocks): {name} must be finite in float32 where it is finite, got"):
        make(np.array([[1.0, 0.0], [0.0, -1e39]]))


def test_a_run_of_numbers_whose_sum_overflows_is_drawn_without_them():
    run = {"q": [[1.7e308] * 3, [1.7e308] * 3, [2.0, 0.0, 0.0]], "k": np.eye(2, 3), "weights": np.full((3, 2), 0.5)}
    assert np.isfinite(page.run(run, ["a", "b"], target=0).data["plane"]).all()
