"use strict";
const page = document.documentElement;
const root = page.dataset.root;
const view = document.getElementById("view");
const byId = (id) => document.getElementById(id);
let offset = Date.now() / 1000 - Number(page.dataset.now); // this clock minus the server's

// --- theme ---
const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(name) { page.dataset.theme = name; }
function saved(name) { try { return localStorage.getItem(name); } catch { return null; } }
function save(name, value) { try { localStorage.setItem(name, value); } catch { /* not allowed to store */ } }
setTheme(saved("umbel-theme") || (dark.matches ? "dark" : "light"));
function changeTheme() {
  const name = page.dataset.theme === "dark" ? "light" : "dark";
  setTheme(name);
  save("umbel-theme", name);
}

// --- times: shown as ages by the server's clock ---
function age(seconds) {
  const size = Math.abs(seconds);
  const text = size < 60 ? `${Math.floor(size)} s` : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 86400 ? `${Math.floor(size / 3600)} h` : `${Math.floor(size / 86400)} d`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}
let zone = saved("umbel-zone") || "UTC";
function showTimes() {
  const now = Date.now() / 1000 - offset;
  byId("zone").textContent = zone;
  for (const one of view.querySelectorAll("time")) {
    one.textContent = age(now - Date.parse(one.dateTime) / 1000);
    one.title = zone === "UTC" ? one.dateTime : new Date(one.dateTime).toString();
  }
}
function changeZone() {
  zone = zone === "UTC" ? "local" : "UTC";
  save("umbel-zone", zone);
  showTimes();
}
setInterval(showTimes, 1000);

// --- messages ---
function say(text, isBad) {
  const line = document.createElement("p");
  line.textContent = text;
  if (isBad) line.className = "bad";
  byId("toasts").append(line);
  setTimeout(() => line.remove(), isBad ? 12000 : 5000);
}

// --- live updates ---
let source = null, isPaused = false, pending = null, polling = null, acted = 0;
function isBusy() {
  const active = document.activeElement;
  const edited = [...view.querySelectorAll("input:not([type=hidden]), textarea")].some((one) => one.type === "checkbox" ? one.checked : one.value !== one.defaultValue);
  if (edited || document.querySelector("dialog[open]") || (active && view.contains(active) && active.matches("input, textarea, select"))) return true;
  return Date.now() - acted > 5000 && view.matches(":hover") && view.querySelector(".rows") !== null;
}
function show(html) {
  const opened = [...view.querySelectorAll("details")].map((one) => one.open);
  const focused = view.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const scrolled = [...view.querySelectorAll(".graph-scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  const chosen = chosenRow(0)?.dataset.open;
  view.innerHTML = html;
  showViews();
  if (chosen) [...view.querySelectorAll("tr[data-open]")].find((row) => row.dataset.open === chosen)?.classList.add("chosen");
  [...view.querySelectorAll(".graph-scroll")].forEach((one, i) => { if (i < scrolled.length) [one.scrollLeft, one.scrollTop] = scrolled[i]; });
  if (focused) [...view.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
  [...view.querySelectorAll("details")].forEach((one, i) => { if (i < opened.length) one.open = opened[i]; });
  pending = null;
  byId("pending").hidden = true;
  showTimes();
}
function receive(update) {
  offset = Date.now() / 1000 - update.now;
  if (update.html === undefined) return;
  const trouble = byId("trouble");
  trouble.hidden = !update.error;
  trouble.textContent = update.error ? `${update.error} since ${update.since}. Trying again.` : "";
  view.classList.toggle("stale", Boolean(update.error));
  if (update.error || !update.html) return;
  if (isBusy()) { pending = update.html; byId("pending").hidden = false; } else show(update.html);
}
async function poll() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
  if (answer?.redirected) location.reload(); // to the login
  if (!answer || !answer.ok || answer.redirected) return;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  receive({ now: Number(found.documentElement.dataset.now), html: found.getElementById("view").innerHTML });
}
function setLive(text, isOff) {
  const button = byId("live");
  if (!button) return;
  button.textContent = text;
  button.classList.toggle("off", isOff);
}
function follow() {
  if (!view.dataset.view || isPaused || document.hidden || source) return;
  clearInterval(polling);
  polling = null;
  source = new EventSource(`${root}/live?view=${encodeURIComponent(view.dataset.view)}`);
  source.onopen = () => { byId("slow-updates").hidden = true; setLive("● live", false); };
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) { // refused
      leave();
      explain();
    } else {
      setLive("○ reconnecting", true);
      view.classList.add("stale");
    }
  };
}
async function explain() { // an EventSource does not tell why it was refused
  const control = new AbortController();
  const answer = await fetch(`${root}/live?view=${encodeURIComponent(view.dataset.view)}`, { signal: control.signal }).catch(() => null);
  if (answer?.status === 401) location.reload(); // to the login
  const text = answer && !answer.ok ? (await answer.json().catch(() => ({}))).error || `The dashboard answers with ${answer.status}.` : "";
  control.abort();
  const isBusy = answer?.status === 503;
  byId("slow-updates").hidden = !text;
  byId("slow-updates").textContent = isBusy ? `${text} The next update is in 15 seconds.` : text;
  setLive(isBusy ? "○ every 15 s" : text ? "○ not live" : "○ reconnecting", true);
  if (isBusy) polling = setInterval(poll, 15000);
  if (isBusy || !text) setTimeout(follow, text ? 60000 : 2000);
}
function leave() { if (source) source.close(); source = null; clearInterval(polling); polling = null; }
function pauseLive() {
  isPaused = !isPaused;
  if (isPaused) { leave(); setLive("○ paused", true); } else follow();
}
document.addEventListener("visibilitychange", () => document.hidden ? leave() : follow());
view.addEventListener("change", showSelected);
view.addEventListener("mouseleave", () => { if (pending !== null && !isBusy()) show(pending); });
byId("pending").addEventListener("click", () => show(pending));
const retry = document.querySelector("[data-retry]");
if (retry) setTimeout(() => location.reload(), Number(retry.dataset.retry) * 1000);

// --- saved views: they are of one user, but updates are of all users of a role ---
let savedViews = "";
function showViews() { if (byId("views")) byId("views").innerHTML = savedViews; }
async function loadViews() {
  if (!byId("views")) return;
  const answer = await fetch(`${root}/views`, { headers: { accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  savedViews = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("saved").innerHTML;
  showViews();
}

// --- actions ---
class Refused extends Error {}
function selected() { return [...view.querySelectorAll("[data-job]:checked")]; }
function showSelected() {
  const count = selected().length;
  for (const form of view.querySelectorAll("[data-selected]")) form.querySelector("button").disabled = !count;
}
async function countJobs(form, filter) {
  const answer = await fetch(`${form.dataset.count}?${new URLSearchParams({ ...filter, count: "yes" })}`);
  const found = await answer.json();
  if (!answer.ok) throw new Refused(found.error);
  if (!found.matching.count) throw new Refused("No job matches now.");
  return { count: found.matching.count, is_more: found.matching.is_more ? "yes" : "" };
}
function jobsText(form, fields) {
  const count = form.dataset.selected ? selected().length : Number(fields.count);
  const jobs = `${count.toLocaleString("en")} ${count === 1 ? "job" : "jobs"}`;
  return fields.is_more ? `at least ${jobs}, and at most 10,000,` : form.dataset.selected ? `the ${count === 1 ? "job" : jobs} that you selected` : jobs;
}
function ask(form, jobs) {
  const dialog = byId("dialog"), typed = byId("typed"), why = byId("why");
  byId("question").textContent = form.dataset.count || form.dataset.selected ? form.dataset.ask.replace("#", jobs) : form.dataset.ask;
  const wanted = form.dataset.type || form.dataset.input;
  typed.hidden = !wanted;
  why.hidden = Boolean(form.dataset.input);
  typed.firstElementChild.textContent = form.dataset.type ? `Type ${form.dataset.type}` : "Value";
  typed.lastElementChild.value = why.lastElementChild.value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "yes") return resolve(null);
    const more = { reason: why.lastElementChild.value };
    if (form.dataset.type) more.confirm = typed.lastElementChild.value;
    if (form.dataset.input) more[form.dataset.input] = typed.lastElementChild.value;
    resolve(more);
  }, { once: true }));
}
function readCall(form) {
  const call = [];
  for (const one of form.querySelectorAll("[data-argument]")) {
    if (one.value === "" && !one.required) continue;
    const value = one.dataset.kind === "json" && isJson(one.value) ? one.value : JSON.stringify(one.value);
    call.push(`${JSON.stringify(one.dataset.argument)}: ${value}`);
  }
  return `{${call.join(", ")}}`; // numbers as they were typed: this script would round them
}
function isJson(text) { try { JSON.parse(text); return true; } catch { return false; } }
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("form.action")) return;
  event.preventDefault();
  const fields = Object.fromEntries(new FormData(form));
  if (form.dataset.call) fields.arguments = readCall(form);
  try {
    if (form.dataset.selected) fields.jobs = selected().map((one) => one.dataset.job).join(" ");
    if (form.dataset.count) Object.assign(fields, await countJobs(form, fields));
    if (form.dataset.ask) {
      const more = await ask(form, jobsText(form, fields));
      if (more === null) return;
      Object.assign(fields, more);
    }
    const answer = await fetch(form.action, { method: "POST", headers: { "content-type": "application/json", "x-csrf": page.dataset.csrf }, body: JSON.stringify(fields) });
    const said = await answer.json();
    say(said.done || said.error, !answer.ok);
    if (answer.ok) loadViews();
    if (answer.ok && form.dataset.reset) { form.reset(); document.activeElement.blur(); }
    if (answer.ok && form.dataset.selected) { for (const one of selected()) one.checked = false; showSelected(); }
    if (answer.ok) { acted = Date.now(); if (pending !== null) show(pending); }
    if (answer.ok && !view.dataset.view && !form.dataset.call) setTimeout(() => location.reload(), 1500);
  } catch (error) {
    if (error instanceof Refused) say(error.message, true);
    else say("The dashboard does not answer. The action may have been done or not: check it before you try again.", true);
  }
});

// --- keys ---
const addresses = { o: "/", j: "/jobs", g: "/graphs", q: "/queues", w: "/workers", s: "/schedules", b: "/buried" };
let before = "";
function chosenRow(step) {
  const rows = [...view.querySelectorAll("tr[data-open]")];
  const at = rows.findIndex((row) => row.classList.contains("chosen"));
  if (!step) return rows[at];
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  rows.forEach((row) => row.classList.toggle("chosen", row === next));
  if (next) next.scrollIntoView({ block: "nearest" });
  return next;
}
function act(name) {
  const button = view.querySelector(`.actions form[action$="/actions/${name}"] button`);
  if (button) button.click();
  return button;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]), textarea, select") || document.querySelector("dialog[open]")) return;
  const key = event.key;
  if (before === "g" && addresses[key]) location.href = root + addresses[key];
  else if (key === "/" && byId("search")) { event.preventDefault(); byId("search").focus(); }
  else if (key === "j") chosenRow(1);
  else if (key === "k") chosenRow(-1);
  else if (key === "Enter" && event.target === document.body && chosenRow(0)) location.href = chosenRow(0).dataset.open;
  else if (key === "r" && act("retry")) { /* it asks if needed */ }
  else if (key === "c" && act("cancel")) { /* it asks */ }
  else if (key === "x" && chosenRow(0)?.querySelector("[data-job]")) chosenRow(0).querySelector("[data-job]").click();
  else if (key === "p") pauseLive();
  else if (key === "t") changeTheme();
  else if (key === "z") changeZone();
  else if (key === "?") byId("help").showModal();
  before = key;
});
byId("theme").addEventListener("click", changeTheme);
byId("zone").addEventListener("click", changeZone);
if (byId("live")) byId("live").addEventListener("click", pauseLive);
byId("menu").addEventListener("click", () => {
  const isOpen = byId("navigation").classList.toggle("open");
  byId("menu").setAttribute("aria-expanded", isOpen);
});
showTimes();
loadViews();
follow();
