// Who waits, and what is wasted: the runs that are open now, and GPU time lost by dataset.
import { html } from "./preact.js";
import { addressOf, bytes, number, roundPercent, seconds, several } from "./forms.js";
import { fallsBehind, keyOf, pointsOf, withTimeLeft } from "./history.js";
import { Mark, Shares, Sparkline } from "./marks.js";
import { Table } from "./table.js";

const MOST_RUNS = 5;
const MOST_WASTES = 7;

const wordsOf = ({ dataset, seed, epoch }) => `${dataset} seed ${seed} epoch ${epoch}`;

function timeLeft(value) {
  if (value === Infinity) return "stands still";
  return value === 0 ? "sent" : value === null ? "–" : `~ ${seconds(value)}`;
}

export function Runs({ runs, streams, history, limit = MOST_RUNS }) {
  const lately = (run, field, name) => html`<${Sparkline} points=${pointsOf(history, run, field)} label=${name} />`;
  const lag = (steps, run) => html`${several(steps, "step")} ${fallsBehind(history, run)
    && html`<span class="care grows"><${Mark} level="care" /> grows</span>`}${lately(run, "lag_steps", "lag, lately")}`;
  const sent = (value, run) => html`${bytes(value)}/s${lately(run, "bytes_per_second", "sent, lately")}`;
  const rows = withTimeLeft(history, runs, streams);
  return html`<${Table} caption="Runs" rows=${rows} empty="No stream is open" order=${["lag", true]} limit=${limit}
    isTitled isCards keyOf=${keyOf} words=${wordsOf} columns=${[
      ["run", "dataset", (name, run) => html`<a href=${addressOf(name)}>${name}</a>
        <small>seed ${run.seed}, epoch ${number(run.epoch)}, ${number(run.open_ranks)} of ${
          several(run.world_size, "rank")}</small>`],
      ["progress", (run) => (run.num_steps ? run.slowest_step / run.num_steps : 0), (share, run) => html`
        <progress value=${share} aria-label=${`progress of ${wordsOf(run)}`}></progress> ${roundPercent(share)}
        <small>${number(run.slowest_step)} of ${number(run.num_steps)} steps</small>`],
      ["time left", "seconds_left", timeLeft],
      ["last rank", (run) => (run.lag_steps ? run.slowest_rank : null)],
      ["lag", "lag_steps", lag],
      ["sent", "bytes_per_second", sent], ["server ahead", "blocked_share", roundPercent]]} />`;
}

export function WhoWaits({ activity: { runs, streams, servers }, history }) {
  const maxStreams = servers.reduce((sum, { max_streams }) => sum + max_streams, 0);
  return html`<section aria-labelledby="waits"><h2 id="waits">Who waits?</h2>
    <p>${several(runs.length, "run")}, ${number(streams.length)} of ${number(maxStreams)} streams; progress and lag are those
      of a run's last rank</p>
    <${Runs} runs=${runs} streams=${streams} history=${history} />
  </section>`;
}

// Padding is a share of what bins hold, waiting one of the run's time; both together are what the GPUs do not use.
function wasteOf({ name, efficiency }, waiting, ranks) {
  const rows = waiting.filter(({ dataset }) => dataset === name);
  const idle = rows.length ? Math.max(...rows.map(({ idle_share }) => idle_share)) : null;
  const used = efficiency * (1 - (idle ?? 0));
  return { name, ranks, idle, padding: 1 - efficiency, wasted: 1 - used };
}

export function Wasted({ facts: { server, activity, datasets } }) {
  const ranksOf = (name) => activity.runs.filter(({ dataset }) => dataset === name)
    .reduce((sum, { open_ranks }) => sum + open_ranks, 0);
  const rows = datasets.map((dataset) => wasteOf(dataset, server.waiting, ranksOf(dataset.name)));
  rows.sort((one, other) => (other.ranks > 0) - (one.ranks > 0) || other.wasted - one.wasted);
  const used = rows.filter(({ ranks }) => ranks);
  const ranks = used.reduce((sum, each) => sum + each.ranks, 0);
  const share = used.reduce((sum, each) => sum + each.ranks * each.wasted, 0) / ranks;
  const isLeast = used.some(({ idle }) => idle === null);
  return html`<section aria-labelledby="wasted"><h2 id="wasted">What is wasted?</h2>
    <p>${ranks ? html`${isLeast && "at least "}<strong class="figure">${roundPercent(share)}</strong>${
      ` of the GPU time of ${several(ranks, "open rank")}`}` : "No run is open"}</p>
    <p><span class="key padding"></span> padding in bins, ${""}
      <span class="key waiting"></span> ranks waiting for each other</p>
    <${Table} caption="GPU time wasted, datasets in use first" rows=${rows} empty="No dataset is served" isTitled
      limit=${MOST_WASTES} keyOf=${({ name }) => name} words=${({ name }) => name} columns=${[
        ["dataset", "name", (name, row) => html`<a href=${addressOf(name)}>${name}</a><${Shares} parts=${[
          ["padding", row.wasted - (row.idle ?? 0)], ["waiting", row.idle ?? 0]]} />`],
        ["padding", "padding", roundPercent], ["waiting", "idle", roundPercent], ["wasted", "wasted", roundPercent]]} />
  </section>`;
}
