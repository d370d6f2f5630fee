// What this page saw in the last minutes. Kept in its memory only: the server has no part in it.
import { total } from "./forms.js";

const KEPT_MS = 600_000;
const MINUTE_MS = 60_000;
const SETTLED_MS = 30_000; // of which a rate is taken
const LARGE_LAG = 100; // steps, as in the alert for a rank that falls behind

export const keyOf = ({ dataset, epoch, seed, world_size }) => JSON.stringify([dataset, epoch, seed, world_size]);

export function remember(history, { server, activity }, at) {
  const runs = Object.fromEntries(activity.runs.map((run) => [keyOf(run), run]));
  const tokens = total(activity.datasets.map((each) => each.tokens_per_second));
  history.push({ at, runs, tokens, refused: total(Object.values(server.refused_calls)) });
  while (at - history[0].at > KEPT_MS) history.shift();
}

// The value of a field of a run, in each look that knows the run; `at` is in milliseconds.
export function pointsOf(history, run, field) {
  const key = keyOf(run);
  return history.filter(({ runs }) => runs[key]).map(({ at, runs }) => ({ at, value: runs[key][field] }));
}

const change = (points) => points[points.length - 1].value - points[0].value;
const duration = (points) => (points.length ? points[points.length - 1].at - points[0].at : 0);

// Calls that were refused in the last minute.
export function newRefusals(history) {
  const now = history[history.length - 1]?.at;
  const points = history.filter(({ at }) => now - at <= MINUTE_MS).map(({ at, refused }) => ({ at, value: refused }));
  return points.length ? Math.max(0, change(points)) : 0;
}

export function fallsBehind(history, run) {
  const points = pointsOf(history, run, "lag_steps");
  return run.lag_steps > LARGE_LAG && duration(points) >= SETTLED_MS && change(points) > 0;
}

// For each run, seconds until the last rank has been sent its last step: Infinity if it stands still, null if unknown.
export function withTimeLeft(history, runs, streams) {
  const rates = new Map(); // of the last rank since it began, for a page that has just been opened
  const lastRanks = new Map(runs.map((run) => [keyOf(run), run.slowest_rank]));
  for (const { first_step, next_step, open_seconds, ...each } of streams) {
    const key = keyOf(each);
    const steps = (next_step - first_step) / open_seconds;
    if (lastRanks.get(key) === each.rank) rates.set(key, Math.max(rates.get(key) ?? 0, steps));
  }
  return runs.map((run) => {
    const points = pointsOf(history, run, "slowest_step");
    const isSettled = duration(points) >= SETTLED_MS;
    const perSecond = isSettled ? (1000 * Math.max(0, change(points))) / duration(points) : rates.get(keyOf(run));
    const stepsLeft = Math.max(0, run.num_steps - run.slowest_step);
    const isKnown = run.num_steps && (isSettled || perSecond > 0);
    return { ...run, seconds_left: !isKnown ? null : stepsLeft ? stepsLeft / perSecond : 0 };
  });
}
