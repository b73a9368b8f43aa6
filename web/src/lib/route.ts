/** Addresses of the UI: everything that a page shows is in the fragment, such as `#/jobs/12/logs?text=x`. */

export interface Route {
  path: string[];
  query: Record<string, string>;
}

export type Values = Record<string, string | number | boolean | null | undefined>;

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const [path = "", query = ""] = text.split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of a page; values that are empty or false are left out. */
export function href(path: (string | number)[], query: Values = {}): string {
  const kept = Object.entries(query).filter(
    ([, one]) => one !== undefined && one !== null && one !== "" && one !== false,
  );
  const text = new URLSearchParams(kept.map(([name, one]) => [name, String(one)])).toString();
  return `#/${path.map((one) => encodeURIComponent(one)).join("/")}${text ? `?${text}` : ""}`;
}
