// Shows the status document, of a server (asked every few seconds) or of a file (in the page). Changes nothing.
// Every figure is computed by the server; here they only get their form.
import { html, render, useEffect, useRef, useState } from "./preact.js";
import uPlot from "./uplot.js";

const REFRESH_MS = 3000;
const MOST_STREAMS = 50;
const MOST_DATASETS = 8;

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const none = (form) => (value) => (value === null || value === undefined ? "–" : form(value));
const number = none((value) => whole.format(value));
const rate = none((value) => short.format(value));
const percent = none((value) => `${(100 * value).toFixed(2)} %`);
const seconds = none((value) => (value < 0.1 ? `${(1000 * value).toFixed(0)} ms` : value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(0)} min`));
const bytes = none((value) => {
  const thousands = Math.min(4, Math.max(0, Math.floor(Math.log10(value) / 3)));
  return `${digits.format(value / 1000 ** thousands)} ${["B", "kB", "MB", "GB", "TB"][thousands]}`;
});
const text = none(String);

// columns: [heading, key or function of a row, form]; the first is the row's heading.
function Table({ caption, columns, rows, empty }) {
  if (!rows.length) return empty ? html`<p>${caption}: ${empty}.</p>` : null;
  const cell = ([, of, form = text], row) => form(typeof of === "function" ? of(row) : row[of]);
  return html`<div class="table" role="region" aria-label=${caption} tabindex="0"><table>
    <caption>${caption}</caption>
    <thead><tr>${columns.map(([name]) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${columns.map((column, i) =>
      i ? html`<td>${cell(column, row)}</td>` : html`<th scope="row">${cell(column, row)}</th>`)}</tr>`)}</tbody>
  </table></div>`;
}

function Plot({ title, summary, edges, counts, form }) {
  const place = useRef();
  const key = JSON.stringify([edges, counts]);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const [ink, line, mark] = ["--quiet", "--line", "--mark"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const options = {
      width: place.current.clientWidth, height: 200, cursor: { show: false }, legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.05 || 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(form) }, { ...axis, size: 60, values: (_, ticks) => ticks.map(rate) }],
      series: [{}, { stroke: mark, fill: mark, paths: uPlot.paths.bars({ size: [1, Infinity], align: 1 }), points: { show: false } }],
    };
    const plot = new uPlot(options, [edges, [...counts, null]], place.current);
    const fit = new ResizeObserver(() => plot.setSize({ width: place.current.clientWidth, height: 200 }));
    fit.observe(place.current);
    return () => { fit.disconnect(); plot.destroy(); };
  }, [key, useDark()]);
  return html`<figure><figcaption>${title}</figcaption>
    <div ref=${place} role="img" aria-label=${`${title}: ${summary}`}></div><p>${summary}</p></figure>`;
}

function useDark() {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const set = () => setDark(query.matches);
    query.addEventListener("change", set);
    return () => query.removeEventListener("change", set);
  }, []);
  return dark;
}

function highest({ edges, counts }, form) {
  const at = counts.indexOf(Math.max(...counts));
  return `from ${form(edges[0])} to ${form(edges[edges.length - 1])}; most, ${number(counts[at])}, `
    + `from ${form(edges[at])} to ${form(edges[at + 1])}`;
}

function Dataset({ dataset, look }) {
  const { costly, lengths, fullness } = dataset;
  const known = costly !== null && typeof costly === "object";
  return html`<section aria-label=${dataset.name} id=${dataset.name}>
    <h2>${dataset.name}</h2>
    <p>${dataset.components.length ? `a mixture of ${dataset.components.join(", ")}; ` : ""}digest ${dataset.digest}${
      known && costly.version !== null ? `, version ${costly.version}` : ""}; packer ${dataset.algorithm}</p>
    <${Table} caption="Plan" rows=${[dataset]} columns=${[
      ["max_seq_len", "max_seq_len", number], ["sequences", "num_sequences", number], ["bins", "num_bins", number],
      ["tokens", "total_tokens", number], ["efficiency", "efficiency", percent], ["lower bound", "lower_bound", number],
      ["gap", "gap", percent],
      ["padding avoided, tokens", () => (known ? costly.padding_avoided_tokens : null), number]]} />
    ${lengths && html`<div class="plots">
      <${Plot} title="Sequences by length in tokens" ...${lengths} form=${rate} summary=${highest(lengths, number)} />
      <${Plot} title="Bins by fullness" ...${fullness} form=${(share) => `${Math.round(100 * share)} %`}
        summary=${highest(fullness, percent)} />
    </div>`}
    ${!dataset.components.length && html`<details open=${!look} onToggle=${(event) => look?.(dataset.name, event.target.open)}>
      <summary>Other context lengths, packers and waiting</summary>
      ${known ? html`<${Costly} ...${costly} own=${dataset.max_seq_len} />` : html`<p role="status">${costly ?? "asking"}.</p>`}
    </details>`}
  </section>`;
}

function Costly({ context_lengths, packers, without_packing, waiting, own }) {
  const policies = waiting.length ? Object.keys(waiting[0].balances) : [];
  const shape = waiting.length ? `, with ${waiting[0].accumulation} steps to an optimizer step` : "";
  return html`
    <${Table} caption="With another max_seq_len" rows=${context_lengths} columns=${[
      ["max_seq_len", ({ max_seq_len }) => number(max_seq_len) + (max_seq_len === own ? " (this)" : "")],
      ["bins", "bins", number], ["efficiency", "efficiency", percent], ["padded instead", "padded_efficiency", percent],
      ["sequences cut", "sequences_cut", number], ["tokens cut", "tokens_cut", number]]} />
    <${Table} caption="With another packer" rows=${packers} columns=${[
      ["packer", "algorithm"], ["bins", "bins", number], ["efficiency", "efficiency", percent],
      ["gap", "gap", percent], ["time to plan", "seconds", seconds]]} />
    <${Table} caption="Without packing" rows=${without_packing} columns=${[
      ["way", "way"], ["rows", "rows", number], ["computed tokens", "computed_tokens", number],
      ["efficiency", "efficiency", percent]]} />
    <${Table} caption=${`GPU time that ranks lose if they wait at every step, by balance${shape}`} rows=${waiting} columns=${[
      ["ranks", "world_size", number],
      ...policies.map((name) => [name, ({ balances }) => balances[name].idle_share_at_steps, percent])]} />
    <${Table} caption=${`GPU time that ranks lose if they wait at optimizer steps, by balance${shape}`} rows=${waiting} columns=${[
      ["ranks", "world_size", number],
      ...policies.map((name) => [name, ({ balances }) => balances[name].idle_share_at_optimizer_steps, percent])]} />`;
}

function Server({ server, activity }) {
  const { servers } = activity;
  const pairs = (facts) => Object.entries(facts).map(([name, value]) => ({ name, value }));
  return html`
    <p>packhorse ${server.version}, wire version ${server.wire_version}, ${
      server.is_serving ? "serving" : html`<strong class="warn">not serving</strong>`} for ${seconds(Math.max(...servers.map((each) => each.uptime_seconds)))}</p>
    <${Table} caption="Not in use as it is: the log says why" rows=${server.unusable_files}
      columns=${[["file", "kind"], ["of", "name"]]} />
    <${Table} caption=${servers.length > 1 ? "Processes" : "Process"} rows=${servers} columns=${[
      ["streams", ({ streams, max_streams }) => `${number(streams)} of ${number(max_streams)}`],
      ["processors", "processors", (value) => value.toFixed(2)], ["memory", "memory_bytes", bytes],
      ["memory limit", "memory_limit_bytes", bytes], ["connections", "connections", number],
      ["open files", ({ open_files, most_open_files }) => `${number(open_files)} of ${number(most_open_files)}`]]} />
    <${Table} caption="Work that waits, by lane" rows=${pairs(server.lanes)} empty="none"
      columns=${[["lane", "name"], ["time slices", "value", number]]} />
    <${Table} caption="Refused calls, by reason" rows=${pairs(server.refused_calls)} empty="none"
      columns=${[["reason", "name"], ["calls", "value", number]]} />
    <${Table} caption="Certificates" rows=${pairs(server.certificate_days)}
      columns=${[["file", "name"], ["days left", "value", (value) => value.toFixed(1)]]} />
    <${Table} caption="Runs" rows=${activity.runs} empty="no stream is open" columns=${[
      ["dataset", "dataset"], ["seed", "seed"], ["epoch", "epoch", number], ["ranks", ({ open_ranks, world_size }) => `${open_ranks} of ${world_size}`],
      ["furthest step", ({ furthest_step, num_steps }) => `${number(furthest_step)} of ${number(num_steps)}`],
      ["lag, steps", "lag_steps", number], ["last rank", ({ lag_steps, slowest_rank }) => (lag_steps ? slowest_rank : null)],
      ["bytes/s", "bytes_per_second", rate], ["streams wait for trainers", "blocked_share", percent]]} />
    <${Table} caption="GPU time that ranks of these runs lose to waiting" rows=${server.waiting} columns=${[
      ["dataset", "dataset"], ["ranks", "world_size"], ["batch size", "batch_size"], ["balance", "balance"],
      ["wait at every", "wait"], ["idle", "idle_share", percent]]} />
    <${Table} rows=${activity.streams.slice(0, MOST_STREAMS)}
      caption=${`Streams, the last first${activity.streams.length > MOST_STREAMS ? `: ${MOST_STREAMS} of ${number(activity.streams.length)}` : ""}`}
      columns=${[["stream", "id"], ["dataset", ({ dataset, method }) => dataset || method], ["seed", "seed"], ["epoch", "epoch", number], ["rank", "rank"], ["worker", "worker"],
      ["step", ({ next_step, num_steps }) => `${number(next_step)} of ${number(num_steps)}`],
      ["behind", "behind_steps", number], ["steps/s", "steps_per_second", rate], ["bytes/s", "bytes_per_second", rate],
      ["waits", "blocked_share", percent], ["open", "open_seconds", seconds]]} />
    <${Table} caption="Sent" rows=${activity.datasets} columns=${[
      ["dataset", "dataset"], ["bins/s", "bins_per_second", rate], ["tokens/s", "tokens_per_second", rate]]} />`;
}

// With many datasets the page shows the one that the address names, and an index.
function Datasets({ datasets, look }) {
  const [chosen, choose] = useState(() => decodeURIComponent(location.hash.slice(1)));
  useEffect(() => {
    const follow = () => choose(decodeURIComponent(location.hash.slice(1)));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const shown = datasets.length > MOST_DATASETS ? datasets.filter(({ name }) => name === chosen) : datasets;
  return html`
    ${datasets.length > 1 && html`<nav aria-label="Datasets"><ul>${datasets.map(({ name, efficiency }) => html`<li><a
      href=${`#${encodeURIComponent(name)}`} aria-current=${name === chosen ? "true" : undefined}>${name}</a> ${percent(efficiency)}</li>`)}</ul></nav>`}
    ${shown.map((dataset) => html`<${Dataset} key=${dataset.name} dataset=${dataset} look=${look} />`)}`;
}

function Page() {
  const open = useRef([]); // datasets whose figures somebody looks at
  const look = (name, isOpen) => {
    open.current = [...open.current.filter((other) => other !== name), ...(isOpen ? [name] : [])];
  };
  const inside = document.getElementById("document");
  const [facts, setFacts] = useState(() => (inside ? JSON.parse(inside.textContent) : null));
  const [trouble, setTrouble] = useState("");
  const [token, setToken] = useState(null);
  useEffect(() => {
    if (inside || trouble.startsWith("token")) return undefined;
    let timer;
    const ask = async () => {
      try {
        if (!document.hidden) {
          const headers = token ? { Authorization: `Bearer ${token}` } : {};
          const looked = open.current.map((name) => `figures=${encodeURIComponent(name)}`).join("&");
          const answer = await fetch(`status.json?${looked}`, { headers, cache: "no-store" });
          if (answer.status === 401 || answer.status === 403) { setTrouble(`token: ${await answer.text()}`); return; }
          if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
          const found = await answer.json();
          document.title = `${found.server.host}: Packhorse`;
          setFacts(found);
          setTrouble("");
        }
      } catch (error) {
        setTrouble(`No answer, so these figures are old: ${error.message}`);
      }
      timer = setTimeout(ask, REFRESH_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, [token, trouble.startsWith("token")]);
  const enter = (event) => {
    event.preventDefault();
    setToken(event.target.elements.token.value.trim());
    setTrouble("");
  };
  return html`<main>
    <h1>Packhorse${facts?.server && ` on ${facts.server.host}`}</h1>
    <p class="warn" role="status">${trouble}</p>
    ${trouble.startsWith("token") && html`<form onSubmit=${enter}>
      <label>Token that may read metrics <input name="token" type="password" autocomplete="off" /></label> <button>Show</button></form>`}
    ${!facts && !trouble && html`<p>Asking the server.</p>`}
    ${facts?.server && html`<${Server} ...${facts} />`}
    ${facts && html`<${Datasets} datasets=${facts.datasets} look=${inside ? null : look} />`}
  </main>`;
}

render(html`<${Page} />`, document.body);
