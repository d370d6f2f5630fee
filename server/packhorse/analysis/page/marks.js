// Small drawings: the mark of a status, each of its own shape, and lines and bars beside numbers.
import { html } from "./preact.js";

const SHAPES = {
  fine: ["M12 1a11 11 0 1 0 0 22a11 11 0 1 0 0-22z", "M6.5 12.5l4 4l7-8"], // a disc and a tick
  care: ["M12 1.5L23.5 22H.5z", "M12 8.5v6.5m0 2.6v1.6"], // a triangle and an exclamation mark
  bad: ["M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4z", "M7.5 7.5l9 9m0-9l-9 9"], // an octagon and a cross
};

export function Mark({ level }) {
  const [shape, sign] = SHAPES[level];
  return html`<svg class=${`mark ${level}`} viewBox="0 0 24 24" aria-hidden="true">
    <path d=${shape} /><path class="sign" d=${sign} /></svg>`;
}

const GAP_MS = 15_000;

// points: { at: milliseconds, value }. The line has a gap if the page did not ask for a while.
export function Sparkline({ points, label }) {
  if (points.length < 2) return html`<svg class="spark" aria-hidden="true"></svg>`;
  const begin = points[0].at;
  const width = points[points.length - 1].at - begin || 1;
  const highest = Math.max(...points.map(({ value }) => value)) || 1;
  const path = points.map(({ at, value }, i) =>
    `${i && at - points[i - 1].at < GAP_MS ? "L" : "M"}${(100 * (at - begin)) / width} ${18 - (16 * value) / highest}`);
  return html`<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label=${label}>
    <path d=${path.join("")} vector-effect="non-scaling-stroke" /></svg>`;
}

// parts: [class, share of the whole], from left to right.
export function Shares({ parts }) {
  let begin = 0;
  return html`<svg class="shares" aria-hidden="true">${parts.map(([name, share]) => {
    const x = begin;
    begin += share;
    return html`<rect class=${name} x=${`${100 * x}%`} width=${`${100 * share}%`} height="100%" />`;
  })}</svg>`;
}
