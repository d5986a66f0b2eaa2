"use strict";

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const keyName = "kvasir-key";
const every = 1000, seconds = 60;

let before = null; // the last status
let past = []; // those of the last seconds: rates of workers are taken over all of them
let rates = []; // tokens a second, the last minute
let timer = 0, polling = false;

// headers of every request; the key lives as long as the tab.
function headers(more) {
  const key = sessionStorage.getItem(keyName);
  return key ? { ...more, Authorization: `Bearer ${key}` } : { ...more };
}

function show(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function state(kind, text) {
  $("state").className = `state ${kind}`;
  show("state-text", text);
}

function askForKey(why) {
  const form = $("key-form");
  show("key-error", sessionStorage.getItem(keyName) ? why : "");
  state("lost", "Locked");
  if (form.hidden) {
    form.hidden = false;
    $("key").focus();
  }
}

async function refuseText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answers with status ${response.status}.`;
  }
}

async function poll() {
  if (polling) return;
  polling = true;
  clearTimeout(timer);
  try {
    const response = await fetch("/status.json", { headers: headers(), cache: "no-store" });
    if (response.status === 401 || response.status === 403) {
      askForKey(await refuseText(response));
      return; // goes on with a key
    }
    if (!response.ok) throw new Error(await refuseText(response));
    update(await response.json());
    $("key-form").hidden = true;
    state("live", "Live");
  } catch {
    state("lost", "No answer");
    before = null;
  } finally {
    polling = false;
  }
  timer = setTimeout(poll, document.hidden ? 5 * every : every);
}

function update(s) {
  const passed = before && s.since_ms === before.since_ms ? (s.time_ms - before.time_ms) / 1000 : 0;
  show("model", s.model);
  document.title = `${s.model} · Kvasir`;
  if (passed > 0) {
    rates.push((s.tokens.generated - before.tokens.generated) / passed);
    rates = rates.slice(-seconds);
    show("rate", speed(rates.slice(-3).reduce((a, b) => a + b, 0) / Math.min(3, rates.length)));
    chart();
  } else if (!before) {
    rates = [];
  }
  show("running", number.format(s.requests.running));
  show("waiting", number.format(s.requests.waiting));
  show("uptime", `Up for ${span(s.time_ms - s.since_ms)} · ${number.format(s.tokens.generated)} tokens generated · `);
  workers(s, passed > 0 ? past[0] : null);
  batches(s.batches);
  before = s;
  past = [...(passed > 0 ? past : []), s].slice(-4);
}

const speed = (n) => (n >= 100 ? number : fine).format(n);

function span(ms) {
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function chart() {
  const most = Math.max(1, ...rates);
  const x = (i) => 240 - (rates.length - 1 - i) * (240 / (seconds - 1));
  const points = rates.map((r, i) => `${x(i).toFixed(1)},${(46 - (r / most) * 42).toFixed(1)}`);
  $("line").setAttribute("points", points.join(" "));
  $("area").setAttribute("points", `${x(0).toFixed(1)},48 ${points.join(" ")} 240,48`);
}

// workers fills the table, and what they have in common; old is an earlier status.
function workers(s, old) {
  const earlier = new Map((old?.workers ?? []).map((w) => [w.id, w]));
  const passed = old ? (s.time_ms - old.time_ms) / 1000 : 0;
  let trip = 0, wait = 0, rows = 0;
  const body = $("workers").tBodies[0];
  const list = s.workers.map((w) => {
    const was = earlier.get(w.id);
    const rate = passed > 0 && was && w.rows >= was.rows ? (w.rows - was.rows) / passed : 0;
    rows += rate;
    trip += Math.min(w.rtt_ms * w.dispatches, w.wait_ms);
    wait += w.wait_ms;
    return [
      ["Worker", w.id, `hub ${w.hub}`, ""],
      ["Holds", w.holds || "nothing yet", w.failures ? `${number.format(w.failures)} failed` : "", ""],
      ["Round trip", `${fine.format(w.rtt_ms)} ms`, "", "number"],
      ["Rows/s", speed(rate), w.idle || (w.rate ? `rated ${number.format(w.rate)}` : ""), "number"],
      ["Earned", `${kvr(w.pending_nkvr)} pending`, fate(w), "number"],
    ];
  });
  fill(body, list);
  const any = s.workers.length > 0;
  $("workers").hidden = !any;
  $("no-workers").hidden = any;
  show("no-workers", s.swarm ? "No worker is here. Until one joins, everything is computed on this machine." :
    "Everything is computed on this machine. Start it with --embedded, and workers can join.");
  show("count", number.format(s.workers.length));
  show("rows", any ? `${speed(rows)} rows/s` : "all on this machine");
  show("overhead", wait > 0 ? `${fine.format((100 * trip) / wait)} %` : "–");
}

// fate is what has become of a worker's pay, and why it pends.
const fate = (w) => [
  w.settled_nkvr && `${kvr(w.settled_nkvr)} settled`,
  w.voided_nkvr && `${kvr(w.voided_nkvr)} void: a row was wrong`,
  w.pending_nkvr && w.unpaid,
].filter(Boolean).join(", ");

const coins = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const kvr = (n) => `${coins.format(n / 1e9)} KVR`;

// fill writes rows into a table and leaves those that are the same alone: focus and selection stay.
function fill(body, list) {
  while (body.rows.length > list.length) body.deleteRow(-1);
  list.forEach((cells, i) => {
    const row = body.rows[i] || body.insertRow();
    row.setAttribute("role", "row");
    cells.forEach(([label, text, small, kind], k) => {
      let cell = row.cells[k];
      if (!cell) {
        cell = row.insertCell();
        cell.setAttribute("role", "cell");
        cell.dataset.label = label;
        cell.className = kind;
        cell.append(document.createElement("span"));
        cell.firstChild.append(document.createTextNode(""), document.createElement("small"));
      }
      const [main, note] = cell.firstChild.childNodes;
      if (main.data !== text) main.data = text;
      if (note.textContent !== small) note.textContent = small;
    });
  });
}

function batches(list) {
  const all = $("batches");
  $("no-batches").hidden = list.length > 0;
  while (all.children.length > list.length) all.lastChild.remove();
  list.forEach((b, i) => {
    let item = all.children[i];
    if (!item) {
      item = document.createElement("li");
      const row = document.createElement("div");
      row.className = "row";
      const id = document.createElement("span");
      id.className = "id";
      row.append(id, document.createElement("span"));
      item.append(row, document.createElement("progress"));
      all.append(item);
    }
    const [id, text] = item.firstChild.children;
    id.textContent = `…${b.id}`;
    const failed = b.failed ? `, ${number.format(b.failed)} failed` : "";
    text.textContent = `${b.status.replace("_", " ")} · ${number.format(b.completed + b.failed)} of ${number.format(b.total)}${failed}`;
    const bar = item.lastChild;
    bar.max = Math.max(1, b.total);
    bar.value = b.completed + b.failed;
    bar.setAttribute("aria-label", `Lines done of batch ${b.id}`);
  });
}

const brief = (ms) => (ms < 1000 ? `${number.format(ms)} ms` : `${fine.format(ms / 1000)} s`);

let trying = null; // what stops the answer under way

// events gives the data of server-sent events, one after the other.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = text.slice(0, end);
      text = text.slice(end + 2);
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

function tell(text, wrong) {
  $("try-note").className = wrong ? "note error" : "note";
  show("try-note", text);
}

async function ask(prompt) {
  trying = new AbortController();
  const answer = $("answer");
  answer.hidden = false;
  answer.textContent = "";
  answer.setAttribute("aria-busy", "true");
  $("thought").hidden = true;
  $("thought-text").textContent = "";
  $("send").disabled = true;
  $("stop").hidden = false;
  tell("", false);
  const begun = performance.now();
  let first = 0, tokens = 0;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", signal: trying.signal, headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify({ messages: [{ role: "user", content: prompt }], max_tokens: 1024, stream: true, stream_options: { include_usage: true } }),
    });
    if (response.status === 401) askForKey("This key is not taken.");
    if (!response.ok) throw new Error(await refuseText(response));
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.content || delta.reasoning_content) first ||= performance.now();
      if (delta.reasoning_content) {
        $("thought").hidden = false;
        $("thought-text").append(delta.reasoning_content);
      }
      if (delta.content) {
        const low = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
        answer.append(delta.content);
        if (low) answer.scrollTop = answer.scrollHeight;
      }
    }
    const now = performance.now();
    tell(`${number.format(tokens)} tokens in ${brief(now - begun)}, the first after ${brief((first || now) - begun)}`, false);
  } catch (error) {
    if (error.name === "AbortError") tell("Stopped.", false);
    else tell(error.message, true);
    if (!answer.textContent) answer.hidden = true;
  } finally {
    answer.setAttribute("aria-busy", "false");
    answer.normalize();
    $("send").disabled = false;
    $("stop").hidden = true;
    trying = null;
  }
}

$("try").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = $("prompt").value.trim();
  if (prompt && !trying) ask(prompt);
  else $("prompt").focus();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("try").requestSubmit();
});
$("stop").addEventListener("click", () => trying?.abort());
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(keyName, $("key").value.trim());
  $("key").value = "";
  poll();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && $("key-form").hidden) poll(); });
poll();
