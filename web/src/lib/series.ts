/** Curves: panels by prefix, smoothing, one grid for several series, and marks for values that are no numbers. */

import { INSTRUMENTS } from "./instruments.ts";

export interface Curve {
  steps: number[];
  values: (number | null)[];
}

export interface Panel {
  prefix: string;
  names: string[];
}

/** Of what the platform measures, what is worth a look first. */
const FIRST = ["step_time_seconds", "training_throughput_samples_per_sec", "gpu_utilization_percent", "data_wait_fraction"];

/** The metrics of an overview: what people logged, and the platform's own in places that are left. */
export function pinned(names: readonly string[], most: number, least: number): string[] {
  const logged = names.filter((one) => !isMeasured(one)).slice(0, most);
  return [...logged, ...FIRST.filter((one) => names.includes(one))].slice(0, Math.max(logged.length, least));
}

/** Whether the platform measures a metric itself; what people logged comes before it. */
export function isMeasured(name: string): boolean {
  return INSTRUMENTS.has(name);
}

export function panels(names: readonly string[], wanted: string): Panel[] {
  const found = new Map<string, string[]>();
  const shown = names.filter((one) => one.toLowerCase().includes(wanted.toLowerCase()));
  for (const name of [...shown.filter((one) => !isMeasured(one)), ...shown.filter(isMeasured)]) {
    const at = name.indexOf("/");
    const prefix = isMeasured(name) ? "Measured by the platform" : at > 0 ? name.slice(0, at) : "Logged by the run";
    found.set(prefix, [...(found.get(prefix) ?? []), name]);
  }
  return [...found].map(([prefix, members]) => ({ prefix, names: members }));
}

/** An exponential mean, corrected for its start; values that are no numbers stay out of it. */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return [...values];
  let sum = 0;
  let norm = 0;
  return values.map((one) => {
    if (one === null) return null;
    sum = weight * sum + (1 - weight) * one;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/** All curves over the same sorted steps; `undefined` where a curve has no value there. */
export function onOneGrid(curves: readonly Curve[]): { steps: number[]; rows: (number | null | undefined)[][] } {
  const steps = [...new Set(curves.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const rows = curves.map((one) => {
    const row = new Array<number | null | undefined>(steps.length).fill(undefined);
    one.steps.forEach((step, index) => (row[place.get(step) as number] = one.values[index]));
    return row;
  });
  return { steps, rows };
}

/** The steps at which a value is not a finite number. */
export function broken(curve: Curve): number[] {
  return curve.steps.filter((_, index) => curve.values[index] === null);
}

/** "1,000 of 10,000 points", or how many there are. */
export function shownPoints(shown: number, all: number): string {
  const total = all.toLocaleString("en-US");
  return shown < all ? `${shown.toLocaleString("en-US")} of ${total} points` : `${total} ${all === 1 ? "point" : "points"}`;
}

/** One of eight hues that a name always has. */
export function hue(name: string): number {
  let hash = 0;
  for (const char of name) hash = (hash * 31 + (char.codePointAt(0) ?? 0)) >>> 0;
  return hash % 8;
}
