/** Checkpoints of a run: which is best, which are pinned, copied or quarantined; pin one, or begin a job from it. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { canWrite, get, send, type Job, type Schemas } from "../api/client";
import { count, duration, plural, size, value } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { useLoad } from "../ui/hooks";
import { Ask, Empty, Problem, Show, State, Table, When } from "../ui/parts";

type Checkpoint = Schemas["CheckpointView"];

export function Checkpoints({ job }: { job: Job }): JSX.Element {
  const found = useLoad((abort) => get("/api/v1/jobs/{num}/checkpoints", { num: job.num }, undefined, abort), [job.num, job.progress.checkpoint_step], job.ended_at ? 0 : 10_000);
  const [fork, setFork] = useState<Checkpoint | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const pin = async (one: Checkpoint) => {
    try {
      await send("post", one.is_pinned ? "/api/v1/jobs/{num}/checkpoints/unpin" : "/api/v1/jobs/{num}/checkpoints/pin", { num: job.num }, { checkpoint: one.path });
      setError(null);
      found.reload();
    } catch (failed) {
      setError(failed as Error);
    }
  };
  return (
    <>
      {error && <Problem error={error} />}
      <Show of={found}>
        {(all) => {
          if (!all.length) return <Empty title="No checkpoint yet">The library saves one every so often, and when the job is stopped.</Empty>;
          const bytes = all.reduce((sum, one) => sum + one.size_bytes, 0);
          return (
            <>
              <p class="summary">{plural(all.length, "checkpoint")}, {size(bytes)}</p>
              <Branches all={all} />
              <Table caption="Checkpoints, newest first" rows={[...all].reverse().slice(0, 200)} rowKey={(one) => one.path} columns={columns(pin, setFork)} />
            </>
          );
        }}
      </Show>
      {fork && <Fork job={job} from={fork} close={() => setFork(null)} />}
    </>
  );
}

function columns(pin: (one: Checkpoint) => Promise<void>, fork: (one: Checkpoint) => void) {
  return [
    { name: "Step", number: true, cell: (one: Checkpoint) => count(one.step) },
    { name: "State", cell: (one: Checkpoint) => <State of={one.state} /> },
    { name: "Marks", cell: (one: Checkpoint) => <>{one.is_best && <span class="tag">best</span>} {one.is_pinned && <span class="tag">pinned</span>} {one.near && <span class="tag">near</span>}</> },
    { name: "Metrics", wide: true, cell: (one: Checkpoint) => Object.entries(one.metrics).map(([name, at]) => `${name} ${value(at)}`).join(", ") || "–" },
    { name: "Copy", cell: (one: Checkpoint) => one.copy_state ?? "–" },
    { name: "Size", number: true, cell: (one: Checkpoint) => size(one.size_bytes) },
    { name: "Took", number: true, cell: (one: Checkpoint) => duration(one.took_s) },
    { name: "Saved", number: true, cell: (one: Checkpoint) => <When at={one.created_at} /> },
    { name: "Actions", cell: (one: Checkpoint) => canWrite.value && <span class="inline"><button type="button" class="link" aria-label={`${one.is_pinned ? "Unpin" : "Pin"} step ${one.step}`} onClick={() => void pin(one)}>{one.is_pinned ? "Unpin" : "Pin"}</button> <button type="button" class="link" aria-label={`Fork from step ${one.step}`} disabled={one.state === "quarantined"} onClick={() => fork(one)}>Fork…</button></span> },
  ];
}

/** Checkpoints over steps: one lane for each generation, so that a fall-back shows as a branch. */
function Branches({ all }: { all: Checkpoint[] }): JSX.Element {
  const lanes = [...new Set(all.map((one) => `${one.attempt}.${one.generation}`))];
  const most = Math.max(1, ...all.map((one) => one.step));
  const x = (step: number) => 110 + (step / most) * 1060;
  const y = (one: Checkpoint) => 18 + lanes.indexOf(`${one.attempt}.${one.generation}`) * 26;
  if (lanes.length > 20) return <></>;
  return (
    <figure class="lane">
      <svg viewBox={`0 0 1200 ${lanes.length * 26 + 20}`} role="img" aria-label="Checkpoints by step and generation; the table below lists them">
        {lanes.map((lane, index) => {
          const steps = all.filter((one) => `${one.attempt}.${one.generation}` === lane).map((one) => one.step);
          return (
            <g key={lane}>
              <text x="0" y={22 + index * 26} class="tick">attempt {lane}</text>
              <line class="branch" x1={x(Math.min(...steps))} x2={x(Math.max(...steps))} y1={18 + index * 26} y2={18 + index * 26} />
            </g>
          );
        })}
        {all.map((one) => (
          <circle key={one.path} class={`point ${one.state} ${one.is_best ? "best" : ""}`} cx={x(one.step)} cy={y(one)} r={one.is_best ? 7 : 5}><title>{`step ${one.step}, ${one.state}`}</title></circle>
        ))}
        <text x="110" y={lanes.length * 26 + 14} class="tick">step 0</text>
        <text x="1170" y={lanes.length * 26 + 14} text-anchor="end" class="tick">{count(most)}</text>
      </svg>
    </figure>
  );
}

function Fork({ job, from, close }: { job: Job; from: Checkpoint; close: () => void }): JSX.Element {
  const act = async () => {
    const body = { set: {}, checkpoint: from.path, secrets: {}, owner: "", require_same: false };
    const made = (await send("post", "/api/v1/jobs/{num}/clone", { num: job.num }, body)) as { job: Job | null };
    if (made.job) location.hash = href(["jobs", made.job.num]);
  };
  return (
    <Ask title={`Begin a job at step ${count(from.step)} of ${job.label}?`} verb="Submit it" act={act} close={close}>
      <p>The new job has the spec, the code and the environment of {job.label}, and asks for {plural(job.num_slots, "slot")}.</p>
    </Ask>
  );
}
