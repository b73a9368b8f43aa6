/** One stream of events for the whole page. It is closed while the page is hidden, so that tabs in the background
 * hold no connection: browsers open six to a server. */

import { API, type Schemas } from "./client";

type Listener = (event: Schemas["EventView"] | null) => void;

const listeners = new Set<Listener>();
let source: EventSource | null = null;

/** Call back for every event, and with null after a gap, when everything has to be read again. */
export function follow(listener: Listener): () => void {
  listeners.add(listener);
  open();
  return () => {
    listeners.delete(listener);
    if (!listeners.size) close();
  };
}

function open(): void {
  if (source || !listeners.size || document.hidden) return;
  source = new EventSource(new URL("events/stream?from=now", API));
  source.addEventListener("event", (one) => {
    const event = JSON.parse((one as MessageEvent<string>).data) as Schemas["EventView"];
    for (const listener of listeners) listener(event);
  });
  source.addEventListener("end", () => {
    close();
    setTimeout(again, 1000);
  });
  source.addEventListener("error", () => {
    // The browser connects again by itself unless the answer was an error.
    if (source?.readyState !== EventSource.CLOSED) return;
    close();
    setTimeout(again, 5000);
  });
}

function close(): void {
  source?.close();
  source = null;
}

function again(): void {
  if (source) return;
  open();
  if (source) for (const listener of listeners) listener(null);
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : again()));
