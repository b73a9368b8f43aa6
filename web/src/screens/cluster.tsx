/** Pools, nodes and slots: what is held by which job, what is free, reserved, closed or unhealthy. */

import type { JSX } from "preact";
import { get, type Schemas } from "../api/client";
import { count, plural, size, usd } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { hue } from "../lib/series.ts";
import { useLive, useLoad } from "../ui/hooks";
import { Bar, Empty, Fact, Show, State, Table } from "../ui/parts";

type Node = Schemas["NodeView"];

export function Cluster(): JSX.Element {
  const found = useLoad(async (abort) => {
    const [pools, nodes] = await Promise.all([get("/api/v1/pools", {}, undefined, abort), get("/api/v1/nodes", {}, undefined, abort)]);
    return { pools, nodes };
  }, [], 5000);
  useLive(found.reload, null);
  return (
    <>
      <div class="title"><h1>Cluster</h1></div>
      <Show of={found}>
        {({ pools, nodes }) => {
          if (!pools.length) return <Empty title="There is no pool">Apply one with <code>phalanx pools apply pools.yaml</code>.</Empty>;
          return pools.map((pool) => <Pool key={pool.name} pool={pool} nodes={nodes.filter((one) => one.pool === pool.name)} />);
        }}
      </Show>
    </>
  );
}

function Pool({ pool, nodes }: { pool: Schemas["PoolView"]; nodes: Node[] }): JSX.Element {
  const held = pool.num_slots - pool.num_free - pool.num_closed;
  return (
    <section aria-label={`Pool ${pool.name}`}>
      <h2>{pool.name}</h2>
      <dl class="facts">
        <Fact name="Slots held">{count(held)} of {count(pool.num_slots)} <Bar share={pool.num_slots ? held / pool.num_slots : 0} label={`${held} of ${pool.num_slots} slots held`} /></Fact>
        <Fact name="Free">{count(pool.num_free)}</Fact>
        <Fact name="Closed">{count(pool.num_closed)}</Fact>
        <Fact name="Nodes">{count(pool.num_nodes)}</Fact>
        <Fact name="Jobs that wait">{count(pool.num_waiting)}</Fact>
        <Fact name="Executor">{pool.executor}</Fact>
        {pool.price !== null && <Fact name="Price">{usd(pool.price)} per slot-hour</Fact>}
      </dl>
      <Slots nodes={nodes} />
      <Table
        caption={`Nodes of ${pool.name}`}
        rows={nodes.slice(0, 200)}
        rowKey={(one) => one.id}
        columns={[
          { name: "Node", cell: (one) => one.id },
          { name: "State", cell: (one) => <State of={one.state} /> },
          { name: "Slots free", number: true, cell: (one) => `${one.num_free} of ${one.num_slots}` },
          { name: "Type", cell: (one) => one.slot_type || "–" },
          { name: "Memory", number: true, cell: (one) => (one.memory_bytes ? size(one.memory_bytes) : "–") },
          { name: "Jobs", cell: (one) => one.jobs.map((num) => <a key={num} href={href(["jobs", num])}>j-{num} </a>) },
          { name: "Remarks", wide: true, cell: (one) => one.reason || "–" },
        ]}
      />
    </section>
  );
}

/** One square for each slot; the colour is its job's, and the title says which. */
function Slots({ nodes }: { nodes: Node[] }): JSX.Element {
  if (nodes.length > 200) return <p class="quiet">{plural(nodes.length, "node")}: the table shows the first 200.</p>;
  return (
    <ul class="nodes">
      {nodes.map((node) => (
        <li key={node.id}>
          <span>{node.id}</span>
          <svg width={node.num_slots * 18} height="16" role="img" aria-label={`${node.id}: ${node.num_free} of ${node.num_slots} slots free`}>
            {squares(node).map((one, index) => <rect key={index} class={one.kind} data-hue={one.job ? hue(`j-${one.job}`) : undefined} x={index * 18 + 1} y="1" width="14" height="14" rx="2"><title>{one.title}</title></rect>)}
          </svg>
        </li>
      ))}
    </ul>
  );
}

function squares(node: Node): { kind: string; job: number | null; title: string }[] {
  if (node.devices.length) {
    return node.devices.map((one) => ({ kind: `slot ${one.state}`, job: one.jobs[0] ?? null, title: `slot ${one.slot}: ${one.state}${one.jobs.length ? ` by ${one.jobs.map((num) => `j-${num}`).join(", ")}` : ""}${one.reason ? `, ${one.reason}` : ""}` }));
  }
  const held = node.num_slots - node.num_free - node.num_closed_slots;
  return Array.from({ length: node.num_slots }, (_, index) => {
    const kind = index < held ? "held" : index < held + node.num_closed_slots ? "closed" : "free";
    const job = kind === "held" ? (node.jobs[index % Math.max(1, node.jobs.length)] ?? null) : null;
    return { kind: `slot ${kind}`, job: node.jobs.length === 1 ? job : null, title: `${kind}${kind === "held" ? ` by ${node.jobs.map((num) => `j-${num}`).join(", ")}` : ""}` };
  });
}
