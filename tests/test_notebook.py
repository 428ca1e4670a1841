"""In a notebook: what jattn makes shows itself, in the HTML that the notebook is exported to as well."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _browser import soon
from _children import environment

import jattn
from jattn import masks, page

pytestmark = pytest.mark.structure
IMPORTS = """
import jax, numpy as np, jattn
from jattn import masks, page
x = np.eye(3, dtype=np.float32)
steps = jattn.explain(x, x, x, mask=masks.causal())
names = ["river", "bank", "<b>"]
"""
WEIGHTS = "page.weights(steps.weights, names, names, scores=steps.scores, scaled=steps.scaled, values=x, out=steps.out)"
HEADS = "page.heads(np.asarray(steps.weights)[None, None], names, names)"
RUN = """
k = np.array([[1.0, 0.0], [0.0, 1.0]])
p = np.full((3, 2), 0.5)
q = np.array([[0.1, 0.2], [0.2, 0.2], [0.3, 0.2]])
page.run({"q": q, "k": k, "weights": p, "loss": np.ones(3)}, names[:2], target=0)
"""
CELLS = [IMPORTS, "steps", "masks.causal() & ~masks.window(left=2, right=0)", HEADS, RUN, *[WEIGHTS] * 8]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A notebook that was run, as HTML without the style of its page, which a network would be asked for."""
    nbformat, nbconvert = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert")
    from nbconvert.preprocessors import ExecutePreprocessor

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        ExecutePreprocessor(timeout=120, kernel_name="python3").preprocess(notebook)
    html, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    file = tmp_path_factory.mktemp("notebook") / "notebook.html"
    file.write_text(f"<!DOCTYPE html><title>A notebook</title><body>{html}</body>", encoding="utf-8")
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ten_pictures_of_a_notebook_draw_and_leave_each_other_alone(browser, exported, scheme):
    context = browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme=scheme)
    view, asked, wrong = context.new_page(), [], []
    view.on("request", lambda r: asked.append(r.url))
    view.on("pageerror", lambda e: wrong.append(str(e)))
    view.goto(exported.as_uri())
    frames = [f for f in view.frames if f != view.main_frame]
    assert len(frames) == 10
    for frame in frames:
        frame.wait_for_selector("svg, .map td")
        assert frame.evaluate("document.documentElement.dataset.theme") == scheme
        assert frame.evaluate("document.documentElement.scrollHeight - frameElement.clientHeight") <= 1, "cut off"
    one, other = frames[3], frames[4]
    before = other.locator("main").inner_text()
    one.locator("[data-row='2']").first.click()
    assert "bank" in one.locator("main").inner_text()
    assert other.locator("main").inner_text() == before
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []
    assert wrong == []
    view.evaluate("new Image().src = 'https://example.org/x.png'")
    assert soon(view, lambda: asked and asked[-1] == "https://example.org/x.png"), (
        "the control: a request would be seen"
    )
    context.close()


def test_a_part_is_one_frame_with_a_name_and_its_tokens_escaped():
    part = page.weights([[0.7, 0.3]], ["bank"], ['"><script>', "money"])
    html = part._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"]*" title="The weights of a head" style="[^"]*"></iframe>', html)
    assert "<script>" not in html


def test_steps_are_tables_of_their_numbers():
    x = np.eye(2, dtype=np.float32)
    html = jattn.explain(x, x, x, mask=masks.causal())._repr_html_()
    captions = re.findall(r"<caption>(.*?)</caption>", html)
    assert captions == [f"{name} [2, 2], float32" for name in ("scores", "scaled", "weights", "out")]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html)
    assert cells[4:8] == ["0.707", "−∞", "0.000", "0.707"]
    long = jattn.explain(*(np.zeros((40, 2), np.float32),) * 3)._repr_html_()
    assert "weights [40, 40], float32" in long
    batch = jax.vmap(jattn.explain, (0, None, None))(x[None], x, x)._repr_html_()
    assert "weights [1, 2, 2], float32" in batch, "of a batch the shapes"
    tiny = jattn.explain(*(jnp.asarray([[-1e-5], [1.0]], jnp.bfloat16),) * 3)._repr_html_()
    assert "−0.000" not in tiny
    assert "0.731" in jattn.explain(*(jnp.asarray([[0.0], [1.0]], jnp.bfloat16),) * 3)._repr_html_()
    assert "<td" not in long


@pytest.mark.parametrize(
    ("mask", "T", "S"),
    [
        (masks.causal(), 24, 24),
        (masks.dense(np.tri(3, 5, dtype=bool)), 3, 5),
        (masks.segments(np.zeros(40, int)) & masks.causal(), 24, 24),
        (masks.lengths(k=2), 24, 24),
    ],
)
def test_a_mask_is_its_name_and_its_pairs(mask, T, S):
    html = mask._repr_html_()
    assert html.startswith("<code>" + repr(mask).replace("&", "&amp;"))
    shown = re.search(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL)[1].splitlines()
    whole = (40, 40) if "segments" in repr(mask) else (T, S)
    assert shown == [line[:S] for line in masks.picture(mask, *whole).splitlines()[:T]]
