// A story: step by step, what is said, what is outlined, and what the reader may try.

// `show` brings a step's part to what the step speaks of and returns what can be outlined, by name.
function storyPanel({ title, steps }, { show, still, framed }) {
  const id = (i) => `step-${i + 1}`;
  const heading = el("h2", { text: title, id: `panel-${++panels}` });
  const links = steps.map((step, i) => el("a", { href: `#${id(i)}`, onclick: (e) => { if (e.ctrlKey || e.metaKey || e.shiftKey) return; e.preventDefault(); go(i); } }, String(i + 1), el("span", { text: ` ${step.title}` })));
  const told = el("div", { class: "told", "aria-live": "polite", "aria-atomic": "true" });
  const trial = el("p", { "aria-live": "polite" }), look = el("p", { class: "note look" });
  const back = el("button", { type: "button", text: "Back", "aria-keyshortcuts": "ArrowLeft", onclick: () => go(at - 1) });
  const next = el("button", { type: "button", text: "Next", class: "main", "aria-keyshortcuts": "ArrowRight", onclick: () => go(at + 1) });
  const where = el("span", { class: "note" });
  const bar = el("div", { class: "row" }, back, next, where, el("span", { class: "note keys", text: "or ← → in this panel" }));
  const paragraphs = (step) => step.text.split(/\n\s*\n/).map((text) => el("p", { text }));
  const tried = (step) => (step.try ? [el("strong", { text: "Try: " }), step.try] : []);
  const whole = el("ol", { class: "whole" }, ...steps.map((step) => el("li", {}, el("h3", { text: step.title }), ...paragraphs(step), el("p", {}, ...tried(step)))));
  const node = el("section", { class: "panel story", "aria-labelledby": heading.id, onkeydown: keys }, heading,
    el("nav", { "aria-label": `Steps of “${title}”` }, el("ol", { class: "steps" }, ...links.map((link, i) => el("li", { id: id(i) }, link)))), told, el("div", { class: "aside" }, trial, look, bar), whole);
  let at = 0, lit = [];

  function keys(e) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!by || e.altKey || e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    go(at + by);
  }
  function go(i, arrive = true) {
    if (i < 0 || i >= steps.length) return;
    const step = steps[(at = i)], found = show(step), lost = look.contains(document.activeElement);
    for (const x of lit) x.classList.remove("lit");
    lit = step.highlight.map((name) => found[name]).filter(Boolean);
    for (const x of lit) x.classList.add("lit");
    links.forEach((link, j) => (j === i ? link.setAttribute("aria-current", "step") : link.removeAttribute("aria-current")));
    told.replaceChildren(el("h3", { text: `${i + 1} of ${steps.length}: ${step.title}` }), ...paragraphs(step));
    trial.replaceChildren(...tried(step));
    look.replaceChildren(...(lit.length ? ["Look at: ", ...lit.flatMap((x, j) => (j ? [" · ", linkTo(x)] : [linkTo(x)]))] : []));
    where.textContent = `${i + 1} of ${steps.length}`;
    for (const [b, to] of [[back, i - 1], [next, i + 1]]) {
      b.setAttribute("aria-disabled", String(!steps[to])); // and keeps the focus, as a disabled button would not
      b.setAttribute("aria-label", b.textContent + (steps[to] ? `: ${steps[to].title}` : ""));
    }
    if (lost) next.focus({ preventScroll: true });
    fit();
    if (!arrive || framed) return;
    history.replaceState(null, "", `#${id(i)}`);
    scroll();
  }
  const named = (x) => (x.querySelector("h2, h3") ?? x.closest(".panel").querySelector("h2")).textContent;
  function linkTo(x) {
    x.id ||= `view-${++panels}`;
    return el("a", { href: `#${x.id}`, text: named(x), onclick: (e) => {
      e.preventDefault();
      x.setAttribute("tabindex", "-1");
      x.focus({ preventScroll: true });
      x.scrollIntoView({ block: "start", behavior: glide() });
    } });
  }
  const glide = () => (still.matches ? "auto" : "smooth");

  // The story stays in sight while the page moves below it; where it is too high for that, its buttons do.
  let pinned = false;
  function fit() {
    pinned = node.offsetHeight < 0.45 * innerHeight;
    const shown = framed ? 0 : pinned ? node.offsetHeight + 8 : bar.offsetHeight + 24;
    node.style.top = pinned ? "8px" : `${8 - bar.offsetTop}px`;
    document.documentElement.style.scrollPaddingTop = `${shown + 8}px`; // what gets the focus is not hidden below either
    document.documentElement.style.scrollPaddingBottom = `${framed ? 0 : player.offsetHeight + 16}px`;
  }
  function scroll() {
    const behavior = glide();
    if (pinned && lit.length) {
      const around = lit[0].closest(".panel"), [box, outer] = [lit[0], around].map((x) => x.getBoundingClientRect());
      const above = node.getBoundingClientRect().bottom, below = innerHeight - player.offsetHeight - 10;
      if (box.top >= above - 1 && (box.bottom <= below || outer.top <= above + 40)) return;
      return (box.bottom - outer.top <= below - node.offsetHeight ? around : lit[0]).scrollIntoView({ block: "start", behavior });
    }
    node.style.position = "static"; // where it stands when nothing holds it
    const top = node.getBoundingClientRect().top + scrollY - 8;
    node.style.position = "";
    scrollTo({ top, behavior });
  }
  const arrive = () => go(steps.findIndex((_, i) => `#${id(i)}` === location.hash));
  return { node, fit, go, arrive };
}
