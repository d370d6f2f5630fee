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
  const kinds = [
    { name: "streams", used: "streams", most: "max_streams" },
    { name: "memory", used: "memory_bytes", most: "memory_limit_bytes" },
    { name: "open files", used: "open_files", most: "most_open_files" },
  ];
  const isFull = ({ used, most }) => servers.some((each) => each[most] && each[used] > NEARLY_FULL * each[most]);
  const who = server.num_processes > 1 ? "A process" : "The process";
  return kinds.filter(isFull).map(({ name }) => `${who} is near its limit of ${name}`);
}

// The status: a level, a word, and what is the matter, as { level, sentence }, the worst first.
export function judge(facts, trouble, history) {
  const bad = (sentence) => ({ level: "bad", sentence });
  const care = (sentence) => ({ level: "care", sentence });
  if (!facts) return trouble ? { level: "bad", word: "No answer", matters: [bad(trouble)] } : null;
  const { server, activity } = facts;
  const matters = [];
  if (trouble) matters.push(bad(trouble));
  if (!server.is_serving) matters.push(bad("It answers here, and gives trainers nothing: the log says why"));
  for (const [name, days] of Object.entries(server.certificate_days)) {
    if (days < FEW_DAYS) matters.push((days > 0 ? care : bad)(`Certificate ${name}: ${daysLeft(days)}`));
  }
  const missing = server.num_processes - activity.servers.length;
  if (missing > 0) matters.push(care(`No answer from ${several(missing, "process", "processes")}`));
  const waiting = waitingNames(facts);
  if (waiting.length) matters.push(care(`Not served: ${listed(waiting)}; the log says why`));
  const others = server.unusable_files.filter(({ name }) => !waiting.includes(name));
  if (others.length) matters.push(care(`Not in use as it is: ${listed(others.map(nameOf))}; the log says why`));
  for (const limit of nearLimits(facts)) matters.push(care(limit));
  const refused = newRefusals(history);
  if (refused) matters.push(care(`${several(refused, "call")} refused in the last minute`));
  matters.sort((one, other) => one.level.localeCompare(other.level)); // "bad" before "care"
  const level = matters.length ? matters[0].level : "fine";
  const broken = trouble ? "No answer" : server.is_serving ? "Certificate expired" : "Not serving";
  return { level, matters, word: { fine: "Serving", care: "Serving, with trouble", bad: broken }[level] };
}

// Lists the first few, and counts the others.
function listed(names, most = 3) {
  return names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} more` : names.join(", ");
}

// The facts behind the status: { name, value, more, flag } of each, where a flag is the level of one that is the matter.
function factsOf({ server, activity, datasets }, history) {
  const { servers } = activity;
  const uptime = Math.max(...servers.map(({ uptime_seconds }) => uptime_seconds));
  const began = new Date(Date.now() - 1000 * uptime);
  const refused = Object.entries(server.refused_calls).sort((one, other) => other[1] - one[1]);
  const lanes = Object.entries(server.lanes).filter(([, count]) => count);
  return [
    {
      name: "up since",
      value: began.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }),
      more: seconds(uptime),
    },
    { name: "version", value: server.version, more: `wire version ${server.wire_version}` },
    processesOf(server, servers),
    {
      name: "sent",
      value: `${rate(total(activity.datasets.map((each) => each.tokens_per_second)))} tokens/s`,
      more: html`<${Sparkline} points=${history.map(({ at, tokens }) => ({ at, value: tokens }))} label="tokens a second, lately" />`,
    },
    {
      name: "refused calls",
      value: number(total(refused.map(([, count]) => count))),
      more: listed(refused.map(([reason, count]) => `${reason} ${number(count)}`), 1),
      flag: newRefusals(history) ? "care" : null,
    },
    certificatesOf(server),
    {
      name: "unusable files",
      value: number(server.unusable_files.length),
      more: listed(server.unusable_files.map(nameOf), 2),
      flag: server.unusable_files.length ? "care" : null,
    },
    waitingDatasetsOf(server, datasets),
    {
      name: "work that waits",
      value: several(total(lanes.map(([, count]) => count)), "time slice"),
      more: listed(lanes.map(([name, count]) => `${name} ${number(count)}`), 2),
    },
  ];
}

function processesOf(server, servers) {
  const isAll = servers.length === server.num_processes;
  const processors = total(servers.map((each) => each.processors)).toFixed(2);
  return {
    name: "processes",
    value: isAll ? number(servers.length) : `${servers.length} of ${server.num_processes}`,
    more: `${processors} processors, ${bytes(total(servers.map((each) => each.memory_bytes)))}`,
    flag: isAll ? null : "care",
  };
}

function certificatesOf(server) {
  const soonestFirst = Object.entries(server.certificate_days).sort((one, other) => one[1] - other[1]);
  if (!soonestFirst.length) return { name: "certificates", value: "none", more: "plain text" };
  const [[, days]] = soonestFirst;
  return {
    name: "certificates",
    value: daysLeft(days),
    more: listed(soonestFirst.map(([name]) => name), 1),
    flag: days < FEW_DAYS ? (days > 0 ? "care" : "bad") : null,
  };
}

function waitingDatasetsOf(server, datasets) {
  const waiting = waitingNames({ server, datasets });
  return {
    name: "datasets that wait",
    value: `${waiting.length} of ${number(datasets.length + waiting.length)}`,
    more: waiting.length ? listed(waiting, 2) : "all are served",
    flag: waiting.length ? "care" : null,
  };
}

export function Health({ facts, status, history, at }) {
  const { level, word, matters } = status;
  return html`<section class=${`health ${level}`} aria-labelledby="health">
    <div class="state"><h2 id="health">Does it serve?</h2>
      <p class="word" role="status"><${Mark} level=${level} /> ${word}</p>
      ${at && html`<p class="quiet">as of ${new Date(at).toLocaleTimeString("en-GB")}</p>`}
    </div>
    ${facts && html`<dl class="facts">${factsOf(facts, history).map(({ name, value, more, flag }) => html`
      <div class=${flag ?? ""}><dt>${name}</dt><dd>
        ${flag && html`<${Mark} level=${flag} /> `}${value} <small>${more}</small></dd></div>`)}</dl>`}
    ${matters.length > 0 && html`<ul class="matters">${matters.map((matter) => html`
      <li class=${matter.level}><${Mark} level=${matter.level} /> ${matter.sentence}</li>`)}</ul>`}
  </section>`;
}
