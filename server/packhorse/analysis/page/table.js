// A table that can be sorted, and searched where it has more rows than it shows. It always says how many there are.
import { html, useState } from "./preact.js";
import { number, text } from "./forms.js";

const MORE = 50;

const isMissing = (value) => value === null || value === undefined;

function compare(one, other) {
  return typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}

function inOrder(rows, valueOf, isDescending) {
  return [...rows].sort((one, other) => {
    const [first, second] = [valueOf(one), valueOf(other)];
    if (isMissing(first) || isMissing(second)) return isMissing(first) - isMissing(second); // these come last
    return isDescending ? -compare(first, second) : compare(first, second);
  });
}

// columns: [heading, key or function of a row, form of the value and the row]; the first is the row's heading.
// words: a row's text for the search. order: [heading, is descending], of the first look.
export function Table({ caption, columns, rows, empty, words, order, limit = 12, keyOf, isTitled, isCards }) {
  const [query, setQuery] = useState("");
  const [sorted, setSorted] = useState(order ?? null);
  const [numShown, setNumShown] = useState(limit);
  if (!rows.length) return empty ? html`<p>${isTitled ? "" : `${caption}: `}${empty}.</p>` : null;
  const read = (of, row) => (typeof of === "function" ? of(row) : row[of]);
  const found = query ? rows.filter((row) => words(row).toLowerCase().includes(query.trim().toLowerCase())) : rows;
  const by = sorted && columns.find(([name]) => name === sorted[0]);
  const shown = (by ? inOrder(found, (row) => read(by[1], row), sorted[1]) : found).slice(0, numShown);
  const isNumber = columns.map(([, of]) => !rows.some((row) => typeof read(of, row) === "string"));
  const sort = (name, i) => setSorted(sorted?.[0] === name ? [name, !sorted[1]] : [name, isNumber[i]]);
  const direction = (name) => (sorted?.[0] === name ? (sorted[1] ? "descending" : "ascending") : undefined);
  const cell = (row, [name, of, form = text], i) => {
    const content = form(read(of, row), row);
    return i ? html`<td class=${isNumber[i] ? "number" : ""} data-name=${name}>${content}</td>`
      : html`<th scope="row" class=${isNumber[i] ? "number" : ""}>${content}</th>`;
  };
  const count = query ? `${number(shown.length)} of ${number(found.length)} found among ${number(rows.length)}`
    : `${number(shown.length)} of ${number(rows.length)}`;
  const isPart = query || rows.length > limit;
  return html`<div class="rows">
    ${words && isPart && html`<label class="search">Search <input type="search" value=${query}
      aria-label=${`Search: ${caption}`} onInput=${(event) => setQuery(event.target.value)} /></label>`}
    <div class=${`table ${isCards ? "cards" : ""}`} role="region" aria-label=${caption} tabindex="0"><table>
      <caption class=${isTitled ? "unseen" : ""}>${caption}</caption>
      <thead><tr>${columns.map(([name], i) => html`<th scope="col" class=${isNumber[i] ? "number" : ""}
        aria-sort=${direction(name)}>${rows.length > 1
          ? html`<button type="button" onClick=${() => sort(name, i)}>${name}</button>` : name}</th>`)}</tr></thead>
      <tbody>${shown.map((row, i) => html`<tr key=${keyOf ? keyOf(row) : i}>${
        columns.map((column, j) => cell(row, column, j))}</tr>`)}</tbody>
    </table></div>
    ${isPart && html`<p class="count" role="status">${count}
      ${shown.length < found.length && html` <button type="button" onClick=${() => setNumShown(numShown + MORE)}>Show ${
        number(Math.min(MORE, found.length - shown.length))} more</button>`}</p>`}
  </div>`;
}
