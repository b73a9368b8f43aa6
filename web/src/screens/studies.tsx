/** Studies, and the trials of one: best so far, rungs, cost, and what can be done. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { canWrite, get, send, type Schemas } from "../api/client";
import { count, duration, plural, slotTime, usd, value, words } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { route, useLive, useLoad } from "../ui/hooks";
import { Ask, Empty, Fact, Show, State, Table, When } from "../ui/parts";

type Study = Schemas["StudyView"];

export function Studies(): JSX.Element {
  const num = Number(route.value.path[1]);
  return num ? <One num={num} /> : <All />;
}

function All(): JSX.Element {
  const found = useLoad((abort) => get("/api/v1/studies", {}, {}, abort), [], 5000);
  return (
    <>
      <div class="title"><h1>Studies</h1></div>
      <Show of={found}>
        {(page) => {
          if (!page.studies.length) return <Empty title="No study yet">A study searches hyperparameters: <code>phalanx sweep study.yaml</code> submits one.</Empty>;
          return (
            <Table
              caption="Studies, newest first"
              rows={page.studies}
              rowKey={(one) => one.num}
              columns={[
                { name: "State", cell: (one) => <State of={one.state} /> },
                { name: "Study", cell: (one) => <a href={href(["studies", one.num])}><span class="num">{one.label}</span> {one.name}</a> },
                { name: "Method", cell: (one) => one.method },
                { name: "Goal", cell: (one) => `${one.objective.goal} ${one.objective.metric}` },
                { name: "Best", number: true, cell: (one) => value(one.best?.value) },
                { name: "Trials", number: true, cell: (one) => `${count(total(one))} of ${count(one.max_trials)}` },
                { name: "Cost", number: true, cell: (one) => spent(one) },
                { name: "Submitted", number: true, cell: (one) => <When at={one.submitted_at} /> },
              ]}
            />
          );
        }}
      </Show>
    </>
  );
}

function total(one: Study): number {
  return Object.values(one.trials).reduce((sum, number) => sum + number, 0);
}

function spent(one: Study): string {
  return one.cost.usd === null ? slotTime(one.cost.slot_hours * 3600) : usd(one.cost.usd);
}

function One({ num }: { num: number }): JSX.Element {
  const study = useLoad((abort) => get("/api/v1/studies/{num}", { num }, undefined, abort), [num], 5000);
  const trials = useLoad((abort) => get("/api/v1/studies/{num}/trials", { num }, {}, abort), [num], 5000);
  useLive(trials.reload, null);
  return (
    <>
      <p class="crumbs"><a href={href(["studies"])}>Studies</a></p>
      <Show of={study}>{(one) => <Head study={one} reload={study.reload} />}</Show>
      <Show of={trials}>{(page) => (page.trials.length ? <Trials trials={page.trials} best={study.data?.best?.number} goal={study.data?.objective.goal ?? "minimize"} /> : <Empty title="No trial yet" />)}</Show>
    </>
  );
}

function Head({ study, reload }: { study: Study; reload: () => void }): JSX.Element {
  const [stopping, setStopping] = useState(false);
  const act = async () => {
    await send("post", "/api/v1/studies/{num}/stop", { num: study.num });
    reload();
  };
  return (
    <>
      <header class="run">
        <div>
          <h1><span class="num">{study.label}</span> {study.name}</h1>
          <State of={study.state} />
          <p class="why-line">{study.reason.message || words(study.reason.code)}</p>
        </div>
        {canWrite.value && !study.ended_at && <div class="actions"><button type="button" class="danger" onClick={() => setStopping(true)}>Stop…</button></div>}
      </header>
      <dl class="facts">
        <Fact name={`Best ${study.objective.metric}`}>{value(study.best?.value)}</Fact>
        <Fact name="Trials">{count(total(study))} of {count(study.max_trials)}</Fact>
        <Fact name="At once">{count(study.parallel)}</Fact>
        <Fact name="Cost">{spent(study)}</Fact>
        <Fact name="Method">{study.method}</Fact>
        {study.eta_at && <Fact name="Ends"><When at={study.eta_at} /></Fact>}
      </dl>
      {stopping && (
        <Ask title={`Stop ${study.label}?`} verb="Stop it" danger act={act} close={() => setStopping(false)}>
          <p>No trial begins any more, and running ones are stopped. {spent(study)} went into {plural(total(study), "trial")} so far; the best one is kept.</p>
        </Ask>
      )}
    </>
  );
}

function Trials({ trials, best, goal }: { trials: Schemas["TrialView"][]; best: number | undefined; goal: string }): JSX.Element {
  const names = [...new Set(trials.flatMap((one) => Object.keys(one.params)))].slice(0, 8);
  const sign = goal === "maximize" ? -1 : 1;
  const sorted = [...trials].sort((a, b) => sign * ((a.value ?? sign * Infinity) - (b.value ?? sign * Infinity)) || a.number - b.number);
  return (
    <Table
      caption="Trials, best first"
      rows={sorted.slice(0, 200)}
      rowKey={(one) => one.number}
      columns={[
        { name: "Trial", cell: (one) => (one.job ? <a href={href(["jobs", one.job])}>{one.label}</a> : one.label) },
        { name: "State", cell: (one) => <><State of={one.status} /> {one.number === best && <span class="tag">best</span>}</> },
        { name: "Value", number: true, cell: (one) => value(one.value) },
        { name: "Rung", number: true, cell: (one) => count(one.rung) },
        ...names.map((name) => ({ name, number: true, cell: (one: Schemas["TrialView"]) => { const at = one.params[name]; return typeof at === "number" ? value(at) : String(at ?? "–"); } })),
        { name: "Slot time", number: true, cell: (one) => duration(one.slot_s) },
      ]}
    />
  );
}
