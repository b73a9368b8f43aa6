/** Calls of the public API. A route or a field that changes there fails the type check here. */

import { signal } from "@preact/signals";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Job = Schemas["JobView"];

type Answer<P> = P extends { get: { responses: { 200: { content: { "application/json": infer B } } } } } ? B : never;
type Query<P> = P extends { get: { parameters: { query?: infer Q } } } ? Q : never;
type Method = "post" | "patch" | "put" | "delete";
type Sent<P, M extends Method> = P extends { [K in M]: { requestBody?: { content: { "application/json": infer B } } } } ? B : undefined;
type Given = Record<string, string | number>;

export const API = new URL("../api/v1/", document.baseURI);
const KEY = "phalanx-write-key";
const HEADER = "X-Phalanx-Csrf";

/** Whether this browser has the key of its session, without which it only reads. */
export const canWrite = signal(false);
/** Whether the server runs another version than the one that this page was loaded from. */
export const upgraded = signal(false);

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly hint: string | null) {
    super(message);
  }
}

/** Take the key that a sign-in has put into the fragment, and forget where it stood. */
export function takeKey(): void {
  const [, key] = /^#key=([0-9a-f]{64})$/.exec(location.hash) ?? [];
  if (!key) return;
  localStorage.setItem(KEY, key);
  const wanted = sessionStorage.getItem("wanted") ?? "#/jobs";
  sessionStorage.removeItem("wanted");
  history.replaceState(null, "", wanted);
}

export function signIn(): void {
  sessionStorage.setItem("wanted", location.hash);
  location.assign(new URL("../login", document.baseURI));
}

export async function signOut(): Promise<void> {
  await fetch(new URL("../logout", document.baseURI), { method: "POST", headers: headers(), redirect: "manual" });
  localStorage.removeItem(KEY);
  location.assign(new URL("../login", document.baseURI));
}

function headers(): Record<string, string> {
  const key = localStorage.getItem(KEY);
  return key ? { [HEADER]: key } : {};
}

function address(path: string, given: Given, query: object = {}): URL {
  const filled = path.replace("/api/v1/", "").replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(given[name])));
  const url = new URL(filled, API);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, String(one));
    }
  }
  return url;
}

export async function get<P extends keyof paths>(
  path: P,
  given: Given = {},
  query?: Query<paths[P]>,
  abort?: AbortSignal,
): Promise<Answer<paths[P]>> {
  return answer(await fetch(address(path, given, query ?? {}), { headers: headers(), signal: abort ?? null }));
}

export async function send<P extends keyof paths, M extends Method>(
  method: M,
  path: P,
  given: Given,
  body?: Sent<paths[P], M>,
): Promise<unknown> {
  const sent: RequestInit = { method: method.toUpperCase(), headers: { ...headers(), "Content-Type": "application/json" } };
  if (body !== undefined) sent.body = JSON.stringify(body);
  return answer(await fetch(address(path, given), sent));
}

async function answer<T>(response: Response): Promise<T> {
  const text = await response.text();
  const body: unknown = text ? JSON.parse(text) : null;
  if (response.ok) return body as T;
  const said = (body ?? {}) as { error?: Partial<Schemas["ErrorView"]> } & Partial<Schemas["ErrorView"]>;
  const found = said.error ?? said;
  const problems = (found.problems ?? []).map((one) => `${one.path}: ${one.message}`).join("; ");
  if (response.status === 401 && !canWrite.peek()) signIn();
  throw new ApiError(response.status, found.code ?? "", problems || (found.message ?? `status ${response.status}`), found.hint ?? null);
}
