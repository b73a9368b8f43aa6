/** Step times of many ranks as ratios to the median of each interval of steps. */

import type { Curve } from "./series.ts";

export interface Heat {
  ranks: { rank: number; median: number; ratio: number }[];
  cells: (number | null)[][];
  bins: number;
  from: number;
  to: number;
}

const BINS = 400;

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  const high = sorted[half] ?? Number.NaN;
  return sorted.length % 2 ? high : ((sorted[half - 1] ?? high) + high) / 2;
}

export function heat(series: readonly (Curve & { rank: number })[]): Heat {
  const known = series.filter((one) => one.steps.length).sort((a, b) => a.rank - b.rank);
  const from = Math.min(...known.map((one) => one.steps[0] as number));
  const to = Math.max(...known.map((one) => one.steps.at(-1) as number));
  // As many intervals as the shortest curve has points, so that none is empty without a reason.
  const most = Math.min(BINS, ...known.map((one) => one.steps.length));
  const bins = Math.max(1, Math.min(BINS, most, to - from + 1 || 1));
  const means = known.map((one) => binned(one, from, to, bins));
  const middles = Array.from({ length: bins }, (_, bin) => median(means.flatMap((row) => row[bin] ?? [])));
  const cells = means.map((row) => row.map((one, bin) => (one === null || !middles[bin] ? null : one / (middles[bin] as number))));
  const ranks = known.map((one, index) => ({
    rank: one.rank,
    median: median(one.values.filter((at) => at !== null)),
    ratio: median((cells[index] ?? []).filter((at) => at !== null)) || 0,
  }));
  return { ranks, cells, bins, from: known.length ? from : 0, to: known.length ? to : 0 };
}

function binned(one: Curve, from: number, to: number, bins: number): (number | null)[] {
  const sums = new Array<number>(bins).fill(0);
  const counts = new Array<number>(bins).fill(0);
  one.steps.forEach((step, index) => {
    const value = one.values[index];
    if (value === null || value === undefined) return;
    const bin = Math.min(bins - 1, Math.floor(((step - from) / (to - from + 1)) * bins));
    sums[bin] = (sums[bin] as number) + value;
    counts[bin] = (counts[bin] as number) + 1;
  });
  return sums.map((sum, bin) => (counts[bin] ? sum / (counts[bin] as number) : null));
}
