// The page for people: what it asks of the service, and how it shows the answers.
//
// Names, owners and metadata are text from clients, so everything is shown through `textContent`. The key stays in a
// variable: it is in no address and no storage, and is gone with the page.
"use strict";

const REFRESH_MS = 3000;
const PAGE_SIZE = "50";

const part = (id) => document.getElementById(id);

let key = "";
let prefix = "";
// The page tokens of the pages before this one and of this one, and that of the next.
let pages = [""];
let nextPage = "";
// The button with the focus that turned the page, until the page is there.
let turnedBy = null;
// The name of the lock whose details are shown; null if none are.
let shown = null;
// The fencing tokens of the holders that are shown.
let shownTokens = [];
// The requests of the last refresh. A later refresh aborts them, so that an older answer never replaces a newer one.
let requests = new AbortController();
let timer;
// The cells with the remaining time of a lease, and when each ends by `performance.now()`.
let countdowns = [];

// What went wrong, with what a person can do about it.
class Refusal extends Error {
  constructor(title, detail, status = 0, retryAfter = 0) {
    super(detail ? `${title}: ${detail}` : title);
    Object.assign(this, { status, retryAfter });
  }
}

// The value of a JSON text; null if it is none. Metadata becomes the text that the client sent: a value of JavaScript has
// rounded numbers, and of several entries with one name only the last.
function parse(text) {
  const json = [];
  let metadata = null;
  let depth = 0;
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[^\s"{}:,]+|\S/g) ?? []) {
    if (token === "{" && json.at(-1) === ":" && json.at(-2) === '"metadata"') {
      metadata ??= [];
    }
    (metadata ?? json).push(token);
    if (metadata) {
      depth += (token === "{") - (token === "}");
      if (depth === 0) {
        json.push(JSON.stringify(metadata.join("")));
        metadata = null;
      }
    }
  }
  try {
    return JSON.parse(json.join(" "));
  } catch {
    return null;
  }
}

// JSON without characters that nobody sees, some of which change the order of what follows.
function visible(json) {
  return json.replace(/\p{Cf}|\p{Cc}|\p{Zl}|\p{Zp}/gu, (it) => it.split("").map((unit) =>
    `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));
}

// Sends a request and returns the JSON of its answer. `path` is as in the OpenAPI document. It is relative to the page,
// so that a proxy may serve both below another path.
async function ask(method, path, { name = "", query = {}, signal } = {}) {
  const encoded = name.split("/").map(encodeURIComponent).join("/");
  const search = new URLSearchParams(query).toString();
  const url = `.${path.replace("{name}", () => encoded)}${search && `?${search}`}`;
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let response, body;
  try {
    response = await fetch(url, { method, headers, signal, cache: "no-store", redirect: "error" });
    body = parse(await response.text());
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refusal("No answer", error.message);
  }
  // A process that is not ready says why in an ordinary answer.
  if (body && (response.ok || body.checks)) {
    return body;
  }
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  throw new Refusal(body?.title ?? `Status ${response.status}`, body?.detail, response.status, retryAfter);
}

function report(error, place = "problem") {
  const advice = error?.status === 401 ? ". Enter a key above." : "";
  part(place).textContent = error ? error.message + advice : "";
  part(place).hidden = !error;
}

// Asks for everything that is shown, and again after a while.
async function refresh() {
  clearTimeout(timer);
  requests.abort();
  requests = new AbortController();
  const { signal } = requests;
  try {
    await Promise.all([showHealth(signal), showLocks(signal), showLock(signal)]);
    report(null);
    schedule(0, signal);
  } catch (error) {
    if (signal.aborted) {
      return;
    }
    report(error);
    // What has to be corrected is not asked again: a refused key, for one, counts as a failure of this address.
    const mayPass = error.status < 400 || error.status === 429 || error.status >= 500;
    if (mayPass) {
      schedule(error.retryAfter, signal);
    }
  }
}

function schedule(retryAfter, signal) {
  // A page that nobody sees asks for nothing; `visibilitychange` continues.
  if (!signal.aborted && !document.hidden) {
    timer = setTimeout(refresh, Math.max(REFRESH_MS, retryAfter * 1000));
  }
}

async function showHealth(signal) {
  const health = await ask("GET", "/readyz", { query: { verbose: "true" }, signal });
  const failed = health.checks.filter((check) => !check.ok);
  part("status").textContent = failed.length ? `${health.status}, ${failed.length} failed` : health.status;
  part("status").className = failed.length ? "bad" : "";
  const items = health.checks.map((check) => {
    const item = element("li", `${check.ok ? "ok" : "failed"}: ${check.name}: ${check.detail}`);
    item.className = check.ok ? "" : "bad";
    return item;
  });
  part("checks").replaceChildren(...items);
}

async function showLocks(signal) {
  const query = { prefix, page_size: PAGE_SIZE, page_token: pages.at(-1) };
  const page = await ask("GET", "/locks", { query, signal });
  countdowns = countdowns.filter(({ cell }) => !part("locks").contains(cell));
  // The rows are made anew, so the focus has to be put back.
  const focused = document.activeElement?.dataset?.lock;
  part("locks").replaceChildren(...page.locks.map(lockRow));
  const buttons = [...part("locks").querySelectorAll("button")];
  buttons.find((button) => button.dataset.lock === focused)?.focus();
  nextPage = page.next_page_token;
  part("no-locks").hidden = page.locks.length > 0;
  part("next").disabled = !nextPage;
  part("previous").disabled = pages.length === 1;
  // A button that is disabled loses the focus.
  turnedBy?.focus();
  turnedBy = null;
}

function lockRow(lock) {
  const button = element("button", lock.name);
  button.type = "button";
  button.dataset.lock = lock.name;
  button.addEventListener("click", () => showDetails(lock.name));
  const [first] = lock.holders;
  const others = lock.holders_total > 1 ? ` and ${lock.holders_total - 1} more` : "";
  return row(button, lock.state, first ? first.owner + others : "", first?.fencing_token ?? "", remaining(first),
    lock.queue_length);
}

async function showLock(signal) {
  if (shown === null) {
    return;
  }
  const lock = await ask("GET", "/locks/{name}", { name: shown, signal });
  countdowns = countdowns.filter(({ cell }) => !part("holders").contains(cell));
  const hidden = lock.holders_total - lock.holders.length;
  const cooling = lock.free_in_ms === null ? "" : `; it stays closed for ${seconds(lock.free_in_ms)}`;
  part("lock-state").textContent = lock.state + cooling + (hidden > 0 ? `; ${hidden} more holders are not listed` : "");
  part("holders").replaceChildren(...lock.holders.map(holderRow));
  shownTokens = lock.holders.map((holder) => holder.fencing_token);
  const head = lock.queue_head;
  const first = head && `; the first is “${head.owner}”, ${modeOf(head)}, since ${head.waiting_since}`;
  part("queue").textContent = `Waiting: ${lock.queue_length}${first ?? ""}`;
}

function holderRow(holder) {
  const metadata = visible(holder.metadata ?? "");
  return row(holder.owner, holder.fencing_token, modeOf(holder), holder.hold_count, holder.acquired_at,
    remaining(holder), metadata);
}

function modeOf({ mode, limit, permits }) {
  return limit === null ? mode : `${mode}, ${permits} of ${limit}`;
}

// A cell that counts down the rest of the lease.
function remaining(holder) {
  const cell = element("td", "");
  if (holder) {
    countdowns.push({ cell, end: performance.now() + holder.expires_in_ms });
    cell.textContent = seconds(holder.expires_in_ms);
  }
  return cell;
}

// Rounded down, so that the rest of a lease is never overstated.
function seconds(milliseconds) {
  const whole = Math.floor(Math.max(0, milliseconds) / 1000);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

function row(...contents) {
  const line = element("tr", "");
  line.append(...contents.map((content) => {
    if (content.tagName === "TD") {
      return content;
    }
    const cell = element("td", content.tagName ? "" : content);
    cell.append(...(content.tagName ? [content] : []));
    return cell;
  }));
  return line;
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function showDetails(name) {
  shown = name;
  shownTokens = [];
  for (const id of ["lock-state", "queue", "holders"]) {
    part(id).textContent = "";
  }
  part("reason").value = "";
  report(null, "evict-problem");
  part("lock-heading").textContent = name;
  part("lock").hidden = false;
  part("lock-heading").focus();
  refresh();
}

function turnTo(tokens) {
  pages = tokens;
  // The next page is that of the answer to come.
  nextPage = "";
  turnedBy = [part("next"), part("previous")].find((button) => button === document.activeElement);
  part("next").disabled = part("previous").disabled = true;
  refresh();
}

function onSubmit(id, action) {
  part(id).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

onSubmit("key-form", () => {
  key = part("key").value.trim();
  part("key").value = "";
  part("key-state").textContent = key ? "A key is used until this page is closed." : "No key is used.";
  turnTo([""]);
});
onSubmit("filter-form", () => {
  prefix = part("prefix").value.trim();
  turnTo([""]);
});
onSubmit("evict-form", async () => {
  const [name, tokens] = [shown, shownTokens];
  if (!confirm(`Take ${name} from its holders?`)) {
    return;
  }
  try {
    // While the question was open, others may have been granted the lock.
    const lock = await ask("GET", "/locks/{name}", { name });
    const isShown = (holder) => tokens.includes(holder.fencing_token);
    if (!lock.holders.length || !lock.holders.every(isShown)) {
      throw new Refusal("Nobody was evicted", "the holders have changed");
    }
    const query = { force: "true", reason: part("reason").value };
    const evicted = await ask("DELETE", "/locks/{name}", { name, query });
    if (!evicted.evicted_total) {
      throw new Refusal("Nobody was evicted", "nobody held the lock any more");
    }
    part("reason").value = "";
    report(null, "evict-problem");
    refresh();
    // The lock may have been granted to others once more, after its holders were compared.
    const others = evicted.evicted.filter((holder) => !isShown(holder));
    if (others.length) {
      const names = others.map((holder) => `${holder.owner} (${holder.fencing_token})`);
      throw new Refusal("Others have just been granted the lock, and were evicted too", names.join(", "));
    }
  } catch (error) {
    report(error, "evict-problem");
  }
});
part("next").addEventListener("click", () => turnTo([...pages, nextPage]));
part("previous").addEventListener("click", () => turnTo(pages.slice(0, -1)));
part("close").addEventListener("click", () => {
  shown = null;
  part("lock").hidden = true;
  part("prefix").focus();
  refresh();
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
setInterval(() => countdowns.forEach(({ cell, end }) => {
  cell.textContent = seconds(end - performance.now());
}), 1000);
ask("GET", "/version").then((build) => {
  part("version").textContent = `${build.version}, ${build.store}`;
}, report);
refresh();
