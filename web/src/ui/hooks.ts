/** The address of the page, the time, and values that are loaded and loaded again. */

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { follow } from "../api/live";
import { href, parseRoute, type Values } from "../lib/route.ts";

export const route = signal(parseRoute(location.hash));
addEventListener("hashchange", () => (route.value = parseRoute(location.hash)));

/** The server's time in milliseconds; ticks once a second while the page is seen. */
export const now = signal(Date.now());
let ahead = 0;
setInterval(() => document.hidden || (now.value = Date.now() + ahead), 1000);

export function setServerTime(at: string): void {
  ahead = Date.parse(at) - Date.now();
}

/** Change the query of the address, which is where the state of a page is; without a new entry of the history. */
export function setQuery(changes: Values): void {
  const query: Values = { ...route.peek().query, ...changes };
  history.replaceState(null, "", href(route.peek().path, query));
  route.value = parseRoute(location.hash);
}

export interface Loaded<T> {
  data: T | null;
  error: Error | null;
  loading: boolean;
  reload: () => void;
}

/** Load when `deps` change and every `everyMs`; the data before stays until the new ones are there. */
export function useLoad<T>(load: (abort: AbortSignal) => Promise<T>, deps: unknown[], everyMs = 0): Loaded<T> {
  const [state, setState] = useState<{ data: T | null; error: Error | null; loading: boolean; key: string }>({ data: null, error: null, loading: true, key: "" });
  const [turn, setTurn] = useState(0);
  const key = JSON.stringify(deps);
  useEffect(() => {
    const control = new AbortController();
    setState((old) => ({ ...old, loading: true, data: old.key === key ? old.data : null, key }));
    load(control.signal).then(
      (data) => control.signal.aborted || setState({ data, error: null, loading: false, key }),
      (error: Error) => control.signal.aborted || setState((old) => ({ ...old, error, loading: false, key })),
    );
    return () => control.abort();
  }, [key, turn]);
  useEffect(() => {
    if (!everyMs) return undefined;
    const timer = setInterval(() => document.hidden || setTurn((one) => one + 1), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return { ...state, reload: () => setTurn((one) => one + 1) };
}

/** Call `reload` after events that concern a job, or any, at most once a second. */
export function useLive(reload: () => void, job: number | null): void {
  const latest = useRef(reload);
  latest.current = reload;
  useEffect(() => {
    let timer = 0;
    const stop = follow((event) => {
      if (timer || (job !== null && event !== null && event.job !== job)) return;
      timer = window.setTimeout(() => {
        timer = 0;
        latest.current();
      }, 1000);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [job]);
}

/** Whether a key was pressed outside of a field. */
export function useKey(key: string, act: (event: KeyboardEvent) => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement;
      const types = at.closest("input, select, textarea, dialog") !== null;
      if (event.key === key && !types && !event.ctrlKey && !event.metaKey && !event.altKey) latest.current(event);
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [key]);
}
