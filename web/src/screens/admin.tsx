/** Alerts, the control plane itself, and who the caller is. */

import type { JSX } from "preact";
import { canWrite, get } from "../api/client";
import { count, value, words } from "../lib/format.ts";
import { useLoad } from "../ui/hooks";
import { Empty, Fact, Show, State, Table, When } from "../ui/parts";

export function Admin(): JSX.Element {
  const alerts = useLoad((abort) => get("/api/v1/alerts", {}, undefined, abort), [], 10_000);
  const info = useLoad((abort) => get("/api/v1/info", {}, undefined, abort), [], 10_000);
  const me = useLoad((abort) => get("/api/v1/whoami", {}, undefined, abort), []);
  const projects = useLoad((abort) => get("/api/v1/projects", {}, undefined, abort), [], 10_000);
  return (
    <>
      <div class="title"><h1>Admin</h1></div>
      <h2>Alerts</h2>
      <Show of={alerts}>
        {(found) =>
          found.alerts.length === 0 ? (
            <Empty title="No alert fires" />
          ) : (
            <Table
              caption="Alerts"
              rows={found.alerts}
              rowKey={(one) => one.fingerprint}
              columns={[
                { name: "Phase", cell: (one) => <State of={one.phase} /> },
                { name: "Alert", cell: (one) => one.alert },
                { name: "Severity", cell: (one) => one.severity },
                { name: "What", wide: true, cell: (one) => one.summary },
                { name: "Value", number: true, cell: (one) => value(one.value) },
                { name: "Since", number: true, cell: (one) => <When at={one.since} /> },
              ]}
            />
          )
        }
      </Show>
      <h2>Control plane</h2>
      <Show of={info}>
        {(one) => (
          <>
            <dl class="facts">
              <Fact name="Version">{one.version}</Fact>
              <Fact name="Database id">{one.database}</Fact>
              <Fact name="Jobs that live">{count(one.num_live_jobs)}</Fact>
              <Fact name="Started"><When at={one.started_at} /></Fact>
              {one.trouble && <Fact name="Trouble">{one.trouble}</Fact>}
            </dl>
            {one.replicas.length > 0 && <Table caption="Replicas" rows={one.replicas} rowKey={(at) => at.name} columns={[{ name: "Replica", cell: (at) => at.name }, { name: "Role", cell: (at) => at.role }, { name: "Version", cell: (at) => at.version }, { name: "Address", cell: (at) => at.url }, { name: "Started", number: true, cell: (at) => <When at={at.started_at} /> }]} />}
          </>
        )}
      </Show>
      <h2>Projects</h2>
      <Show of={projects}>
        {(found) => (
          <Table
            caption="Projects"
            rows={found}
            rowKey={(one) => one.name}
            columns={[
              { name: "Project", cell: (one) => one.name },
              { name: "Slots held", number: true, cell: (one) => count(one.held_slots) },
              { name: "Guaranteed", number: true, cell: (one) => count(one.guaranteed_slots) },
              { name: "At most", number: true, cell: (one) => count(one.max_slots) },
              { name: "Running", number: true, cell: (one) => count(one.num_running) },
              { name: "Waiting", number: true, cell: (one) => count(one.num_waiting) },
            ]}
          />
        )}
      </Show>
      <h2>You</h2>
      <Show of={me}>
        {(one) => (
          <dl class="list">
            <Fact name="Account">{one.id}</Fact>
            <Fact name="This session">{canWrite.value ? "reads, submits and changes jobs" : "reads"}</Fact>
            <Fact name="Roles">{Object.entries(one.roles).map(([project, role]) => (project ? `${role} in ${project}` : `${role} of the platform`)).join(", ") || "all rights on this home"}</Fact>
            <Fact name="May">{one.permissions.map((at) => words(at)).join(", ")}</Fact>
          </dl>
        )}
      </Show>
    </>
  );
}
