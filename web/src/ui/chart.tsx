/** One panel with the curves of a metric: uPlot, marks, a sentence about what is shown, and a table twin. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { get, type Job, type Schemas } from "../api/client";
import { count, duration, value } from "../lib/format.ts";
import { broken, hue, onOneGrid, shownPoints, smooth } from "../lib/series.ts";
import { useLive, useLoad } from "./hooks";
import { Problem } from "./parts";

export interface Line {
  label: string;
  steps: number[];
  values: (number | null)[];
  at?: string[];
  count: number;
  downsampled: boolean;
}

export interface View {
  from: number | null;
  to: number | null;
  ranks: number[];
  smoothing: number;
  log: boolean;
  wall: boolean;
}

const PLAIN: View = { from: null, to: null, ranks: [0], smoothing: 0, log: false, wall: false };

/** The curves of one metric of one job; loaded while the panel is in sight, and again after a zoom. */
export function MetricPanel({ job, name, height = 220, compact = false, view = PLAIN, zoom, marks = [] }: { job: Job; name: string; height?: number; compact?: boolean; view?: View; zoom?: (from: number | null, to: number | null) => void; marks?: number[] }): JSX.Element {
  const box = useRef<HTMLElement>(null);
  const seen = useSeen(box);
  const query = { name: [name], rank: view.ranks, max_points: compact ? 400 : 1000, ...(view.from === null ? {} : { after_step: view.from - 1 }), ...(view.to === null ? {} : { to_step: view.to }) };
  const found = useLoad(async (abort) => (seen ? get("/api/v1/jobs/{num}/metrics", { num: job.num }, query, abort) : null), [job.num, query, seen]);
  useLivePoints(job, seen && view.to === null, found.reload);
  const series = found.data?.series ?? [];
  const lines = series.map((one): Line => ({ ...one, label: view.ranks.length > 1 ? `rank ${one.rank}` : name }));
  return (
    <figure class="panel" ref={box}>
      <figcaption>
        <b>{name}</b> <Last series={series} />
      </figcaption>
      {found.error && <Problem error={found.error} retry={found.reload} />}
      {lines.length > 0 ? <Plot lines={lines} title={name} height={height} view={view} zoom={zoom} marks={marks} compact={compact} /> : <Blank height={height} loading={found.loading} />}
      <Said lines={lines} compact={compact} zoomed={view.from !== null} />
    </figure>
  );
}

function Blank({ height, loading }: { height: number; loading: boolean }): JSX.Element {
  return <svg class="blank" height={height} role="img" aria-label={loading ? "loading" : "no points"}><text x="50%" y="50%" text-anchor="middle">{loading ? "loading…" : "no points here"}</text></svg>;
}

function Last({ series }: { series: Schemas["MetricSeries"][] }): JSX.Element {
  const last = series[0]?.values.findLast((one) => one !== null);
  return <output>{value(last)}</output>;
}

/** Points of a live run arrive without an event: ask again every three seconds while the panel is in sight. */
function useLivePoints(job: Job, seen: boolean, reload: () => void): void {
  const latest = useRef(reload);
  latest.current = reload;
  useEffect(() => {
    if (!seen || job.ended_at !== null || job.started_at === null) return undefined;
    const timer = setInterval(() => document.hidden || latest.current(), 3000);
    return () => clearInterval(timer);
  }, [seen, job.ended_at, job.started_at]);
  useLive(() => seen && latest.current(), job.num);
}

function useSeen(box: { current: HTMLElement | null }): boolean {
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => setSeen(found.some((one) => one.isIntersecting)), { rootMargin: "200px" });
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return seen;
}

/** How many points stand for how many, values that are no numbers, and all of it as a table. */
export function Said({ lines, compact, zoomed }: { lines: Line[]; compact: boolean; zoomed: boolean }): JSX.Element | null {
  const [open, setOpen] = useState(false);
  if (!lines.length) return null;
  const shown = lines.reduce((sum, one) => sum + one.steps.length, 0);
  const all = lines.reduce((sum, one) => sum + one.count, 0);
  const wrong = lines.flatMap(broken);
  return (
    <div class="said-of">
      <span class={all > shown ? "fewer" : undefined} title={all > shown ? "Each interval shows its lowest and highest value; zoom in for more" : undefined}>{shownPoints(shown, all)}</span>
      {wrong.length > 0 && <span class="wrong">NaN or infinite at {wrong.length === 1 ? "step" : `${count(wrong.length)} steps:`} {wrong.slice(0, 3).map(count).join(", ")}{wrong.length > 3 ? "…" : ""}</span>}
      {!compact && !zoomed && <span class="quiet">drag to zoom</span>}
      {!compact && <button type="button" class="link" aria-expanded={open} onClick={() => setOpen(!open)}>Table</button>}
      {open && <Twin lines={lines} />}
    </div>
  );
}

function Twin({ lines }: { lines: Line[] }): JSX.Element {
  const { steps, rows } = onOneGrid(lines);
  const shown = steps.slice(-200);
  const first = steps.length - shown.length;
  return (
    <div class="scroll twin" tabIndex={0} role="region" aria-label="Values">
      <table>
        <caption>{first > 0 ? `The last 200 of ${count(steps.length)} rows` : `${count(steps.length)} rows`}</caption>
        <thead><tr><th scope="col" class="n">step</th>{lines.map((one) => <th scope="col" class="n" key={one.label}>{one.label}</th>)}</tr></thead>
        <tbody>
          {shown.map((step, index) => (
            <tr key={step}><td class="n">{count(step)}</td>{rows.map((row, at) => <td class="n" key={lines[at]?.label}>{row[first + index] === undefined ? "" : row[first + index] === null ? "NaN" : value(row[first + index])}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function color(index: number): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--line-${index % 8}`).trim() || "#36c";
}

function text(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function Plot({ lines, title, height, view = PLAIN, zoom, marks = [], compact = false }: { lines: Line[]; title: string; height: number; view?: View | undefined; zoom?: ((from: number | null, to: number | null) => void) | undefined; marks?: number[]; compact?: boolean }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(zoom);
  latest.current = zoom;
  const wide = useWidth(box);
  const dark = useDark();
  useEffect(() => {
    if (!box.current || !wide) return undefined;
    let plot: uPlot | null = null;
    let gone = false;
    void import("./plot").then(({ draw }) => {
      if (gone || !box.current) return;
      plot = draw(box.current, { ...prepare(lines, view), lines, width: wide, height, log: view.log, wall: view.wall, marks, compact, axis: text("--quiet"), grid: text("--line"), mark: text("--mark"), bad: text("--bad"), zoom: latest.current });
    });
    return () => {
      gone = true;
      plot?.destroy();
    };
  }, [lines.map((one) => `${one.label}:${one.steps.length}:${one.steps.at(-1)}:${one.steps[0]}:${one.count}`).join(), wide, height, view.log, view.smoothing, view.wall, marks.length, dark]);
  const last = lines.map((one) => `${one.label} ${value(one.values.findLast((at) => at !== null))}`).slice(0, 5).join(", ");
  return <div class={zoom ? "plot zooms" : "plot"} ref={box} role="img" aria-label={`${title}: last values ${last}; the table has the numbers`} data-height={compact ? "small" : "large"} />;
}

function prepare(lines: Line[], view: View): { xs: number[]; raw: (number | null | undefined)[][]; smoothed: (number | null | undefined)[][] | null; colors: string[] } {
  const placed = lines.map((one) => {
    const begin = Date.parse(lines[0]?.at?.[0] ?? "");
    const steps = view.wall && one.at ? one.at.map((at) => (Date.parse(at) - begin) / 1000) : one.steps;
    return { steps, values: one.values };
  });
  const grid = onOneGrid(placed);
  const smoothed = view.smoothing > 0 ? onOneGrid(placed.map((one) => ({ steps: one.steps, values: smooth(one.values, view.smoothing) }))).rows : null;
  return { xs: grid.steps, raw: grid.rows, smoothed, colors: lines.map((one) => color(hue(one.label))) };
}

function useWidth(box: { current: HTMLElement | null }): number {
  const [wide, setWide] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([one]) => one && setWide(Math.floor(one.contentRect.width)));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return wide;
}

function useDark(): string {
  const [dark, setDark] = useState("");
  useEffect(() => {
    const look = () => setDark(text("--ground"));
    const system = matchMedia("(prefers-color-scheme: dark)");
    const watch = new MutationObserver(look);
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    system.addEventListener("change", look);
    look();
    return () => {
      watch.disconnect();
      system.removeEventListener("change", look);
    };
  }, []);
  return dark;
}

export function wallText(seconds: number): string {
  return duration(seconds);
}
