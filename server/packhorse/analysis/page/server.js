// What lies below the first screen: every stream, and the server's own tables.
import { html } from "./preact.js";
import { Waiting } from "./dataset.js";
import { bytes, number, rate, roundPercent, seconds } from "./forms.js";
import { Table } from "./table.js";

const FEW = 6;

const pairs = (facts) => Object.entries(facts).map(([name, value]) => ({ name, value }));
const of = (most) => (value, row) => `${number(value)} of ${number(row[most])}`;

export function Streams({ streams }) {
  return html`<section aria-labelledby="streams"><h2 id="streams">Streams, the last first</h2>
    <${Table} caption="Streams, the last first" rows=${streams} empty="none is open" isTitled keyOf=${({ id }) => id}
      words=${(each) => `${each.id} ${each.dataset || each.method} seed ${each.seed} epoch ${each.epoch} `
        + `rank ${each.rank} worker ${each.worker}`}
      columns=${[["stream", "id"], ["dataset", ({ dataset, method }) => dataset || method], ["seed", "seed", String],
        ["epoch", "epoch", number], ["rank", "rank", number], ["worker", "worker", number],
        ["step", "next_step", of("num_steps")], ["behind", "behind_steps", (value) => `${number(value)} steps`],
        ["steps/s", "steps_per_second", rate], ["sent", "bytes_per_second", (value) => `${bytes(value)}/s`],
        ["server ahead", "blocked_share", roundPercent], ["open", "open_seconds", seconds]]} />
  </section>`;
}

export function Server({ server, activity }) {
  const { servers } = activity;
  return html`<section aria-labelledby="server"><h2 id="server">Server</h2>
    <${Table} caption="Not in use as it is: the log says why" rows=${server.unusable_files}
      limit=${FEW} words=${({ kind, name }) => `${kind} ${name}`} columns=${[["file", "kind"], ["of", "name"]]} />
    <${Table} caption=${servers.length > 1 ? "Processes" : "Process"} rows=${servers} limit=${FEW}
      words=${({ process }) => process}
      columns=${[["process", "process"], ["up", "uptime_seconds", seconds], ["streams", "streams", of("max_streams")],
        ["processors", "processors", (value) => value.toFixed(2)], ["memory", "memory_bytes", bytes],
        ["memory limit", "memory_limit_bytes", bytes], ["connections", "connections", number],
        ["open files", "open_files", of("most_open_files")]]} />
    <div class="plots">
      <${Table} caption="Refused calls, by reason" rows=${pairs(server.refused_calls)} empty="none"
        limit=${FEW} words=${({ name }) => name} columns=${[["reason", "name"], ["calls", "value", number]]} />
      <${Table} caption="Certificates" rows=${pairs(server.certificate_days)} empty="none"
        columns=${[["file", "name"], ["left", "value", (value) => `${value.toFixed(1)} days`]]} />
      <${Table} caption="Work that waits, by lane" rows=${pairs(server.lanes)} empty="none"
        columns=${[["lane", "name"], ["time slices", "value", number]]} />
      <${Table} caption="Sent" rows=${activity.datasets} limit=${FEW} words=${({ dataset }) => dataset} columns=${[
        ["dataset", "dataset"], ["bins/s", "bins_per_second", rate], ["tokens/s", "tokens_per_second", rate]]} />
      <${Waiting} rows=${server.waiting} />
    </div>
  </section>`;
}
