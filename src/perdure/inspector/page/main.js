// Chooses the view of the address, and shows what went wrong.

import { get, Refused } from "./api.js";
import { address, tenant } from "./address.js";
import { at, announce, fill, focusIfLost, make } from "./dom.js";
import { showCare } from "./care.js";
import { showLimits } from "./limits.js";
import { showLog } from "./log.js";
import { showOverview } from "./overview.js";
import { showQuestions } from "./questions.js";
import { showQueue } from "./queue.js";
import { showReplay } from "./replay.js";
import { showRuns } from "./runs.js";
import { showTenant } from "./tenant.js";
import { showThread } from "./thread.js";
import { showThreads } from "./threads.js";
import { showUser } from "./user.js";

const VIEWS = { overview: showOverview, threads: showThreads, thread: showThread, user: showUser, replay: showReplay, runs: showRuns, questions: showQuestions, queue: showQueue, limits: showLimits, care: showCare, log: showLog };
class Unknown extends Error {}
let leave = () => {};
let current = "";

function parts() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return [path || "threads", Object.fromEntries(new URLSearchParams(query || ""))];
}

async function show() {
  if (location.hash === "#main") return;
  const [view, asked] = parts();
  // Within one thread only the selection changes, which its view follows itself.
  const name = JSON.stringify([tenant(), view, view === "thread" || view === "replay" ? asked.id : ""]);
  if (name === current && view === "thread") {
    dispatchEvent(new CustomEvent("selected", { detail: asked }));
    return;
  }
  const isFollowed = current !== "";
  current = name;
  leave();
  leave = () => {};
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === (["thread", "replay", "user"].includes(view) ? "threads" : view);
    link.href = address(link.dataset.view);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const main = at("main");
  fill(main, make("p.quiet", {}, "Loading…"));
  try {
    if (!Object.hasOwn(VIEWS, view)) throw new Unknown(`There is no page #/${view} here. The links above lead to those that there are.`);
    const left = await VIEWS[view](main, asked);
    leave = left || (() => {});
    const title = main.querySelector("h1");
    announce(title?.textContent || "");
    // The link that was followed is gone with its view: the next key would start at the top of the page.
    if (isFollowed) focusIfLost(title);
  } catch (error) {
    problem(main, error);
  }
}

export function problem(place, error) {
  const text = error instanceof Refused || error instanceof Unknown ? error.message : `The page failed: ${error.message}`;
  const children = [make("p", {}, text)];
  if (error instanceof Refused && error.status === 401) children.push(signIn());
  fill(place, make("h1", {}, "This cannot be shown"), make("div.problem", { role: "alert" }, children));
}

function signIn() {
  const input = make("input", { type: "password", autocomplete: "off", required: true });
  const form = make("form.row", {}, make("label.field", {}, make("span", {}, "Token of your account"), input), make("button", { type: "submit" }, "Use it"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("perdure.token", input.value.trim());
    location.reload();
  });
  return form;
}

const THEMES = ["auto", "light", "dark"];
function theme(change) {
  let chosen = localStorage.getItem("perdure.theme") || "auto";
  if (change) {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    localStorage.setItem("perdure.theme", chosen);
  }
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  at("theme").textContent = `Theme: ${chosen}`;
}

at("theme").onclick = () => theme(true);
at("skip").onclick = (event) => {
  event.preventDefault();
  at("main").focus();
};
addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});
theme(false);
showTenant(at("tenant"));
show();
