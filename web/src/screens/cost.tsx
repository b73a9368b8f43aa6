/** What was spent, on what, and how the objectives stand. */

import type { JSX } from "preact";
import { get, type Schemas } from "../api/client";
import { count, duration, percent, slotTime, usd, value, words } from "../lib/format.ts";
import { route, setQuery, useLoad } from "../ui/hooks";
import { Bar, Empty, Fact, Shares, Show, State, Table } from "../ui/parts";

const GROUPS = ["project", "user", "job"] as const;
const ACCOUNTS = ["productive", "saving", "starting", "redone", "lost_to_failure", "lost_to_preemption", "idle"] as const;

export function Cost(): JSX.Element {
  const by = GROUPS.find((one) => one === route.value.query.by) ?? "project";
  const report = useLoad((abort) => get("/api/v1/cost", {}, { by }, abort), [by], 30_000);
  const budgets = useLoad((abort) => get("/api/v1/cost/budgets", {}, undefined, abort), [], 30_000);
  const goals = useLoad((abort) => get("/api/v1/objectives", {}, undefined, abort), [], 30_000);
  return (
    <>
      <div class="title"><h1>Cost and objectives</h1></div>
      <Show of={report}>{(found) => <Spent report={found} by={by} />}</Show>
      <h2>Budgets</h2>
      <Show of={budgets}>{(found) => (found.length ? <Budgets of={found} /> : <Empty title="No budget is set">Set one with <code>phalanx cost budget set</code>.</Empty>)}</Show>
      <h2>Objectives</h2>
      <Show of={goals}>{(found) => (found.objectives.length ? <Goals of={found} /> : <Empty title="No objective has jobs yet" />)}</Show>
    </>
  );
}

function Spent({ report, by }: { report: Schemas["CostReport"]; by: string }): JSX.Element {
  const { total } = report;
  const parts = ACCOUNTS.map((one): [string, number] => [words(one), total.accounts[one]]).filter(([, one]) => one > 0);
  return (
    <>
      <dl class="facts">
        <Fact name="Spent">{total.usd === null ? "no prices" : usd(total.usd)}</Fact>
        <Fact name="Held">{slotTime(total.held)}</Fact>
        <Fact name="Goodput">{total.held > 0 ? percent(total.accounts.productive / total.held) : "–"}</Fact>
        <Fact name="Wasted">{slotTime(total.wasted)}</Fact>
        {report.forecast && <Fact name="Forecast">{report.forecast.expected_usd === null ? slotTime(report.forecast.expected_slot_hours * 3600) : usd(report.forecast.expected_usd)}</Fact>}
      </dl>
      {parts.length > 0 && <Shares parts={parts} unit={duration} />}
      <div class="chips" role="group" aria-label="Group by">
        {GROUPS.map((one) => <button key={one} type="button" aria-pressed={by === one} onClick={() => setQuery({ by: one })}>By {one}</button>)}
      </div>
      {report.groups.length === 0 ? (
        <Empty title="Nothing has been spent" />
      ) : (
        <Table
          caption={`Cost by ${by}`}
          rows={report.groups.slice(0, 200)}
          rowKey={(one) => one.key}
          columns={[
            { name: by[0]?.toUpperCase() + by.slice(1), cell: (one) => one.key },
            { name: "Spent", number: true, cell: (one) => usd(one.cost.usd) },
            { name: "Held", number: true, cell: (one) => slotTime(one.cost.held) },
            { name: "Goodput", number: true, cell: (one) => (one.cost.held > 0 ? percent(one.cost.accounts.productive / one.cost.held) : "–") },
            { name: "Redone", number: true, cell: (one) => duration(one.cost.accounts.redone) },
            { name: "Lost to failures", number: true, cell: (one) => duration(one.cost.accounts.lost_to_failure) },
            { name: "Lost to preemption", number: true, cell: (one) => duration(one.cost.accounts.lost_to_preemption) },
          ]}
        />
      )}
    </>
  );
}

function Budgets({ of }: { of: Schemas["BudgetView"][] }): JSX.Element {
  return (
    <Table
      caption="Budgets"
      rows={of}
      rowKey={(one) => `${one.scope} ${one.name}`}
      columns={[
        { name: "Of", cell: (one) => `${one.scope} ${one.label || one.name}` },
        { name: "State", cell: (one) => <State of={one.state} /> },
        { name: "Used", number: true, cell: (one) => <>{one.used_percent} % <Bar share={one.used_percent / 100} label={`${one.used_percent} % used`} /></> },
        { name: "Limit", number: true, cell: (one) => (one.usd === null ? `${value(one.slot_hours)} slot-h` : usd(one.usd)) },
        { name: "Period", cell: (one) => one.period },
      ]}
    />
  );
}

function Goals({ of }: { of: Schemas["ObjectivesView"] }): JSX.Element {
  return (
    <>
      <p class="summary">Over the last {count(of.days)} days</p>
      <Table
        caption="Objectives by class of jobs"
        rows={of.objectives}
        rowKey={(one) => `${one.job_class} ${one.objective}`}
        columns={[
          { name: "Class", cell: (one) => one.job_class },
          { name: "Objective", cell: (one) => words(one.objective) },
          { name: "State", cell: (one) => <State of={one.state} /> },
          { name: "Target", number: true, cell: (one) => percent(one.target) },
          { name: "Reached", number: true, cell: (one) => percent(one.reached) },
          { name: "Error budget left", number: true, cell: (one) => percent(one.budget_left) },
        ]}
      />
    </>
  );
}
