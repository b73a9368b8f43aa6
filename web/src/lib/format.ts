/** Numbers, times and sizes as text. Times are arguments, so that each function is pure. */

export const DASH = "–";

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : value.toLocaleString("en-US");
}

/** A measured value with four digits that matter. */
export function value(one: number | null | undefined): string {
  if (one === null || one === undefined || Number.isNaN(one)) return DASH;
  if (one === 0) return "0";
  const size = Math.abs(one);
  if (size >= 1e6 || size < 1e-4) return one.toExponential(3);
  return size >= 1e4 ? Math.round(one).toLocaleString("en-US") : String(Number(one.toPrecision(4)));
}

/** 59 s, 12 min, 3 h 20 min, 4 d 2 h. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  const whole = Math.max(0, seconds);
  if (whole < 10) return `${Math.round(whole * 10) / 10} s`;
  if (whole < 100) return `${Math.round(whole)} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return pair(hours, "h", minutes % 60, "min");
  return pair(Math.floor(hours / 24), "d", hours % 24, "h");
}

function pair(large: number, unit: string, small: number, smaller: string): string {
  return small ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`;
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let left = bytes;
  let at = 0;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${at === 0 ? left : left.toFixed(left < 10 ? 1 : 0)} ${units[at]}`;
}

export function usd(amount: number | string | null | undefined): string {
  if (amount === null || amount === undefined) return DASH;
  const number = Number(amount);
  const digits = Math.abs(number) < 1 && number !== 0 ? 3 : 2;
  return `$${number.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** Time of slots: 40 slot-s, 12 slot-min, 3.4 slot-h. */
export function slotTime(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds < 100) return `${Math.round(seconds)} slot-s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} slot-min`;
  const hours = seconds / 3600;
  return `${hours < 100 ? Number(hours.toPrecision(3)) : Math.round(hours).toLocaleString("en-US")} slot-h`;
}

export function percent(part: number | null | undefined): string {
  if (part === null || part === undefined || !Number.isFinite(part)) return DASH;
  const shown = part * 100;
  return `${shown >= 99.95 || shown < 10 ? Math.round(shown * 10) / 10 : Math.round(shown)} %`;
}

export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** 28 Nov 18:04:05; with the year when it is another one. */
export function time(at: string | null | undefined, now: number): string {
  if (!at) return DASH;
  const date = new Date(at);
  const options: Intl.DateTimeFormatOptions = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  if (date.getFullYear() !== new Date(now).getFullYear()) options.year = "numeric";
  return date.toLocaleString("en-GB", options).replace(",", "");
}

/** "4 min ago", or "in 4 min". */
export function since(at: string | null | undefined, now: number): string {
  if (!at) return DASH;
  const seconds = (now - Date.parse(at)) / 1000;
  if (Math.abs(seconds) < 5) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

/** "waiting_for_slots" as "waiting for slots". */
export function words(code: string): string {
  return code.replaceAll("_", " ");
}
