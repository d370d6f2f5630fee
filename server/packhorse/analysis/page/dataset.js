// The view of one dataset: its plan and plots at once, and what takes seconds when the server has made it.
import { html, useEffect, useRef, useState } from "./preact.js";
import { addressOf, number, percent, rate, roundPercent, seconds, text } from "./forms.js";
import { Runs } from "./runs.js";
import { Table } from "./table.js";
import uPlot from "./uplot.js";

function Plot({ title, summary, edges, counts, form }) {
  const place = useRef();
  const key = JSON.stringify([edges, counts]);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const [ink, line, mark] = ["--quiet", "--line", "--mark"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const bars = uPlot.paths.bars({ size: [1, Infinity], align: 1 });
    const options = {
      width: place.current.clientWidth, height: 200, cursor: { show: false }, legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.05 || 1] } },
      axes: [{ ...axis, size: 30, values: (_, ticks) => ticks.map(form) },
        { ...axis, size: 60, values: (_, ticks) => ticks.map(rate) }],
      series: [{}, { stroke: mark, fill: mark, paths: bars, points: { show: false } }],
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
  const peak = counts.indexOf(Math.max(...counts));
  return `from ${form(edges[0])} to ${form(edges[edges.length - 1])}; most, ${number(counts[peak])}, `
    + `from ${form(edges[peak])} to ${form(edges[peak + 1])}`;
}

// The waiting of runs that stream a dataset now.
export function Waiting({ rows, isOfOne }) {
  return html`<${Table} caption="GPU time that ranks of these runs lose to waiting" rows=${rows} limit=${6}
    words=${({ dataset }) => dataset} columns=${[
    ...(isOfOne ? [] : [["dataset", "dataset"]]), ["ranks", (row) => Number(row.world_size), number],
    ["batch size", (row) => Number(row.batch_size), number], ["balance", "balance"], ["wait at every", "wait"],
    ["idle", "idle_share", percent]]} />`;
}

export function Dataset({ dataset, facts }) {
  const { costly, lengths, fullness, components } = dataset;
  const isComputed = costly !== null && typeof costly === "object";
  const heading = useRef();
  useEffect(() => { if (facts.server) heading.current.focus(); }, [dataset.name]);
  const ours = (rows) => rows.filter((row) => row.dataset === dataset.name);
  const plan = [
    ["efficiency", percent(dataset.efficiency), `${percent(1 - dataset.efficiency)} of bins is padding`],
    ["max_seq_len", number(dataset.max_seq_len), "tokens"],
    ["sequences", number(dataset.num_sequences)], ["tokens", number(dataset.total_tokens)],
    ["bins", number(dataset.num_bins), `lower bound ${number(dataset.lower_bound)}`],
    ["gap", percent(dataset.gap), "bins beyond the lower bound"],
    ["packer", dataset.algorithm],
    ...(isComputed ? [["padding avoided", number(costly.padding_avoided_tokens), "tokens"]] : []),
    ...(isComputed && costly.version !== null ? [["version", text(costly.version)]] : []),
  ];
  return html`<section aria-labelledby="dataset">
    <h2 id="dataset" tabindex="-1" ref=${heading}>${dataset.name}</h2>
    ${components.length > 0 && html`<p>a mixture of ${components.map((name, i) => html`${i ? ", " : ""}<a
      href=${addressOf(name)}>${name}</a>`)}, which have plots and figures of their own</p>`}
    <p class="digest">digest ${dataset.digest}</p>
    <dl class="facts" aria-label="Plan">${plan.map(([name, value, more]) => html`
      <div><dt>${name}</dt><dd>${value} <small>${more}</small></dd></div>`)}</dl>
    ${lengths && html`<div class="plots">
      <${Plot} title="Sequences by length in tokens" ...${lengths} form=${rate} summary=${highest(lengths, number)} />
      <${Plot} title="Bins by fullness" ...${fullness} form=${(share) => `${Math.round(100 * share)} %`}
        summary=${highest(fullness, percent)} />
    </div>`}
    ${facts.server && html`<h3>Runs</h3>
      <${Runs} runs=${ours(facts.activity.runs)} ...${facts} streams=${facts.activity.streams} limit=${12} />
      <${Waiting} rows=${ours(facts.server.waiting)} isOfOne />`}
    ${!components.length && html`<h3>What else you could choose</h3>
      ${isComputed ? html`<${Costly} ...${costly} own=${dataset.max_seq_len} />`
        : html`<p role="status">${costly === "computing" ? "Computing: it takes seconds" : costly ?? "Asking"}.</p>`}`}
  </section>`;
}

function Costly({ context_lengths, packers, without_packing, waiting, own }) {
  const policies = waiting.length ? Object.keys(waiting[0].balances) : [];
  const shape = waiting.length ? `, with ${waiting[0].accumulation} steps to an optimizer step` : "";
  const idle = (where, field) => html`<${Table} rows=${waiting} columns=${[["ranks", "world_size", number],
    ...policies.map((name) => [name, ({ balances }) => balances[name][field], percent])]}
    caption=${`GPU time that ranks lose if they wait at ${where}, by balance${shape}`} />`;
  return html`
    <${Table} caption="With another max_seq_len" rows=${context_lengths} columns=${[
      ["max_seq_len", "max_seq_len", (value) => number(value) + (value === own ? " (this)" : "")],
      ["bins", "bins", number], ["efficiency", "efficiency", percent], ["padded instead", "padded_efficiency", percent],
      ["sequences cut", "sequences_cut", number], ["tokens cut", "tokens_cut", number]]} />
    <${Table} caption="With another packer" rows=${packers} columns=${[
      ["packer", "algorithm"], ["bins", "bins", number], ["efficiency", "efficiency", percent],
      ["gap", "gap", percent], ["time to plan", "seconds", seconds]]} />
    <${Table} caption="Without packing" rows=${without_packing} columns=${[
      ["way", "way"], ["rows", "rows", number], ["computed tokens", "computed_tokens", number],
      ["efficiency", "efficiency", percent]]} />
    ${idle("every step", "idle_share_at_steps")}
    ${idle("optimizer steps", "idle_share_at_optimizer_steps")}`;
}

export function Datasets({ datasets, runs }) {
  const inUse = (name) => runs.filter(({ dataset }) => dataset === name).length;
  return html`<section aria-labelledby="datasets"><h2 id="datasets">Datasets</h2>
    <${Table} caption="Datasets" rows=${datasets} empty="none is served" isTitled keyOf=${({ name }) => name}
      words=${({ name, components }) => [name, ...components].join(" ")} columns=${[
        ["dataset", "name", (name, { components }) => html`<a href=${addressOf(name)}>${name}</a>${
          components.length > 0 && html` <small>mixture of ${components.length}</small>`}`],
        ["runs", ({ name }) => inUse(name), number], ["max_seq_len", "max_seq_len", number],
        ["sequences", "num_sequences", number], ["bins", "num_bins", number], ["tokens", "total_tokens", rate],
        ["efficiency", "efficiency", percent], ["gap", "gap", percent],
        ["packer", "algorithm"]]} />
  </section>`;
}
