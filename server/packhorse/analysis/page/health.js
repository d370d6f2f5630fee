// Does it serve: the status in a word and a shape, why, and the facts behind it.
import { html } from "./preact.js";
import { bytes, number, rate, seconds, several, total } from "./forms.js";
import { newRefusals } from "./history.js";
import { Mark, Sparkline } from "./marks.js";

const FEW_DAYS = 7; // left of a certificate, as in the alert
const NEARLY_FULL = 0.9;

const nameOf = ({ kind, name }) => (name ? `${kind} ${name}` : kind);

const daysLeft = (days) => (days > 0 ? `${days.toFixed(1)} days left` : `expired ${(-days).toFixed(1)} days ago`);

// Datasets and mixtures that have files here and are not served until those are put right.
const waitingNames = ({ server, datasets }) => {
  const served = new Set(datasets.map(({ name }) => name));
  const theirs = server.unusable_files.filter(({ kind }) => ["dataset", "mixture", "takedown"].includes(kind));
  return [...new Set(theirs.map(({ name }) => name))].filter((name) => name && !served.has(name));
};

function nearLimits({ server, activity: { servers } }) {
  const kinds = [["streams", "streams", "max_streams"], ["memory", "memory_bytes", "memory_limit_bytes"],
    ["open files", "open_files", "most_open_files"]];
  const isFull = ([, used, most]) => servers.some((each) => each[most] && each[used] > NEARLY_FULL * each[most]);
  const who = server.num_processes > 1 ? "A process" : "The process";
  return kinds.filter(isFull).map(([name]) => `${who} is near its limit of ${name}`);
}

// The status: a level, a word, and what is the matter, as [level, sentence], the worst first.
export function judge(facts, trouble, history) {
  if (!facts) return trouble ? { level: "bad", word: "No answer", matters: [["bad", trouble]] } : null;
  const { server, activity } = facts;
  const certificates = Object.entries(server.certificate_days);
  const matters = [];
  if (trouble) matters.push(["bad", trouble]);
  if (!server.is_serving) matters.push(["bad", "It answers here, and gives trainers nothing: the log says why"]);
  for (const [name, days] of certificates) {
    if (days < FEW_DAYS) matters.push([days > 0 ? "care" : "bad", `Certificate ${name}: ${daysLeft(days)}`]);
  }
  const missing = server.num_processes - activity.servers.length;
  if (missing > 0) matters.push(["care", `No answer from ${several(missing, "process", "processes")}`]);
  const waiting = waitingNames(facts);
  if (waiting.length) matters.push(["care", `Not served: ${listed(waiting)}; the log says why`]);
  const others = server.unusable_files.filter(({ name }) => !waiting.includes(name));
  if (others.length) matters.push(["care", `Not in use as it is: ${listed(others.map(nameOf))}; the log says why`]);
  for (const limit of nearLimits(facts)) matters.push(["care", limit]);
  const refused = newRefusals(history);
  if (refused) matters.push(["care", `${several(refused, "call")} refused in the last minute`]);
  matters.sort(([one], [other]) => one.localeCompare(other)); // "bad" before "care"
  const level = matters.length ? matters[0][0] : "fine";
  const broken = trouble ? "No answer" : server.is_serving ? "Certificate expired" : "Not serving";
  return { level, matters, word: { fine: "Serving", care: "Serving, with trouble", bad: broken }[level] };
}

// Lists the first few, and counts the others.
function listed(names, most = 3) {
  return names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} more` : names.join(", ");
}

function factsOf({ server, activity, datasets }, history) {
  const { servers } = activity;
  const certificates = Object.entries(server.certificate_days).sort((one, other) => one[1] - other[1]);
  const days = certificates.length ? certificates[0][1] : null;
  const refused = Object.entries(server.refused_calls).sort((one, other) => other[1] - one[1]);
  const waiting = waitingNames({ server, datasets });
  const lanes = Object.entries(server.lanes).filter(([, count]) => count);
  const uptime = Math.max(...servers.map(({ uptime_seconds }) => uptime_seconds));
  const began = new Date(Date.now() - 1000 * uptime);
  const isAll = servers.length === server.num_processes;
  return [
    ["up since", began.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }),
      seconds(uptime)],
    ["version", server.version, `wire version ${server.wire_version}`],
    ["processes", isAll ? number(servers.length) : `${servers.length} of ${server.num_processes}`,
      `${total(servers.map((each) => each.processors)).toFixed(2)} processors, ${
        bytes(total(servers.map((each) => each.memory_bytes)))}`, isAll ? null : "care"],
    ["sent", `${rate(total(activity.datasets.map((each) => each.tokens_per_second)))} tokens/s`,
      html`<${Sparkline} points=${history.map(({ at, tokens }) => ({ at, value: tokens }))} label="tokens a second, lately" />`],
    ["refused calls", number(total(refused.map(([, count]) => count))),
      listed(refused.map(([reason, count]) => `${reason} ${number(count)}`), 1), newRefusals(history) ? "care" : null],
    ["certificates", days === null ? "none" : daysLeft(days),
      days === null ? "plain text" : listed(certificates.map(([name]) => name), 1),
      days !== null && days < FEW_DAYS ? (days > 0 ? "care" : "bad") : null],
    ["unusable files", number(server.unusable_files.length), listed(server.unusable_files.map(nameOf), 2),
      server.unusable_files.length ? "care" : null],
    ["datasets that wait", `${waiting.length} of ${number(datasets.length + waiting.length)}`,
      waiting.length ? listed(waiting, 2) : "all are served", waiting.length ? "care" : null],
    ["work that waits", several(total(lanes.map(([, count]) => count)), "time slice"),
      listed(lanes.map(([name, count]) => `${name} ${number(count)}`), 2)],
  ];
}

export function Health({ facts, status, history, at }) {
  const { level, word, matters } = status;
  return html`<section class=${`health ${level}`} aria-labelledby="health">
    <div class="state"><h2 id="health">Does it serve?</h2>
      <p class="word" role="status"><${Mark} level=${level} /> ${word}</p>
      ${at && html`<p class="quiet">as of ${new Date(at).toLocaleTimeString("en-GB")}</p>`}
    </div>
    ${facts && html`<dl class="facts">${factsOf(facts, history).map(([name, value, more, flag]) => html`
      <div class=${flag ?? ""}><dt>${name}</dt><dd>
        ${flag && html`<${Mark} level=${flag} /> `}${value} <small>${more}</small></dd></div>`)}</dl>`}
    ${matters.length > 0 && html`<ul class="matters">${matters.map(([kind, sentence]) => html`
      <li class=${kind}><${Mark} level=${kind} /> ${sentence}</li>`)}</ul>`}
  </section>`;
}
