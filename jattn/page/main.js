// The page: reads the data, lays out the panels, and moves through time.

const given = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main"), player = document.getElementById("player"), said = document.getElementById("said");
document.getElementById("title").textContent = given.title;
document.getElementById("note").textContent = given.note;

const runs = given.parts.filter((p) => p.kind === "run").map((p) => ({
  ...p, ...Object.fromEntries(["q", "k", "weights", "steps", "plane"].map((name) => [name, deep(p[name])])),
  values: p.values && deep(p.values), goal: p.goal && deep(p.goal),
  rays: Object.fromEntries(Object.entries(p.rays).map(([name, u]) => [name, deep(u)])),
  series: Object.fromEntries(Object.entries(p.series).map(([panel, of]) => [panel, Object.fromEntries(Object.entries(of).map(([name, y]) => [name, deep(y)]))])),
  conserved: Object.fromEntries(Object.entries(p.conserved).map(([name, both]) => [name, { predicted: deep(both.predicted), measured: deep(both.measured) }])),
}));
const state = { run: runs[0] ?? null, frame: 0, log: true, playing: null };
const still = matchMedia("(prefers-reduced-motion: reduce)");

const button = (text, label, act, more = {}) => el("button", { type: "button", text, "aria-label": label, class: "wordy", onclick: act, ...more });
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = button("Dark", "Dark colours", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; dress(); });
const isDark = () => document.documentElement.dataset.theme === "dark";
function dress() { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours"); }
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
dark.addEventListener("change", () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; dress(); });
dress();

const tools = document.getElementById("tools");
tools.append(
  button("Save view", "Save the view as SVG", () => { main.classList.add("unpinned"); save("view.svg", "image/svg+xml", pictureOf([document.querySelector("header"), ...main.querySelectorAll(".panel:not([hidden])")])); main.classList.remove("unpinned"); }),
  ...(runs.length ? [button("Run as CSV", "Save the run as CSV", () => save("run.csv", "text/csv", csvOfRun(state.run)))] : []),
  ...(given.parts.some((p) => p.kind === "weights" || p.kind === "heads") ? [button("Weights as CSV", "Save the weights as CSV", () => save("weights.csv", "text/csv", csvOfWeights(given.parts)))] : []),
  button("All as JSON", "Save all data as JSON", () => save("data.json", "application/json", document.getElementById("data").textContent)), theme);

const resizes = [];
const shows = new Map(); // part → what brings it to a step of a story
if (runs.length) {
  const show = layRun();
  given.parts.filter((p) => p.kind === "run").forEach((part, i) => shows.set(part, (step) => show(runs[i], step)));
}
for (const part of given.parts) {
  if (part.kind === "run") continue;
  const { made, show } = PANELS[part.kind](part);
  main.append(...made.map((p) => p.node));
  for (const p of made) { p.after?.(); if (p.resize) resizes.push(p.resize); }
  shows.set(part, show);
}
if (!given.parts.length) main.append(el("p", { text: "Nothing was given to this page." }));

const framed = window.parent !== window; // as in a notebook, which scrolls by itself
const story = given.story && storyPanel(given.story, { show: (step) => shows.get(given.parts[step.part])(step), still, framed });
if (story) {
  main.prepend(story.node);
  story.go(0, false);
  if (!framed) for (const event of ["load", "hashchange"]) addEventListener(event, story.arrive); // the browser has scrolled to where it would
}

function layRun() {
  const last = () => state.run.steps.length - 1;
  const slider = el("input", { type: "range", id: "frame", min: 0, step: 1, value: 0, "aria-label": "Frame", oninput: () => { stop(); go(Number(slider.value)); } });
  const step = el("output", { for: "frame", "aria-live": "off" });
  const play = button("Play", "Play", () => (state.playing ? stop() : start()), { class: "main" });
  const log = el("input", { type: "checkbox", id: "log", onchange: () => { state.log = log.checked; go(state.frame); } });
  log.checked = true;
  player.append(play, button("◀", "One frame back", () => { stop(); go(state.frame - 1); }), button("▶", "One frame on", () => { stop(); go(state.frame + 1); }), slider, step, el("label", {}, log, "log time"));
  player.hidden = false;
  const shown = runPanels(state, { go: (f) => { stop(); go(f); }, settle: () => shown.settle() });

  const choices = [["loss", "Loss"], ["optimiser", "Optimiser"]].map(([name, label]) => {
    const names = [...new Set(runs.map((r) => r[name]))];
    if (names.length < 2) return null;
    return { name, select: el("select", { id: name, onchange: () => choose(name) }, ...names.map((x) => el("option", { value: x, text: x || "–" }))), label };
  }).filter(Boolean);
  if (choices.length) main.append(el("section", { class: "panel row", "aria-label": "Which run" }, ...choices.map((c) => el("label", {}, c.label, c.select))));
  main.append(...shown.parts.map((p) => p.node));

  // The run with what was just chosen; of those, the one most like the one before.
  function choose(name) {
    const wanted = Object.fromEntries(choices.map((c) => [c.name, c.select.value]));
    const like = (r) => choices.reduce((n, c) => n + (r[c.name] === wanted[c.name]), 0);
    state.run = runs.filter((r) => r[name] === wanted[name]).reduce((a, b) => (like(b) > like(a) ? b : a));
    stop();
    go(Math.min(state.frame, last()), true);
  }
  function go(f, fresh = false) {
    const run = state.run;
    state.frame = clamp(f, 0, last());
    for (const c of choices) c.select.value = run[c.name];
    slider.max = last();
    slider.value = state.frame;
    const at = `step ${grouped(run.steps[state.frame])} of ${grouped(run.steps.at(-1))}`;
    slider.setAttribute("aria-valuetext", at);
    step.textContent = at;
    shown.show(run, state.frame, state.log, fresh);
  }
  // The film lasts eight seconds, even in steps or in their logarithm; with reduced motion, a still every 0.8 seconds.
  function start() {
    const begun = state.frame >= last() ? 0 : state.frame, { steps } = state.run;
    const time = (f) => (state.log ? Math.log1p(steps[f] - steps[0]) : steps[f] - steps[0]) / ((state.log ? Math.log1p(steps.at(-1) - steps[0]) : steps.at(-1) - steps[0]) || 1);
    const origin = performance.now() - time(begun) * 8000;
    let drawn = -Infinity;
    go(begun);
    play.textContent = "Pause";
    play.setAttribute("aria-label", "Pause");
    const tick = (now) => {
      if (!still.matches || now - drawn > 800) {
        const u = (now - origin) / 8000;
        let f = state.frame;
        while (f < last() && time(f + 1) <= u) f++;
        if (f !== state.frame) { go(f); drawn = now; }
        if (f >= last()) return stop();
      }
      state.playing = requestAnimationFrame(tick);
    };
    state.playing = requestAnimationFrame(tick);
  }
  function stop() {
    if (!state.playing) return;
    cancelAnimationFrame(state.playing);
    state.playing = null;
    play.textContent = "Play";
    play.setAttribute("aria-label", "Play");
    said.textContent = step.textContent;
  }
  go(0, true);
  resizes.push(() => shown.resize(state.log, state.frame));
  return (run, { frame, key }) => {
    const fresh = run !== state.run;
    state.run = run;
    stop();
    go(frame, fresh);
    return shown.look(key);
  };
}

let width = main.clientWidth;
new ResizeObserver(() => {
  if (main.clientWidth === width) return;
  width = main.clientWidth;
  for (const f of resizes) f();
  story?.fit();
}).observe(main);

// In a notebook: as high as what it shows. A bar to scroll would make that narrower, and so lower, and then be gone again.
const frame = window.frameElement;
if (frame) {
  document.documentElement.style.overflowY = "hidden";
  new ResizeObserver(() => { frame.style.height = `${Math.ceil(document.body.getBoundingClientRect().height)}px`; }).observe(document.body);
}
