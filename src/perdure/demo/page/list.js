// The list of conversations at the side, and, on a narrow screen, the drawer it sits in.

import { element } from "./text.js";

const at = (id) => document.getElementById(id);
const STATUS = { unfinished: "Answer cut off", answering: "Answering…" };
const STEPS = [[60, "second"], [3600, "minute"], [86400, "hour"], [604800, "day"], [2629800, "week"], [31557600, "month"], [Infinity, "year"]];
const SECONDS = { second: 1, minute: 60, hour: 3600, day: 86400, week: 604800, month: 2629800, year: 31557600 };
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

function when(seconds) {
  if (seconds == null) return "";
  const ago = Date.now() / 1000 - seconds;
  if (ago < 45) return "Just now";
  const [, unit] = STEPS.find(([end]) => ago < end);
  const words = relative.format(-Math.round(ago / SECONDS[unit]), unit);
  return words[0].toUpperCase() + words.slice(1);
}

export function showThreads(threads, current, { open, remove }) {
  const rows = threads.map(({ id, title, updated_at: updated, status }) => {
    const line = element("span", { className: "thread-when", textContent: STATUS[status] ?? when(updated) });
    line.dataset.status = status;
    const button = element("button", { type: "button", className: "thread", title, onclick: () => open(id) },
      element("span", { className: "thread-title", textContent: title }), line);
    button.dataset.id = id;
    return element("li", {}, button, deleteButton(title, () => remove(id)));
  });
  if (!rows.length) rows.push(element("li", { className: "empty", textContent: "Nothing is stored yet." }));
  at("threads").replaceChildren(...rows);
  select(current);
}

// The server is away: what it was answering is cut off.
export function showCut() {
  for (const line of document.querySelectorAll('.thread-when[data-status="answering"]')) {
    line.dataset.status = "unfinished";
    line.textContent = STATUS.unfinished;
  }
}

export function select(id) {
  for (const button of document.querySelectorAll(".thread")) {
    button.setAttribute("aria-current", String(button.dataset.id === id));
  }
}

// Deletes on the second press; the first one only asks, for a few seconds.
function deleteButton(title, remove) {
  const cross = () => {
    const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    icon.setAttribute("viewBox", "0 0 20 20");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", "M5.5 5.5l9 9M14.5 5.5l-9 9");
    icon.append(path);
    return icon;
  };
  const button = element("button", { type: "button", className: "delete", title: "Delete" }, cross());
  button.setAttribute("aria-label", `Delete ${title}`);
  button.onclick = () => {
    if (button.classList.contains("sure")) {
      remove();
      return;
    }
    button.classList.add("sure");
    button.textContent = "Delete?";
    setTimeout(() => {
      button.classList.remove("sure");
      button.replaceChildren(cross());
    }, 3500);
  };
  return button;
}

function showList(shown) {
  document.body.classList.toggle("list-open", shown);
  at("shade").hidden = !shown;
}

export const closeList = () => showList(false);

at("open-list").addEventListener("click", () => showList(true));
at("close-list").addEventListener("click", closeList);
at("shade").addEventListener("click", closeList);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeList();
});
