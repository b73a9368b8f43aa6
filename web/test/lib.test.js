// Pure modules of the UI. `npm test` compiles them to build/ first.
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseFilter } from "../build/filter.js";
import { count, duration, percent, size, slotTime, usd, value } from "../build/format.js";
import { heat } from "../build/heat.js";
import { cleanLine, marked, visible } from "../build/lines.js";
import { href, parseRoute } from "../build/route.js";
import { broken, onOneGrid, panels, pinned, shownPoints, smooth } from "../build/series.js";
import { actions } from "../build/states.js";
import { blocks, totals } from "../build/timeline.js";

test("an address is parsed to what it was made of", () => {
  const query = { text: "a b&c=d", rank: 3, off: false, none: null };
  const address = href(["jobs", 12, "lo gs"], query);
  assert.deepEqual(parseRoute(address), { path: ["jobs", "12", "lo gs"], query: { text: "a b&c=d", rank: "3" } });
  assert.deepEqual(parseRoute(""), { path: [], query: {} });
  assert.deepEqual(parseRoute("#/jobs/%E0%A4%A"), { path: ["jobs", "%E0%A4%A"], query: {} });
});

test("numbers read well", () => {
  assert.deepEqual([0, 0.00001234, 0.12345, 12345.6, 1.5e7, null, NaN].map(value), ["0", "1.234e-5", "0.1235", "12,346", "1.500e+7", "–", "–"]);
  assert.deepEqual([0, 9.97, 59, 119, 7200, 7260, 200000].map(duration), ["0 s", "10 s", "59 s", "2 min", "2 h", "2 h 1 min", "2 d 7 h"]);
  assert.deepEqual([10, 2048, 5 * 1024 ** 3].map(size), ["10 B", "2.0 KiB", "5.0 GiB"]);
  assert.deepEqual([0, 0.1234, "12.5", 1234.5].map(usd), ["$0.00", "$0.123", "$12.50", "$1,234.50"]);
  assert.deepEqual([0.05, 0.5, 0.999, 1, null].map(percent), ["5 %", "50 %", "100 %", "100 %", "–"]);
  assert.deepEqual([31, 720, 36000].map(slotTime), ["31 slot-s", "12 slot-min", "10 slot-h"]);
  assert.equal(count(1234567), "1,234,567");
});

test("the filter bar becomes parameters of the API", () => {
  const found = parseFilter('state:running,failed project:vision label:team=x label:a=b metric:val_acc>0.9 slots>8 "big net"');
  assert.deepEqual(found, {
    problems: [],
    query: { state: ["running", "failed"], project: "vision", label: ["team=x", "a=b"], metric: "val_acc", min_metric_value: 0.9, min_slots: 8, name: "big net" },
  });
  assert.deepEqual(parseFilter("state:active").query.state, ["starting", "running", "recovering", "stopping"]);
  assert.deepEqual(parseFilter("restarts:3").query, { min_restarts: 3, max_restarts: 3 });
  for (const wrong of ["state:runing", "colour:red", "slots>many", "metric:loss<x", "label:x", "project:"]) {
    assert.equal(parseFilter(wrong).problems.length, 1, wrong);
  }
});

test("what people logged comes before what the platform measures", () => {
  const names = ["step_time_seconds", "zeta", "train/loss", "train/acc", "gpu_utilization_percent"];
  assert.deepEqual(panels(names, "").map((one) => one.prefix), ["Logged by the run", "train", "Measured by the platform"]);
  assert.deepEqual(panels(names, "LOSS"), [{ prefix: "train", names: ["train/loss"] }]);
  assert.deepEqual(pinned(names, 2, 4), ["zeta", "train/loss", "step_time_seconds", "gpu_utilization_percent"]);
});

test("curves share a grid, and what is no number is told apart from what is missing", () => {
  const grid = onOneGrid([{ steps: [0, 2], values: [1, null] }, { steps: [1, 2], values: [3, 4] }]);
  assert.deepEqual(grid, { steps: [0, 1, 2], rows: [[1, undefined, null], [undefined, 3, 4]] });
  assert.deepEqual(broken({ steps: [5, 6, 7], values: [1, null, 2] }), [6]);
  assert.deepEqual(smooth([1, null, 1], 0.9).map((one) => one && Math.round(one * 1e9) / 1e9), [1, null, 1]);
  assert.deepEqual([shownPoints(1000, 10000), shownPoints(1, 1)], ["1,000 of 10,000 points", "1 point"]);
});

test("lines are shown as a terminal would leave them", () => {
  assert.equal(cleanLine("\u001b[32mok\u001b[0m done"), "ok done");
  assert.equal(cleanLine(" 1%|#\r 50%|###\r100%|#####\r"), "100%|#####");
  assert.deepEqual(marked("An Error, error", "error"), [{ text: "An ", hit: false }, { text: "Error", hit: true }, { text: ", ", hit: false }, { text: "error", hit: true }]);
  assert.deepEqual(visible(100000, 20000, 600, 20), [990, 1040]);
  const [first, last] = visible(100000, 0, 1e6, 20);
  assert.ok(last - first <= 120);
});

test("ranks are compared with the median of each interval", () => {
  const steps = [0, 1, 2, 3];
  const found = heat([{ rank: 1, steps, values: [3, 3, 3, 3] }, { rank: 0, steps, values: [1, 1, 1, 1] }, { rank: 2, steps, values: [2, 2, null, 2] }]);
  assert.deepEqual(found.ranks.map((one) => [one.rank, one.ratio]), [[0, 0.5], [1, 1.5], [2, 1]]);
  assert.equal(found.cells[2][2], null);
  assert.deepEqual([heat([]).ranks, heat([]).from, heat([]).to], [[], 0, 0]);
});

test("events become blocks whose times add up", () => {
  const event = (at, state, generation = null) => ({ at: `2026-11-28T00:00:${at}Z`, state, kind: state, attempt: 1, generation, message: "" });
  const events = [event("00", "queued"), event("05", "running", 0), event("07", "running", 0), event("10", "running", 1)];
  const found = blocks(events, false, Date.parse("2026-11-28T00:00:30Z"));
  assert.deepEqual(found.map((one) => [one.state, one.generation, (one.to - one.from) / 1000]), [["queued", null, 5], ["running", 0, 5], ["running", 1, 20]]);
  assert.deepEqual(totals(found), [["running", 25], ["queued", 5]]);
});

test("a job that has ended can only be cloned", () => {
  assert.deepEqual(actions("failed"), ["clone"]);
  assert.ok(actions("running").includes("stop") && !actions("stopping").includes("stop"));
});
