/** The frame of every page: navigation, the session, and the screen that the address names. */

import { signal } from "@preact/signals";
import { render, type ComponentType, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { canWrite, get, type Schemas, signIn, signOut, takeKey, upgraded } from "./api/client";
import { href } from "./lib/route.ts";
import { Jobs } from "./screens/jobs";
import { route, setServerTime } from "./ui/hooks";
import { Empty } from "./ui/parts";
import "./style.css";

type Screen = ComponentType;

// Screens beyond the first one are loaded when they are opened.
const SCREENS: Record<string, { name: string; load: () => Promise<Screen> }> = {
  jobs: { name: "Jobs", load: async () => Jobs },
  queue: { name: "Queue", load: async () => (await import("./screens/queue")).Queue },
  cluster: { name: "Cluster", load: async () => (await import("./screens/cluster")).Cluster },
  studies: { name: "Studies", load: async () => (await import("./screens/studies")).Studies },
  cost: { name: "Cost and SLO", load: async () => (await import("./screens/cost")).Cost },
  compare: { name: "Compare", load: async () => (await import("./screens/compare")).Compare },
  admin: { name: "Admin", load: async () => (await import("./screens/admin")).Admin },
};
const runScreen = async (): Promise<Screen> => (await import("./screens/run")).Run;

const me = signal<Schemas["WhoAmIView"] | null>(null);
const THEMES = ["auto", "light", "dark"];

function Frame(): JSX.Element {
  const [first = "jobs", second] = route.value.path;
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>Skip to the content</a>
      <header class="top">
        <a class="brand" href={href(["jobs"])}>Phalanx</a>
        <nav aria-label="Screens">
          {Object.entries(SCREENS).map(([key, one]) => (
            <a key={key} href={href([key])} aria-current={first === key ? "page" : undefined}>{one.name}</a>
          ))}
        </nav>
        <Person />
      </header>
      {upgraded.value && (
        <p class="notice" role="status">
          The control plane was upgraded. <button type="button" onClick={() => location.reload()}>Reload this page</button>
        </p>
      )}
      <main id="main" tabIndex={-1}>
        <Content name={first} run={first === "jobs" && second !== undefined} />
      </main>
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Person(): JSX.Element {
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "auto");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return (
    <div class="person">
      <label>
        <span class="hidden">Theme</span>
        <select value={theme} onChange={(event) => setTheme(event.currentTarget.value)}>
          {THEMES.map((one) => <option key={one}>{one}</option>)}
        </select>
      </label>
      {me.value && <span class="quiet">{me.value.id}{canWrite.value ? "" : " (reads only)"}</span>}
      {me.value && !canWrite.value && <button type="button" onClick={signIn} title="Signing in again lets this browser change things">Sign in</button>}
      <button type="button" onClick={() => void signOut()}>Sign out</button>
    </div>
  );
}

function Content({ name, run }: { name: string; run: boolean }): JSX.Element {
  const key = run ? "run" : name;
  const [shown, setShown] = useState<{ key: string; screen: Screen } | null>(key === "jobs" ? { key, screen: Jobs } : null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const load = run ? runScreen : SCREENS[name]?.load;
    setFailed("");
    document.title = `${SCREENS[name]?.name ?? "Phalanx"} – Phalanx`;
    load?.().then(
      (screen) => setShown({ key, screen }),
      // The files of another version are gone after an upgrade.
      () => setFailed(key),
    );
  }, [key]);
  if (!run && !SCREENS[name]) return <Empty title={`There is no page ${name}`}>Choose one above.</Empty>;
  if (failed) return <Empty title="This page could not be loaded">The control plane may have been upgraded: reload the page.</Empty>;
  if (shown?.key !== key) return <p class="quiet" role="status">Loading…</p>;
  const Shown = shown.screen;
  return <Shown />;
}

let version = "";

async function look(): Promise<void> {
  const info = await get("/api/v1/info");
  setServerTime(info.now);
  upgraded.value = version !== "" && version !== info.version;
  version ||= info.version;
}

async function start(): Promise<void> {
  takeKey();
  if (!location.hash) history.replaceState(null, "", "#/jobs");
  dispatchEvent(new HashChangeEvent("hashchange"));
  render(<Frame />, document.getElementById("app") as HTMLElement);
  me.value = await get("/api/v1/whoami");
  canWrite.value = me.value.scopes.some((one) => one === "submit" || one === "admin");
  await look();
  setInterval(() => document.hidden || void look().catch(() => undefined), 60_000);
}

void start().catch(() => undefined);
