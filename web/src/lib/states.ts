/** States of jobs: a glyph, a tone and a word, so that no state is told by its colour alone. */

export type Tone = "good" | "bad" | "busy" | "warn" | "idle";

const LOOKS: Record<string, [string, Tone]> = {
  waiting: ["◔", "warn"],
  queued: ["◔", "warn"],
  starting: ["◐", "busy"],
  running: ["●", "busy"],
  recovering: ["↻", "warn"],
  stopping: ["◑", "warn"],
  paused: ["‖", "idle"],
  succeeded: ["✓", "good"],
  completed: ["✓", "good"],
  failed: ["✕", "bad"],
  diverged: ["✕", "bad"],
  cancelled: ["⊘", "idle"],
  stopped: ["⊘", "idle"],
  open: ["✓", "good"],
  ok: ["✓", "good"],
  valid: ["✓", "good"],
  ready: ["✓", "good"],
  up: ["✓", "good"],
  met: ["✓", "good"],
  quarantined: ["✕", "bad"],
  lost: ["✕", "bad"],
  firing: ["▲", "bad"],
  pending: ["△", "warn"],
  resolved: ["✓", "good"],
  draining: ["◑", "warn"],
  drained: ["⊘", "idle"],
};

export function look(state: string): { glyph: string; tone: Tone } {
  const [glyph, tone] = LOOKS[state] ?? ["○", "idle"];
  return { glyph, tone };
}

export const ENDED = new Set(["succeeded", "failed", "cancelled"]);
export const HOLDING = new Set(["starting", "running", "recovering", "stopping"]);

/** What may be done with a job in a state. */
export function actions(state: string): string[] {
  if (ENDED.has(state)) return ["clone"];
  if (state === "paused") return ["resume", "stop", "priority", "clone"];
  if (state === "stopping") return ["clone"];
  return state === "running" ? ["save", "pause", "stop", "priority", "clone"] : ["pause", "stop", "priority", "clone"];
}
