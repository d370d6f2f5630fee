// Shows the status document, of a server (asked every few seconds) or of a file (in the page). Changes nothing.
// The server computes every figure; here they get their form, and the last minutes are remembered.
import { html, render, useEffect, useRef, useState } from "./preact.js";
import { Dataset, Datasets } from "./dataset.js";
import { Health, judge } from "./health.js";
import { remember } from "./history.js";
import { Mark } from "./marks.js";
import { Wasted, WhoWaits } from "./runs.js";
import { Server, Streams } from "./server.js";

const REFRESH_MS = 3000;
const PATIENCE_MS = 15_000;

// The dataset that the address names, null on the first screen.
function nameInAddress() {
  const [, name] = /^#\/dataset\/(.+)$/.exec(location.hash) ?? [];
  try {
    return name ? decodeURIComponent(name) : null;
  } catch {
    return name; // no address of ours, so it names nothing
  }
}

function useNameInAddress() {
  const [name, setName] = useState(nameInAddress);
  useEffect(() => {
    const follow = () => { setName(nameInAddress()); scrollTo(0, 0); };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return name;
}

// Asks the server again and again; `looked` is the dataset whose costly figures are wanted.
function useFacts(embedded, looked) {
  const [facts, setFacts] = useState(() => (embedded ? JSON.parse(embedded.textContent) : null));
  const [trouble, setTrouble] = useState("");
  const [refusal, setRefusal] = useState("");
  const [token, setToken] = useState(null);
  const history = useRef([]);
  useEffect(() => {
    if (embedded || refusal) return undefined;
    let timer, isOver = false;
    const ask = async () => {
      if (!document.hidden) {
        const answer = await answered(looked, token);
        if (isOver) return;
        if (answer.refusal) { setFacts(null); setRefusal(answer.refusal); return; }
        if (answer.found) {
          const at = Date.now();
          remember(history.current, answer.found, at);
          setFacts({ ...answer.found, at, history: history.current });
        }
        setTrouble(answer.trouble ?? "");
      }
      timer = setTimeout(ask, REFRESH_MS);
    };
    ask();
    return () => { isOver = true; clearTimeout(timer); };
  }, [token, refusal, looked]);
  const enter = (entered) => { setToken(entered); setRefusal(""); };
  return { facts, trouble, refusal, enter };
}

// One answer: what was found, a refusal for want of a token, or the trouble.
async function answered(looked, token) {
  try {
    const query = looked === null ? "" : `?figures=${encodeURIComponent(looked)}`;
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch(`status.json${query}`, { headers, cache: "no-store", signal });
    if (answer.status === 401 || answer.status === 403) return { refusal: await answer.text() };
    if (!answer.ok) return { trouble: `The server answered ${answer.status}: ${await answer.text()}` };
    return { found: await answer.json() };
  } catch (error) {
    return { trouble: `No answer, so these figures are old: ${error.message}` };
  }
}

function TokenForm({ refusal, enter }) {
  const submit = (event) => {
    event.preventDefault();
    enter(event.target.elements.token.value.trim());
  };
  return html`<p class="bad" role="status">${refusal}</p><form onSubmit=${submit}>
    <label>Token that may read metrics <input name="token" type="password" autocomplete="off" /></label>
    <button>Show</button></form>`;
}

function View({ facts, status, name }) {
  const { server, activity, datasets, history, at } = facts;
  const only = server || datasets.length !== 1 ? null : datasets[0].name; // a file of one dataset opens on it
  const opened = datasets.find((each) => each.name === (name ?? only));
  if (opened) return html`<${Dataset} key=${opened.name} dataset=${opened} facts=${facts} />`;
  if (name !== null) return html`<h2>${name}</h2><p>No dataset of this name is served. Its folder may be unusable: the
    log says why.</p>`;
  if (!server) return html`<${Datasets} datasets=${datasets} runs=${[]} />`;
  return html`
    <${Health} facts=${facts} status=${status} history=${history} at=${at} />
    <div class="beside"><${WhoWaits} activity=${activity} history=${history} /><${Wasted} facts=${facts} /></div>
    <${Datasets} datasets=${datasets} runs=${activity.runs} />
    <${Streams} streams=${activity.streams} />
    <${Server} server=${server} activity=${activity} />`;
}

function Page() {
  const embedded = document.getElementById("document");
  const name = useNameInAddress();
  const { facts, trouble, refusal, enter } = useFacts(embedded, name);
  const status = embedded ? null : judge(facts, trouble, facts?.history ?? []);
  const host = facts?.server?.host;
  const isAlarming = status !== null && status.level !== "fine";
  useEffect(() => {
    const parts = [isAlarming && status.word, name, host ? `${host}: Packhorse` : "Packhorse"];
    if (!embedded) document.title = parts.filter(Boolean).join(" – ");
  }, [host, name, status?.word]);
  const hasOverview = facts?.server || facts?.datasets.length > 1;
  return html`<header><h1>Packhorse${host && ` on ${host}`}</h1>
      ${name !== null && hasOverview && html`<nav aria-label="Overview"><a href="#/">Overview</a>
        ${status && html` <span class=${status.level}><${Mark} level=${status.level} /> ${status.word}</span>`}</nav>`}
    </header>
    <main>
      ${refusal && html`<${TokenForm} refusal=${refusal} enter=${enter} />`}
      ${!facts && !refusal && !status && html`<p>Asking the server.</p>`}
      ${!facts && !refusal && status && html`<${Health} status=${status} history=${[]} />`}
      ${facts && html`<${View} facts=${facts} status=${status} name=${name} />`}
    </main>`;
}

render(html`<${Page} />`, document.body);
