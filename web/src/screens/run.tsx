/** One job: header with actions, and its tabs. */

import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { canWrite, get, send, type Job } from "../api/client";
import { count, duration, percent, plural, slotTime, usd, value, words } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { actions, ENDED } from "../lib/states.ts";
import { now, route, useLive, useLoad } from "../ui/hooks";
import { Ask, Fact, Left, leftSeconds, progressText, runSeconds, Show, State, When, why } from "../ui/parts";
import { Overview } from "./overview";

type Tab = ComponentType<{ job: Job; reload: () => void }>;

const TABS: Record<string, { name: string; load: () => Promise<Tab> }> = {
  overview: { name: "Overview", load: async () => Overview },
  curves: { name: "Curves", load: async () => (await import("./curves")).Curves },
  logs: { name: "Logs", load: async () => (await import("./logs")).Logs },
  timeline: { name: "Timeline", load: async () => (await import("./timeline")).Timeline },
  ranks: { name: "Ranks", load: async () => (await import("./ranks")).Ranks },
  checkpoints: { name: "Checkpoints", load: async () => (await import("./checkpoints")).Checkpoints },
  why: { name: "Why", load: async () => (await import("./why")).Why },
  record: { name: "Record", load: async () => (await import("./record")).Record },
};

export function Run(): JSX.Element {
  const num = Number(route.value.path[1]);
  const job = useLoad((abort) => get("/api/v1/jobs/{num}", { num }, undefined, abort), [num], 5000);
  useLive(job.reload, num);
  useEffect(() => {
    if (job.data) document.title = `${job.data.label} ${job.data.name} – Phalanx`;
  }, [job.data?.name]);
  return (
    <>
      <p class="crumbs"><a href={href(["jobs"])}>Jobs</a></p>
      <Show of={job}>{(found) => <Page job={found} reload={job.reload} />}</Show>
    </>
  );
}

function Page({ job, reload }: { job: Job; reload: () => void }): JSX.Element {
  const tab = route.value.path[2] ?? "overview";
  return (
    <>
      <header class="run">
        <div>
          <h1><span class="num">{job.label}</span> {job.name}</h1>
          <State of={job.state} />
          <p class="why-line">{why(job)}</p>
        </div>
        {canWrite.value && <Actions job={job} reload={reload} />}
      </header>
      <Facts job={job} />
      <nav class="tabs" aria-label={`Parts of ${job.label}`}>
        {Object.entries(TABS).map(([key, one]) => (
          <a key={key} href={href(["jobs", job.num, key])} aria-current={tab === key ? "page" : undefined}>{one.name}</a>
        ))}
      </nav>
      <TabContent name={tab} job={job} reload={reload} />
    </>
  );
}

function TabContent({ name, job, reload }: { name: string; job: Job; reload: () => void }): JSX.Element {
  const [shown, setShown] = useState<{ name: string; part: Tab } | null>(name === "overview" ? { name, part: Overview } : null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    setFailed("");
    (TABS[name]?.load() ?? Promise.reject(new Error(name))).then((part) => setShown({ name, part }), () => setFailed(name));
  }, [name]);
  if (failed === name) return <p class="empty">This part of the page could not be loaded.</p>;
  if (shown?.name !== name) return <p class="quiet" role="status">Loading…</p>;
  const Shown = shown.part;
  return <Shown job={job} reload={reload} />;
}

/** The share of held slot time in steps that were made for the first time. */
export function goodput(job: Job): number | null {
  const cost = job.cost;
  return cost && cost.held > 0 ? cost.accounts.productive / cost.held : null;
}

/** Money where there are prices, and the time of slots otherwise; both up to now. */
function spent(job: Job): string {
  const amount = job.cost?.usd ?? job.usd;
  return amount === null ? slotTime(job.cost?.held ?? job.slot_seconds) : usd(amount);
}

function Facts({ job }: { job: Job }): JSX.Element {
  const left = leftSeconds(job);
  const { progress } = job;
  return (
    <dl class="facts">
      <Fact name="Step">{progressText(job)}</Fact>
      <Fact name="Speed">{progress.steps_per_s ? `${value(progress.steps_per_s)} steps/s` : "–"}</Fact>
      <Fact name="Time left" hint={left === null ? "The run does not say how many epochs it has" : undefined}><Left job={job} /></Fact>
      <Fact name="Run time">{duration(runSeconds(job))}</Fact>
      <Fact name="Cost">{spent(job)}</Fact>
      <Fact name="Goodput" hint="Held slot time in steps that were made for the first time">{percent(goodput(job))}</Fact>
      <Fact name="Slots">{count(job.num_slots)} on {plural(job.num_nodes, "node")}</Fact>
      <Fact name="Restarts">{count(job.restarts)}</Fact>
      <Fact name="Submitted"><When at={job.submitted_at} /> by {job.owner}</Fact>
    </dl>
  );
}

const NAMES: Record<string, string> = { save: "Save checkpoint", pause: "Pause", stop: "Stop", resume: "Resume", priority: "Priority", clone: "Clone" };

function Actions({ job, reload }: { job: Job; reload: () => void }): JSX.Element {
  const [asked, setAsked] = useState("");
  const close = () => setAsked("");
  const props = { job, close, done: reload };
  return (
    <div class="actions">
      {actions(job.state).map((one) => (
        <button key={one} type="button" class={one === "stop" ? "danger" : undefined} onClick={() => setAsked(one)}>{NAMES[one]}…</button>
      ))}
      {asked === "stop" && <Stop {...props} goal="cancel" />}
      {asked === "pause" && <Stop {...props} goal="pause" />}
      {asked === "resume" && <Resume {...props} />}
      {asked === "save" && <Save {...props} />}
      {asked === "priority" && <Priority {...props} />}
      {asked === "clone" && <Clone {...props} />}
    </div>
  );
}

interface Asked {
  job: Job;
  close: () => void;
  done: () => void;
}

/** What is lost when a job stops now, in one sentence. */
function atRisk(job: Job): string {
  const { step, checkpoint_step: saved } = job.progress;
  if (!job.started_at || ENDED.has(job.state)) return "It holds no slots, so nothing is lost.";
  if (step === null) return "It has reported no step yet.";
  if (saved === null) return `It is at step ${count(step)} and has no checkpoint: unless it saves while it stops, all ${slotTime(job.cost?.held)} are lost.`;
  const steps = Math.max(0, step - saved);
  const seconds = job.progress.steps_per_s ? steps / job.progress.steps_per_s : null;
  return `The last checkpoint is of step ${count(saved)}: unless it saves while it stops, ${plural(steps, "step")} ${seconds === null ? "" : `(${duration(seconds)} on ${plural(job.num_slots, "slot")}) `}are made again.`;
}

function Stop({ job, close, done, goal }: Asked & { goal: "cancel" | "pause" }): JSX.Element {
  const act = async () => {
    await send("post", "/api/v1/jobs/{num}/stop", { num: job.num }, { goal });
    done();
  };
  const verb = goal === "cancel" ? "Stop" : "Pause";
  return (
    <Ask title={`${verb} ${job.label}?`} verb={`${verb} it`} danger={goal === "cancel"} act={act} close={close}>
      <p>{atRisk(job)}</p>
      <p class="quiet">{goal === "cancel" ? "A stopped job does not go on; it can be cloned." : "A paused job gives its slots back and goes on from its checkpoint when it is resumed."}</p>
    </Ask>
  );
}

function Resume({ job, close, done }: Asked): JSX.Element {
  const act = async () => {
    await send("post", "/api/v1/jobs/{num}/resume", { num: job.num }, {});
    done();
  };
  const from = job.progress.checkpoint_step;
  return (
    <Ask title={`Resume ${job.label}?`} verb="Resume it" act={act} close={close}>
      <p>It goes back into the queue for {plural(job.num_slots, "slot")}{from === null ? "." : `, and goes on at step ${count(from)}.`}</p>
    </Ask>
  );
}

function Save({ job, close, done }: Asked): JSX.Element {
  const act = async () => {
    await send("post", "/api/v1/jobs/{num}/saves", { num: job.num });
    done();
  };
  return (
    <Ask title={`Save a checkpoint of ${job.label}?`} verb="Save" act={act} close={close}>
      <p>The ranks pause after the present step until the checkpoint is written.</p>
    </Ask>
  );
}

function Priority({ job, close, done }: Asked): JSX.Element {
  const [typed, setTyped] = useState(String(job.priority));
  const act = async () => {
    await send("patch", "/api/v1/jobs/{num}", { num: job.num }, { priority: Number(typed) });
    done();
  };
  return (
    <Ask title={`Priority of ${job.label}`} verb="Change it" act={act} close={close}>
      <label>Priority <input type="number" min="0" max="100" required value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></label>
      <p class="quiet">At {job.priority} now. A higher one starts earlier, and may preempt jobs with a lower one.</p>
    </Ask>
  );
}

function Clone({ job, close }: Asked): JSX.Element {
  const [from, setFrom] = useState("");
  const act = async () => {
    const body = { set: {}, checkpoint: from || null, secrets: {}, owner: "", require_same: false };
    const made = (await send("post", "/api/v1/jobs/{num}/clone", { num: job.num }, body)) as { job: Job | null };
    if (made.job) location.hash = href(["jobs", made.job.num]);
  };
  return (
    <Ask title={`Submit ${job.label} again?`} verb="Submit a clone" act={act} close={close}>
      <p>The new job has the spec, the code and the environment of {job.label}, which took {duration(runSeconds(job))} and {spent(job)} until {new Date(now.value).toLocaleTimeString("en-GB")}.</p>
      <label>
        Begin{" "}
        <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
          <option value="">at the first step</option>
          <option value="latest" disabled={job.progress.checkpoint_step === null}>from its latest checkpoint</option>
          <option value="best" disabled={job.progress.checkpoint_step === null}>from its best checkpoint</option>
        </select>
      </label>
      <p class="quiet">{words(job.kind)} jobs keep their code for as long as it is stored.</p>
    </Ask>
  );
}
