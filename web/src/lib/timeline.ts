/** What a job did over time, from its events: blocks of one state, and what happened at their borders. */

export interface Happening {
  at: string;
  kind: string;
  state: string;
  attempt: number | null;
  generation: number | null;
  message: string;
}

export interface Block {
  state: string;
  from: number;
  to: number;
  attempt: number | null;
  generation: number | null;
  cause: string;
}

/** One block for each stretch of time in a state and a generation; the last one of a live job goes on to `now`. */
export function blocks(events: readonly Happening[], ended: boolean, now: number): Block[] {
  const found: Block[] = [];
  for (const one of events) {
    const at = Date.parse(one.at);
    const last = found.at(-1);
    if (last && last.state === one.state && last.generation === one.generation && last.attempt === one.attempt) continue;
    if (last) last.to = at;
    found.push({ state: one.state, from: at, to: at, attempt: one.attempt, generation: one.generation, cause: one.message || one.kind.replaceAll("_", " ") });
  }
  const last = found.at(-1);
  if (last && !ended) last.to = Math.max(last.from, now);
  return found;
}

/** Seconds in each state, longest first. */
export function totals(found: readonly Block[]): [string, number][] {
  const sums = new Map<string, number>();
  for (const one of found) sums.set(one.state, (sums.get(one.state) ?? 0) + (one.to - one.from) / 1000);
  return [...sums].filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]);
}
