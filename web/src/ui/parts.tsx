/** Small parts that every screen uses. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Job } from "../api/client";
import { duration, since, time, words } from "../lib/format.ts";
import { look } from "../lib/states.ts";
import { now } from "./hooks";

export function State({ of }: { of: string }): JSX.Element {
  const { glyph, tone } = look(of);
  return (
    <span class={`state ${tone}`}>
      <span class="glyph" aria-hidden="true">{glyph}</span>
      {words(of)}
    </span>
  );
}

export function why(job: Job): string {
  const reason = job.pending_reason ?? job.reason;
  return reason.message || words(reason.code);
}

export function When({ at }: { at: string | null | undefined }): JSX.Element {
  return at ? <time dateTime={at} title={time(at, now.value)}>{since(at, now.value)}</time> : <span>–</span>;
}

export function Problem({ error, retry }: { error: Error; retry?: () => void }): JSX.Element {
  const hint = error instanceof ApiError ? error.hint : "The control plane did not answer.";
  return (
    <div class="problem" role="alert">
      <strong>{error.message}</strong>
      {hint && <p>{hint}</p>}
      {retry && <button type="button" onClick={retry}>Try again</button>}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  );
}

/** What was loaded, or why it was not. Old data stay in sight below an error. */
export function Show<T>({ of, children }: { of: { data: T | null; error: Error | null; loading: boolean; reload: () => void }; children: (data: T) => ComponentChildren }): JSX.Element {
  return (
    <>
      {of.error && <Problem error={of.error} retry={of.reload} />}
      {of.data !== null ? children(of.data) : !of.error && <p class="quiet" role="status">Loading…</p>}
    </>
  );
}

export function Fact({ name, children, hint }: { name: string; children: ComponentChildren; hint?: string | undefined }): JSX.Element {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd title={hint}>{children}</dd>
    </div>
  );
}

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  number?: boolean;
  wide?: boolean;
}

export function Table<T>({ columns, rows, caption, rowKey }: { columns: Column<T>[]; rows: T[]; caption: string; rowKey: (row: T) => string | number }): JSX.Element {
  const kind = (one: Column<T>) => (one.number ? "n" : one.wide ? "wide" : undefined);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>{columns.map((one) => <th scope="col" class={kind(one)} key={one.name}>{one.name}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>{columns.map((one) => <td class={kind(one)} key={one.name}>{one.cell(row)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A filled share of a width, which CSS reads from an attribute of the SVG. */
export function Bar({ share, label }: { share: number; label: string }): JSX.Element {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return (
    <svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect class="track" width="100" height="4" />
      <rect class="fill" width={width} height="4" />
    </svg>
  );
}

/** Several shares of one whole, with a legend in words. */
export function Shares({ parts, unit }: { parts: [string, number][]; unit: (amount: number) => string }): JSX.Element {
  const all = parts.reduce((sum, [, one]) => sum + one, 0);
  let from = 0;
  return (
    <figure class="shares">
      <svg viewBox="0 0 1000 16" preserveAspectRatio="none" aria-hidden="true">
        {parts.map(([name, one]) => {
          const x = from;
          from += all ? (one / all) * 1000 : 0;
          return <rect key={name} class={`share ${name.replaceAll(" ", "-")}`} x={x} width={from - x} height="16" />;
        })}
      </svg>
      <ul>
        {parts.map(([name, one]) => (
          <li key={name}>
            <span class={`key ${name.replaceAll(" ", "-")}`} aria-hidden="true" />
            {name} <b>{unit(one)}</b> <span class="quiet">{all ? Math.round((one / all) * 100) : 0} %</span>
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** Ask before something is done: says what it costs. Escape and Cancel leave everything as it is. */
export function Ask({ title, verb, danger, children, act, close }: { title: string; verb: string; danger?: boolean; children: ComponentChildren; act: () => Promise<unknown>; close: () => void }): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => box.current?.showModal(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await act();
      close();
    } catch (failed) {
      setError(failed as Error);
      setBusy(false);
    }
  };
  return (
    <dialog ref={box} onClose={close} aria-label={title}>
      <form onSubmit={submit}>
        <h2>{title}</h2>
        <div class="said">{children}</div>
        {error && <Problem error={error} />}
        <div class="buttons">
          <button type="button" onClick={() => box.current?.close()}>Cancel</button>
          <button type="submit" class={danger ? "danger" : "primary"} disabled={busy}>{verb}</button>
        </div>
      </form>
    </dialog>
  );
}

/** About how long a run still takes, from its epochs; null where it does not say how many. */
export function leftSeconds(job: Job): number | null {
  const { epoch, num_epochs: all } = job.progress;
  if (!epoch || !all || epoch >= all || !job.started_at) return null;
  return ((runSeconds(job) ?? 0) / epoch) * (all - epoch) || null;
}

/** For how long a job has run, or did run; null before it began. */
export function runSeconds(job: Job): number | null {
  if (job.duration_s !== null) return job.duration_s;
  return job.started_at && !job.ended_at ? Math.max(0, (now.value - Date.parse(job.started_at)) / 1000) : null;
}

export function progressText(job: Job): string {
  const { step, epoch, num_epochs: all } = job.progress;
  if (step === null) return "–";
  return all ? `${step.toLocaleString("en-US")} · epoch ${epoch ?? 0}/${all}` : step.toLocaleString("en-US");
}

export function Left({ job }: { job: Job }): JSX.Element {
  const seconds = leftSeconds(job);
  return <>{seconds === null ? "–" : `about ${duration(seconds)}`}</>;
}
