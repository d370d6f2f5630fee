// How values are written: digits in groups, a unit beside each, and "–" for what nobody knows.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const known = (form) => (value) => (value === null || value === undefined ? "–" : form(value));

export const text = known(String);
export const number = known((value) => whole.format(value));
export const rate = known((value) => short.format(value));
export const percent = known((value) => `${(100 * value).toFixed(2)} %`);
export const roundPercent = known((value) => `${(100 * value).toFixed(1)} %`);
export const seconds = known((value) => {
  if (value < 0.1) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172_800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86_400).toFixed(1)} days`;
});
export const bytes = known((value) => {
  const thousands = Math.min(4, Math.max(0, Math.floor(Math.log10(value) / 3)));
  return `${digits.format(value / 1000 ** thousands)} ${["B", "kB", "MB", "GB", "TB"][thousands]}`;
});
export const several = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const total = (values) => values.reduce((sum, value) => sum + value, 0);
export const addressOf = (name) => `#/dataset/${encodeURIComponent(name)}`;
