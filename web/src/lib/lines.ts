/** Lines of output: escape sequences and progress bars folded, and which part of a list is visible. */

// biome-ignore lint/suspicious/noControlCharactersInRegex: terminals write them
const ESCAPES = /\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

/** A line as a terminal would leave it: without colours, and of a progress bar the last state. */
export function cleanLine(text: string): string {
  const plain = text.replace(ESCAPES, "");
  const parts = plain.split("\r").filter((one) => one !== "");
  return parts.at(-1) ?? "";
}

/** A line's parts around each place where `wanted` occurs, in any case. */
export function marked(text: string, wanted: string): { text: string; hit: boolean }[] {
  if (!wanted) return [{ text, hit: false }];
  const parts: { text: string; hit: boolean }[] = [];
  const low = text.toLowerCase();
  const key = wanted.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(key); at >= 0; at = low.indexOf(key, from)) {
    if (at > from) parts.push({ text: text.slice(from, at), hit: false });
    parts.push({ text: text.slice(at, at + key.length), hit: true });
    from = at + key.length;
  }
  if (from < text.length || !parts.length) parts.push({ text: text.slice(from), hit: false });
  return parts;
}

/** The rows of a list that are in sight, with some before and after; never more than `most`. */
export function visible(total: number, scrollTop: number, height: number, row: number, most = 120): [number, number] {
  const first = Math.max(0, Math.floor(scrollTop / row) - 10);
  const last = Math.min(total, Math.ceil((scrollTop + height) / row) + 10);
  return [Math.min(first, total), Math.min(last, first + most)];
}
