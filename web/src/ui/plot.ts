/** The part that needs uPlot, which is loaded with the first chart. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { duration, value } from "../lib/format.ts";
import type { Line } from "./chart";

export interface Drawing {
  lines: Line[];
  xs: number[];
  raw: (number | null | undefined)[][];
  smoothed: (number | null | undefined)[][] | null;
  colors: string[];
  width: number;
  height: number;
  log: boolean;
  wall: boolean;
  marks: number[];
  compact: boolean;
  axis: string;
  grid: string;
  mark: string;
  bad: string;
  zoom: ((from: number | null, to: number | null) => void) | undefined;
}

const FONT = "11px system-ui, sans-serif";

export function draw(box: HTMLElement, one: Drawing): uPlot {
  const faint = one.smoothed ? 0.25 : 1;
  const series: uPlot.Series[] = [{}];
  const rows: (number | null | undefined)[][] = [];
  one.raw.forEach((row, index) => {
    series.push(line(one.lines[index]?.label ?? "", one.colors[index] ?? "", faint, row, one.xs.length));
    rows.push(row);
  });
  one.smoothed?.forEach((row, index) => {
    series.push(line(`${one.lines[index]?.label ?? ""} (smoothed)`, one.colors[index] ?? "", 1, row, one.xs.length));
    rows.push(row);
  });
  const axis = { stroke: one.axis, font: FONT, grid: { stroke: one.grid, width: 1 }, ticks: { show: false } };
  const options: uPlot.Options = {
    width: one.width,
    height: one.height,
    series,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    scales: { x: { time: false }, y: { distr: one.log ? 3 : 1 } },
    axes: [
      { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((tick) => (one.wall ? duration(tick) : tick.toLocaleString("en-US"))) },
      { ...axis, size: 54, space: one.compact ? 30 : 36, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : value(tick))) },
    ],
    cursor: { drag: { x: one.zoom !== undefined, y: false, setScale: false }, points: { size: 6 }, y: false },
    hooks: { drawClear: [(plot) => marks(plot, one)], setCursor: [(plot) => tip(plot, one)], setSelect: [(plot) => select(plot, one)] },
  };
  return new uPlot(options, [one.xs, ...rows] as uPlot.AlignedData, box);
}

/** A line; where few points are known they are shown as such, because one alone makes no line. */
function line(label: string, stroke: string, alpha: number, row: (number | null | undefined)[], total: number): uPlot.Series {
  const known = row.filter((one) => one !== null && one !== undefined).length;
  return { label, stroke, alpha, width: 1.5, points: { show: known <= 40 && total <= 400, size: 4, fill: stroke, stroke }, spanGaps: false };
}

/** Checkpoints as lines, and steps whose value is no number as ticks at the top. */
function marks(plot: uPlot, one: Drawing): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  if (!one.wall) {
    ctx.strokeStyle = one.mark;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const step of one.marks) vertical(plot, step, bbox.top, bbox.top + bbox.height);
  }
  ctx.setLineDash([]);
  ctx.strokeStyle = one.bad;
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const row of one.raw) row.forEach((at, index) => at === null && vertical(plot, one.xs[index] ?? 0, bbox.top, bbox.top + 8 * devicePixelRatio));
  ctx.restore();
}

function vertical(plot: uPlot, x: number, from: number, to: number): void {
  const at = Math.round(plot.valToPos(x, "x", true));
  if (at < plot.bbox.left || at > plot.bbox.left + plot.bbox.width) return;
  plot.ctx.beginPath();
  plot.ctx.moveTo(at, from);
  plot.ctx.lineTo(at, to);
  plot.ctx.stroke();
}

function tip(plot: uPlot, one: Drawing): void {
  const box = plot.root.parentElement?.parentElement?.querySelector("output");
  const index = plot.cursor.idx;
  if (!box) return;
  if (index === null || index === undefined) {
    box.textContent = value(one.lines[0]?.values.findLast((at) => at !== null));
    return;
  }
  const x = one.xs[index] ?? 0;
  const said = one.raw.slice(0, 4).map((row, at) => `${one.raw.length > 1 ? `${one.lines[at]?.label} ` : ""}${row[index] === null ? "NaN" : value(row[index])}`);
  box.textContent = `${one.wall ? duration(x) : `step ${x.toLocaleString("en-US")}`}: ${said.join(", ")}`;
}

function select(plot: uPlot, one: Drawing): void {
  if (plot.select.width < 4 || !one.zoom) return;
  const from = plot.posToVal(plot.select.left, "x");
  const to = plot.posToVal(plot.select.left + plot.select.width, "x");
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  if (!one.wall) {
    one.zoom(Math.max(0, Math.floor(from)), Math.ceil(to));
    return;
  }
  // Times are not what the API selects by: the steps at these times are.
  const first = one.lines[0];
  const begin = Date.parse(first?.at?.[0] ?? "");
  const inside = (first?.steps ?? []).filter((_, index) => {
    const at = (Date.parse(first?.at?.[index] ?? "") - begin) / 1000;
    return at >= from && at <= to;
  });
  if (inside.length) one.zoom(inside[0] as number, inside.at(-1) as number);
}
