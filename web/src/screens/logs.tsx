/** Output of a run: filters with true counts, and a tail that never moves what somebody reads. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, type Job, type Schemas } from "../api/client";
import { count, percent, plural, size } from "../lib/format.ts";
import { cleanLine, marked, visible } from "../lib/lines.ts";
import { route, setQuery, useKey } from "../ui/hooks";
import { Empty, Problem } from "../ui/parts";

type LogLine = Schemas["LogLine"] & { level?: string | null };

const ROW = 20;
const KEPT = 20_000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];

interface Wanted {
  text: string;
  regex: boolean;
  level: string;
  stream: string;
  ranks: number[];
}

export function Logs({ job }: { job: Job }): JSX.Element {
  const query = route.value.query;
  const wanted: Wanted = {
    text: query.text ?? "",
    regex: query.regex === "true",
    level: query.level ?? "",
    stream: query.stream ?? "",
    ranks: (query.rank ?? "").split(",").filter((one) => /^\d+$/.test(one)).map(Number),
  };
  const searches = wanted.text !== "" || wanted.level !== "";
  const key = JSON.stringify([job.num, wanted]);
  return (
    <>
      <Tools job={job} wanted={wanted} />
      {searches ? <Matches key={key} job={job} wanted={wanted} /> : <Tail key={key} job={job} wanted={wanted} />}
    </>
  );
}

function Tools({ job, wanted }: { job: Job; wanted: Wanted }): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const [typed, setTyped] = useState(wanted.text);
  useEffect(() => {
    const timer = setTimeout(() => typed === wanted.text || setQuery({ text: typed }), 300);
    return () => clearTimeout(timer);
  }, [typed]);
  useKey("/", (event) => {
    event.preventDefault();
    field.current?.focus();
  });
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>Find <input ref={field} type="search" class="long" placeholder="text  ( / )" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></label>
      <label><input type="checkbox" checked={wanted.regex} onChange={(event) => setQuery({ regex: event.currentTarget.checked })} /> Expression</label>
      <label>
        Level{" "}
        <select value={wanted.level} onChange={(event) => setQuery({ level: event.currentTarget.value })}>
          <option value="">any</option>
          {LEVELS.map((one) => <option key={one} value={one}>{one === "critical" ? one : `${one} or higher`}</option>)}
        </select>
      </label>
      <label>
        Stream{" "}
        <select value={wanted.stream} onChange={(event) => setQuery({ stream: event.currentTarget.value })}>
          <option value="">both</option>
          <option value="out">out</option>
          <option value="err">err</option>
        </select>
      </label>
      <label>Ranks <input class="short" placeholder={`all ${job.world_size}`} value={wanted.ranks.join(",")} onChange={(event) => setQuery({ rank: event.currentTarget.value })} /></label>
    </form>
  );
}

type Conditions = { rank?: number[]; stream?: "out" | "err" };

function conditions(wanted: Wanted): Conditions {
  return { ...(wanted.ranks.length ? { rank: wanted.ranks } : {}), ...(wanted.stream ? { stream: wanted.stream as "out" | "err" } : {}) };
}

function Matches({ job, wanted }: { job: Job; wanted: Wanted }): JSX.Element {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [page, setPage] = useState<Schemas["LogSearchPage"] | null>(null);
  const [total, setTotal] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  const more = async (cursor: string | undefined) => {
    try {
      const search = wanted.regex ? { regex: wanted.text } : { text: wanted.text };
      const found = await get("/api/v1/jobs/{num}/logs/search", { num: job.num }, { ...(wanted.text ? search : {}), ...(wanted.level ? { level: wanted.level as "error" } : {}), ...conditions(wanted), limit: 500, ...(cursor ? { cursor } : {}) });
      setLines((old) => [...old, ...found.lines]);
      setTotal((old) => (cursor ? Math.max(old, found.count) : found.count));
      setPage(found);
    } catch (failed) {
      setError(failed as Error);
    }
  };
  useEffect(() => void more(undefined), []);
  if (error) return <Problem error={error} />;
  if (!page) return <p class="quiet" role="status">Searching…</p>;
  const known = page.exact ? plural(total, "line matches", "lines match") : `at least ${plural(total, "line matches", "lines match")}; ${percent(page.searched)} searched`;
  return (
    <>
      <p class="summary" role="status">
        {known}
        {lines.length < total && `, ${count(lines.length)} shown`}{" "}
        {page.cursor && <button type="button" onClick={() => void more(page.cursor ?? undefined)}>{page.exact ? "Show more" : "Search on"}</button>}
      </p>
      {lines.length > 0 && <Lines lines={lines} wanted={wanted.regex ? "" : wanted.text} follow={false} ranks={job.world_size > 1} />}
      {!lines.length && <Empty title="No line matches">{wanted.level && "Levels are read from the usual forms of log lines; plain prints have none."}</Empty>}
    </>
  );
}

function Tail({ job, wanted }: { job: Job; wanted: Wanted }): JSX.Element {
  const [lines, setLines] = useState<LogLine[] | null>(null);
  const [live, setLive] = useState(true);
  const [error, setError] = useState<Error | null>(null);
  const following = useRef(true);
  useEffect(() => {
    const control = new AbortController();
    const read = async () => {
      let cursor: string | null = null;
      while (!control.signal.aborted) {
        const query = { ...conditions(wanted), ...(cursor === null ? { tail: 1000 } : { cursor, wait_s: 20 }) };
        const page: Schemas["LogPage"] = await get("/api/v1/jobs/{num}/logs", { num: job.num }, query, control.signal);
        cursor = page.cursor;
        setLines((old) => [...(old ?? []), ...page.lines].slice(-KEPT));
        if (page.done) break;
        // Fast output is shown in few strokes, and nothing is asked for a page that is not seen.
        await new Promise((done) => setTimeout(done, 300));
        while (!control.signal.aborted && (document.hidden || !following.current)) await new Promise((done) => setTimeout(done, 300));
      }
      setLive(false);
    };
    read().catch((failed: Error) => control.signal.aborted || setError(failed));
    return () => control.abort();
  }, []);
  const [follow, setFollow] = useState(true);
  following.current = follow;
  if (error) return <Problem error={error} />;
  if (!lines) return <p class="quiet" role="status">Loading…</p>;
  return (
    <>
      <p class="summary" role="status">
        The last {plural(lines.length, "line")}{live ? "" : "; the job has ended"}.{" "}
        {live && <label><input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> Follow</label>}
      </p>
      {lines.length ? <Lines lines={lines} wanted="" follow={follow} ranks={job.world_size > 1} /> : <Empty title="No output yet" />}
    </>
  );
}

/** A list of which only the rows in sight exist. New lines scroll it only while its end is in sight. */
function Lines({ lines, wanted, follow, ranks }: { lines: LogLine[]; wanted: string; follow: boolean; ranks: boolean }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, height: 600 });
  const atEnd = useRef(true);
  const [unseen, setUnseen] = useState(0);
  const before = useRef(lines.length);
  const look = () => {
    const at = box.current;
    if (!at) return;
    atEnd.current = at.scrollTop + at.clientHeight >= at.scrollHeight - ROW;
    if (atEnd.current) setUnseen(0);
    setPlace({ top: at.scrollTop, height: at.clientHeight });
  };
  const toEnd = () => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
    look();
  };
  useEffect(() => {
    const added = lines.length - before.current;
    before.current = lines.length;
    if (!follow) return look();
    return atEnd.current ? toEnd() : setUnseen((old) => old + Math.max(0, added));
  }, [lines.length]);
  useEffect(() => (follow ? toEnd() : look()), []);
  const [first, last] = visible(lines.length, place.top, place.height, ROW);
  return (
    <div class="log-box">
      <div class="log" ref={box} onScroll={look} tabIndex={0} role="region" aria-label="Output">
        <svg width="1" height={first * ROW} aria-hidden="true" />
        {lines.slice(first, last).map((one, index) => <Row key={first + index} line={one} wanted={wanted} ranks={ranks} />)}
        <svg width="1" height={(lines.length - last) * ROW} aria-hidden="true" />
      </div>
      {unseen > 0 && <button type="button" class="unseen" onClick={toEnd}>{plural(unseen, "new line")} ↓</button>}
    </div>
  );
}

function Row({ line, wanted, ranks }: { line: LogLine; wanted: string; ranks: boolean }): JSX.Element {
  if (line.gap) return <div class="row gap">… {size(line.gap.num_bytes)} {line.gap.cause === "limit" ? "above the limit were not kept" : line.gap.cause}</div>;
  return (
    <div class={`row ${line.stream} ${line.level ?? ""}`}>
      <time dateTime={line.at}>{new Date(line.at).toLocaleTimeString("en-GB")}</time>
      {ranks && <span class="rank">{line.rank}</span>}
      <span class="text">{marked(cleanLine(line.text), wanted).map((one, index) => (one.hit ? <mark key={index}>{one.text}</mark> : one.text))}</span>
    </div>
  );
}
