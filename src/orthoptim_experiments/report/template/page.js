"use strict";
// The page's state is in its controls; a chart is drawn anew from them and from the data whenever one changes.
const DATA = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const touch = matchMedia("(pointer: coarse)");

// Plotly reads its own small markup in labels: what comes from the data must not be taken for it.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const digits = (value) => (value === null ? "–" : Number(value).toPrecision(3).replace(/\.?0+(?=e|$)/, ""));
const colour = (method) => (root.dataset.theme === "dark" ? method.dark : method.colour);
const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();

function stateOf(section) {
  const hidden = [...section.querySelectorAll('.method[aria-pressed="false"]')].map((button) => button.dataset.method);
  return {
    axis: section.querySelector(".segmented input:checked").value,
    logX: section.querySelector(".log-x").checked,
    bands: section.querySelector(".bands").checked,
    hidden: new Set(hidden),
  };
}

function bandTrace(method, curve) {
  const known = curve.x.map((_, at) => at).filter((at) => curve.low[at] !== null);
  const back = [...known].reverse();
  return {
    x: [...known, ...back].map((at) => curve.x[at]),
    y: [...known.map((at) => curve.high[at]), ...back.map((at) => curve.low[at])],
    fill: "toself", fillcolor: colour(method), opacity: 0.12, line: { width: 0 }, mode: "lines", hoverinfo: "skip",
  };
}

function meanTrace(method, curve, unit) {
  const text = curve.x.map((_, at) => {
    const band = curve.low[at] === null ? "" : `<br>${digits(curve.low[at])} to ${digits(curve.high[at])}`;
    return `${band}<br>${curve.trials[at]} ${curve.trials[at] === 1 ? "seed" : "seeds"}`;
  });
  return {
    x: curve.x, y: curve.mean, text, name: plain(method.label), mode: "lines+markers",
    line: { color: colour(method), dash: method.dash, width: 2 },
    marker: { symbol: method.marker, color: colour(method), size: 7, maxdisplayed: 7 },
    hovertemplate: `<b>%{fullData.name}</b><br>%{x:.4~g} ${unit}<br>%{y:.3~g}%{text}<extra></extra>`,
  };
}

// A thin line that ends in a cross: where the trial does, or where it leaves the range.
function lostTrace(method, trial, range) {
  const outside = trial.y.findIndex((y) => y < range[0] || y > range[1]);
  const count = outside < 0 ? trial.y.length : outside + 1;
  return {
    x: trial.x.slice(0, count), y: trial.y.slice(0, count).map((y) => Math.min(Math.max(y, range[0]), range[1])),
    name: `${plain(method.label)}, seed ${trial.seed}: ${trial.status}`, mode: "lines+markers", cliponaxis: false,
    line: { color: colour(method), width: 1 },
    marker: { symbol: "x-thin", size: Array.from({ length: count }, (_, at) => (at === count - 1 ? 10 : 0)), opacity: 1, line: { width: 2, color: colour(method) } },
    hovertemplate: "<b>%{fullData.name}</b><extra></extra>",
  };
}

// The range of the means and of the shade: a wide band, or a trial that diverged, would leave no room for them.
function rangeOf(means, shade, log) {
  const given = [...means.flatMap((trace) => trace.y), ...(shade === null ? [] : [shade])];
  // so far from the ends of the doubles that an axis with its margins can span them
  const known = given.filter((y) => y !== null && (!log || y > 0)).map((y) => Math.min(Math.max(y, log ? 1e-100 : -1e100), 1e100));
  if (!known.length) return [log ? 0.1 : 0, 1];
  const ends = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
  const [low, high] = log ? ends.map(Math.log10) : ends;
  const margin = 0.07 * (high - low) || 0.5;
  return [low - margin, high + margin].map((end) => (log ? 10 ** end : end));
}

function curveTraces(chart, methods, state, logY) {
  const curves = chart.curves[state.axis];
  const shown = methods.filter((method) => Object.hasOwn(curves, method.name)); // a method may be named "constructor"
  const unit = state.axis === "step" ? "iterations" : "s";
  const byName = Object.fromEntries(methods.map((method) => [method.name, method]));
  const banded = state.bands ? shown.filter((method) => curves[method.name].low.some((low) => low !== null)) : [];
  const bands = banded.map((method) => bandTrace(method, curves[method.name]));
  const means = shown.map((method) => meanTrace(method, curves[method.name], unit)).reverse(); // the first, POGO, on top
  const range = rangeOf(means, chart.shade, logY);
  const lost = chart.lost[state.axis].filter((trial) => Object.hasOwn(byName, trial.method)).map((trial) => lostTrace(byName[trial.method], trial, range));
  return { traces: [...bands, ...lost, ...means], range };
}

function barTraces(chart, methods, state) {
  const shown = methods.filter((method) => Object.hasOwn(chart.bars, method.name));
  const values = shown.map((method) => chart.bars[method.name]);
  const reach = (value, end) => (value.low === null ? null : Math.abs(value[end] - value.mean));
  const bars = {
    type: "bar", x: shown.map((method) => plain(method.label)), y: values.map((value) => value.mean),
    marker: { color: shown.map(colour) }, hovertemplate: "<b>%{x}</b><br>%{y:.3~g}<extra></extra>",
    error_y: {
      type: "data", symmetric: false, visible: state.bands, color: variable("--ink"), thickness: 1.2,
      array: values.map((value) => reach(value, "high")), arrayminus: values.map((value) => reach(value, "low")),
    },
  };
  return { traces: [bars], range: null };
}

function axisLayout(log, range) {
  const decades = log && range ? Math.log10(range[1] / range[0]) : 0;
  return {
    type: log ? "log" : "linear", gridcolor: variable("--grid"), linecolor: variable("--quiet"), zeroline: false, showline: true,
    ticks: "outside", ticklen: 4, tickcolor: variable("--quiet"), automargin: true, exponentformat: "power",
    ...(range ? { range: log ? range.map(Math.log10) : range } : {}),
    ...(decades > 1 ? { dtick: Math.ceil(decades / 7), tickfont: { size: 10 } } : { nticks: 6 }), // only powers of ten
  };
}

const shadeShape = (top, bottom) => ({
  type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", y0: bottom, y1: top,
  fillcolor: "#009E73", opacity: 0.1, line: { width: 0 }, layer: "below",
});

function draw(plot) {
  const section = plot.closest("section");
  const { methods, axes, charts } = DATA[section.id];
  const chart = charts[plot.dataset.chart];
  const state = stateOf(section);
  const shown = methods.filter((method) => !state.hidden.has(method.name));
  const logY = plot.closest(".chart").querySelector(".log-y").checked;
  const { traces, range } = chart.bars ? barTraces(chart, shown, state) : curveTraces(chart, shown, state, logY);
  const layout = {
    font: { family: variable("--sans"), size: 12, color: variable("--quiet") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 52, r: 10, t: 12, b: 42 },
    showlegend: false, hovermode: "closest", dragmode: touch.matches ? false : "zoom", // a finger scrolls the page
    hoverlabel: { bgcolor: variable("--raised"), bordercolor: variable("--rule"), font: { family: variable("--sans"), color: variable("--ink") }, align: "left" },
    xaxis: chart.bars ? { automargin: true } : { ...axisLayout(state.logX), title: { text: axes[state.axis], standoff: 8 } },
    yaxis: axisLayout(logY, range),
  };
  if (range && chart.shade !== null) layout.shapes = [shadeShape(chart.shade, range[0])];
  const config = { responsive: true, displayModeBar: false };
  return Plotly.react(plot, traces, layout, config);
}

const plotsOf = (element) => [...element.querySelectorAll(".plot")];
const drawAll = () => plotsOf(document).forEach(draw);

for (const section of document.querySelectorAll("section.run")) {
  section.addEventListener("click", (event) => {
    const button = event.target.closest(".method");
    if (!button) return;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    plotsOf(section).forEach(draw);
  });
  section.addEventListener("change", (event) => plotsOf(event.target.closest(".chart") ?? section).forEach(draw));
}

// Light or dark as the system says, until the button says otherwise; on paper always light.
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
function setTheme(theme) {
  root.dataset.theme = theme;
  drawAll();
}
const wanted = () => chosen ?? (system.matches ? "dark" : "light");
system.addEventListener("change", () => setTheme(wanted()));
document.getElementById("theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  setTheme(chosen);
});
addEventListener("beforeprint", () => setTheme("light"));
addEventListener("afterprint", () => setTheme(wanted()));
setTheme(wanted());
