/** The filter bar of the job list: `state:running project:vision label:team=x metric:val_acc>0.9 resnet`. */

export interface Filter {
  query: Record<string, string | number | string[]>;
  problems: string[];
}

const PLAIN = new Set(["project", "owner", "name", "framework", "pool", "slot_type", "image", "entry_point", "algorithm", "reason", "cause", "study", "array", "data", "sort", "archived"]);
const RANGES: Record<string, [string, string]> = {
  priority: ["min_priority", "max_priority"],
  slots: ["min_slots", "max_slots"],
  nodes: ["min_nodes", "max_nodes"],
  restarts: ["min_restarts", "max_restarts"],
  duration: ["min_duration_s", "max_duration_s"],
  queue: ["min_queue_s", "max_queue_s"],
  usd: ["min_usd", "max_usd"],
};
export const STATES = ["waiting", "queued", "starting", "running", "recovering", "stopping", "paused", "succeeded", "failed", "cancelled"];
const GROUPS: Record<string, string[]> = {
  active: ["starting", "running", "recovering", "stopping"],
  pending: ["waiting", "queued"],
  ended: ["succeeded", "failed", "cancelled"],
};

export function parseFilter(text: string): Filter {
  const query: Filter["query"] = {};
  const problems: string[] = [];
  const free: string[] = [];
  for (const word of text.match(/(?:[^\s"]|"[^"]*")+/g) ?? []) {
    const at = word.search(/[:<>]/);
    if (at < 1) {
      free.push(word.replaceAll('"', ""));
      continue;
    }
    const key = word.slice(0, at);
    const said = word.slice(word[at] === ":" ? at + 1 : at).replaceAll('"', "");
    const problem = take(query, key, said);
    if (problem) problems.push(problem);
  }
  if (free.length) query.name = free.join(" ");
  return { query, problems };
}

function take(query: Filter["query"], key: string, said: string): string | null {
  if (!said) return `${key}: needs a value`;
  if (key === "state") return states(query, said);
  if (key === "label") {
    query.label = [...((query.label as string[] | undefined) ?? []), said];
    return said.includes("=") ? null : "label: needs name=value, such as label:team=vision";
  }
  if (key === "metric") return metric(query, said);
  const range = RANGES[key];
  if (range) return bounds(query, key, range, said);
  if (!PLAIN.has(key)) return `${key}: is no filter; try state, project, owner, label, metric or pool`;
  query[key] = said;
  return null;
}

function states(query: Filter["query"], said: string): string | null {
  const found = said.split(",").flatMap((one) => GROUPS[one] ?? [one]);
  const wrong = found.filter((one) => !STATES.includes(one));
  if (wrong.length) return `state:${wrong[0]} is no state; states are ${STATES.join(", ")}, active, pending, ended`;
  query.state = [...((query.state as string[] | undefined) ?? []), ...found];
  return null;
}

function metric(query: Filter["query"], said: string): string | null {
  const [, name = "", sign = "", number = ""] = /^([^<>]+)([<>])?=?(.*)$/.exec(said) ?? [];
  if (!name) return "metric: needs a name, such as metric:val_acc>0.9";
  query.metric = name;
  if (!sign) return null;
  if (number === "" || !Number.isFinite(Number(number))) return `metric:${name}${sign} needs a number`;
  query[sign === ">" ? "min_metric_value" : "max_metric_value"] = Number(number);
  return null;
}

function bounds(query: Filter["query"], key: string, names: [string, string], said: string): string | null {
  const [, sign = "", number = ""] = /^([<>]?)=?(.+)$/.exec(said) ?? [];
  if (!Number.isFinite(Number(number))) return `${key}:${said} needs a number, such as ${key}>8`;
  if (sign !== "<") query[names[0]] = Number(number);
  if (sign !== ">") query[names[1]] = Number(number);
  return null;
}
