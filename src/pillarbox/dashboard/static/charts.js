// Charts by uPlot, with bands behind them where a destination was paused or could not be reached.

const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function drawBands(bands) {
  return {
    hooks: {
      drawClear: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        for (const band of bands) {
          const start = plot.valToPos(Date.parse(band.start) / 1000, "x", true);
          const end = band.end ? plot.valToPos(Date.parse(band.end) / 1000, "x", true) : bbox.left + bbox.width;
          ctx.fillStyle = colour(band.kind === "pause" ? "--band-pause" : "--band-outage");
          ctx.fillRect(start, bbox.top, Math.max(end - start, 2), bbox.height);
        }
        ctx.restore();
      },
    },
  };
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

const PALETTE = ["--c-p50", "--c-p95", "--c-delivered", "--c-retried", "--c-p99", "--c-failed"];

function listSeries(kind, data) {
  if (kind === "counts") {
    return [["delivered", data.delivered, "--c-delivered"], ["retried", data.retried, "--c-retried"], ["failed", data.failed, "--c-failed"]];
  }
  if (kind === "latency") return [["p50", data.p50, "--c-p50"], ["p95", data.p95, "--c-p95"], ["p99", data.p99, "--c-p99"]];
  const names = Object.keys(data.backlog);
  return names.length ? names.map((name, place) => [name, data.backlog[name], PALETTE[place % PALETTE.length]]) : [["backlog", data.times.map(() => 0), "--c-p50"]];
}

function draw(element, data) {
  const kind = element.dataset.chart;
  const series = listSeries(kind, data);
  const format = kind === "latency" ? formatSeconds : formatCount;
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const options = {
    width: Math.max(element.clientWidth, 100),
    height: 168,
    cursor: { points: { size: 5 } },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, kind === "latency" ? 0.01 : 4) * 1.08] } },
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), "UTC"),
    axes: [{ ...axis, size: 30, values: (_, ticks) => ticks.map((at) => formatTime(at, data.step)) }, { ...axis, size: 56, values: (_, ticks) => ticks.map(format) }],
    plugins: [drawBands(kind === "latency" ? [] : data.bands)],
    series: [
      { value: (_, at) => (at ? new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ") : "–") },
      ...series.map(([label, , name]) => ({
        label, stroke: colour(name), width: 1.6, points: { show: false }, spanGaps: kind === "latency",
        fill: kind === "counts" ? `${colour(name)}22` : undefined, value: (_, value) => format(value),
      })),
    ],
  };
  drawn.get(element)?.destroy();
  drawn.set(element, new window.uPlot(options, [data.times, ...series.map(([, values]) => values)], element));
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
