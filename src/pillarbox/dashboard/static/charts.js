// Charts by uPlot, with bands behind them where a destination was paused or could not be reached.

const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const STRIP = 13; // height of one destination's strip above a chart

function bandColour(band) {
  return colour(band.kind === "pause" ? "--band-pause" : "--band-outage");
}

function placeBand(plot, band) {
  const { left, width } = plot.bbox;
  const place = (at) => Math.min(Math.max(plot.valToPos(Date.parse(at) / 1000, "x", true), left), left + width);
  const start = place(band.start);
  return [start, Math.max(band.end ? place(band.end) : left + width, start + 2)];
}

// A chart of one destination is shaded over its whole height.
function shadeChart(plot, bands) {
  for (const band of bands) {
    const [start, end] = placeBand(plot, band);
    plot.ctx.fillStyle = bandColour(band);
    plot.ctx.fillRect(start, plot.bbox.top, end - start, plot.bbox.height);
  }
}

// In a chart of several, a band belongs to one: a strip with its name stands above, and the area below its line is shaded.
function shadeLine(plot, bands, names) {
  const { ctx, bbox } = plot;
  const height = STRIP * devicePixelRatio;
  const rows = [...new Set(bands.map((band) => band.destination))];
  for (const band of bands) {
    const [start, end] = placeBand(plot, band);
    const top = bbox.top - height * (rows.length - rows.indexOf(band.destination)) - 2;
    ctx.fillStyle = bandColour(band);
    ctx.fillRect(start, top, end - start, height - 2);
    ctx.save();
    ctx.beginPath();
    ctx.rect(start, bbox.top, end - start, bbox.height);
    ctx.clip();
    const values = plot.data[names.indexOf(band.destination) + 1] ?? [];
    fillBelow(plot, values);
    ctx.restore();
  }
  ctx.fillStyle = colour("--text");
  ctx.font = `${10 * devicePixelRatio}px system-ui`;
  ctx.textBaseline = "middle";
  const named = new Set();
  for (const band of bands) {
    const name = band.destination;
    const [start, end] = placeBand(plot, band);
    const width = ctx.measureText(name).width + 4 * devicePixelRatio;
    if (named.has(name) && end - start < width) continue;
    named.add(name);
    const x = Math.min(start + 3 * devicePixelRatio, bbox.left + bbox.width - width);
    ctx.fillText(name, x, bbox.top - height * (rows.length - rows.indexOf(name)) - 2 + height / 2 - 1);
  }
}

function fillBelow(plot, values) {
  const { ctx } = plot;
  const bottom = plot.bbox.top + plot.bbox.height;
  let first = null;
  let last = null;
  ctx.beginPath();
  const close = () => { if (first !== null) { ctx.lineTo(last, bottom); ctx.lineTo(first, bottom); } first = null; };
  values.forEach((value, place) => {
    if (value === null || value === undefined) { close(); return; }
    last = plot.valToPos(plot.data[0][place], "x", true);
    const y = plot.valToPos(value, "y", true);
    if (first === null) { first = last; ctx.moveTo(last, y); } else ctx.lineTo(last, y);
  });
  close();
  ctx.fill();
}

// While nobody points at a chart, its legend shows the latest values.
function showLatest(plot) {
  const values = plot.data.slice(1);
  const last = plot.data[0].length - 1;
  let place = last;
  while (place >= 0 && values.every((one) => one[place] === null || one[place] === undefined)) place -= 1;
  plot.setLegend({ idx: place < 0 ? last : place }, false);
}

// A value between two gaps is no line: it is drawn as a point.
function listLonely(plot, place) {
  const values = plot.data[place];
  const isGap = (at) => values[at] === null || values[at] === undefined;
  return values.flatMap((_, at) => (!isGap(at) && isGap(at - 1) && isGap(at + 1) ? [at] : []));
}

function formatSeconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

function formatCount(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

function formatTime(at, step) {
  const text = new Date(at * 1000).toISOString();
  return step > 600 ? `${text.slice(8, 10)}. ${text.slice(11, 16)}` : text.slice(11, 16);
}

// The step that runs is not over: counted as a whole one, its part would look like a fall.
function leaveOutRunning(values) {
  const before = values.slice(0, -1);
  return before.some((value) => value !== null) ? [...before, null] : values;
}

const PALETTE = ["--c-p50", "--c-p95", "--c-delivered", "--c-retried", "--c-p99", "--c-failed"];

function listSeries(kind, data) {
  if (kind === "counts") {
    return [["delivered", "--c-delivered"], ["retried", "--c-retried"], ["failed", "--c-failed"]].map(([name, shade]) => [name, leaveOutRunning(data[name]), shade]);
  }
  if (kind === "latency") return [["p50", data.p50, "--c-p50"], ["p95", data.p95, "--c-p95"], ["p99", data.p99, "--c-p99"]];
  const names = Object.keys(data.backlog);
  return names.map((name, place) => [name, data.backlog[name], PALETTE[place % PALETTE.length]]);
}

function draw(element, data) {
  const kind = element.dataset.chart;
  const series = listSeries(kind, data);
  const names = series.map(([label]) => label);
  const format = kind === "latency" ? formatSeconds : formatCount;
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  // Pauses and outages belong to a destination: the sums of several have none.
  const isOne = Boolean(data.destination);
  const bands = kind === "latency" || (!isOne && kind !== "backlog") ? [] : data.bands;
  const strips = isOne ? 0 : new Set(bands.map((band) => band.destination)).size;
  const shade = (plot) => (isOne ? shadeChart(plot, bands) : shadeLine(plot, bands, names));
  const options = {
    width: Math.max(element.clientWidth, 100),
    height: 168 + strips * STRIP,
    padding: [strips ? strips * STRIP + 6 : null, null, null, null],
    cursor: { points: { size: 5 } },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, kind === "latency" ? 0.01 : 4) * 1.08] } },
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), "UTC"),
    axes: [{ ...axis, size: 30, values: (_, ticks) => ticks.map((at) => formatTime(at, data.step)) }, { ...axis, size: 56, values: (_, ticks) => ticks.map(format) }],
    hooks: {
      drawClear: [shade],
      ready: [showLatest],
      setLegend: [(plot) => { if (plot.cursor.idx === null || plot.cursor.idx === undefined) showLatest(plot); }],
    },
    series: [
      { label: "at", value: (_, at) => (at ? new Date(at * 1000).toISOString().slice(11, 16) : "–") },
      ...series.map(([label, , name]) => ({
        label, stroke: colour(name), width: 1.6, points: { size: 5, show: true, filter: listLonely }, spanGaps: false,
        fill: kind === "counts" ? `${colour(name)}22` : undefined, value: (_, value) => format(value),
      })),
    ],
  };
  drawn.get(element)?.destroy();
  element.replaceChildren();
  drawn.set(element, new window.uPlot(options, [data.times, ...series.map(([, values]) => values)], element));
  if (series.every(([, values]) => values.every((value) => value === null))) {
    const note = document.createElement("p");
    note.className = "chart-empty";
    note.textContent = "No data in this time.";
    element.append(note);
  }
}

export async function drawCharts() {
  const section = document.querySelector("[data-charts]");
  if (!section || !window.uPlot) return;
  try {
    const answer = await fetch(section.dataset.charts, { headers: { accept: "application/json", "hx-request": "true" } });
    if (!answer.ok) return;
    const data = await answer.json();
    for (const element of section.querySelectorAll("[data-chart]")) draw(element, data);
    section.dataset.drawn = "true";
  } catch { /* the next update tries again */ }
}

let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawCharts, 200); });
