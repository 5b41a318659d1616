// Limits over all processes: what is used now, what waits, and when there is more.

import { get } from "./api.js";
import { announce, fill, make, number, table, time } from "./dom.js";

const EVERY_MS = 2000;

export async function showLimits(main) {
  const place = make("div");
  const load = async () => fill(place, ...parts(await get("limits")));
  await load();
  fill(main, make("h1", {}, "Limits"), place);
  const news = setInterval(() => {
    if (document.hidden || place.contains(document.activeElement)) return;
    load().catch((error) => announce(error.message));
  }, EVERY_MS);
  return () => clearInterval(news);
}

const keyOf = (key) => Object.entries(key).map(([what, name]) => `${what} ${name}`).join(", ") || "all";
const WHAT = { model: "calls of models", tool: "calls of tools", run: "runs" };

function left(each, unit) {
  if (!each) return "";
  const text = `${number(each.left)} left now of ${number(each.most)} ${unit}`;
  return each.next_at === null ? text : make("span", {}, `${text}, more at `, time(each.next_at));
}

function money(budget) {
  if (!budget) return "";
  return make("span", {}, `${budget.spent.toFixed(4)} of ${budget.most} spent, anew at `, time(budget.resets_at));
}

function parts(found) {
  return [
    found.cursor === null ? null : make("p.notice", {}, "There are more keys than are shown here; perdure limits ls lists them."),
    found.limits.length
      ? table("Limits", ["Limit", "Of", "Key", "At once", "Rate", "Tokens", "Budget", "Waiting", "Processes"], found.limits.map((each) => [
          each.limit, WHAT[each.of], keyOf(each.key),
          each.concurrency ? `${number(each.concurrency.used)} of ${number(each.concurrency.most)}` : "",
          left(each.rate, "a minute"), left(each.tokens, "a minute"), money(each.budget),
          each.waiting ? number(each.waiting) : "", number(each.processes.length)]))
      : make("p.quiet", {}, "No limit is in use. A key that was not used for a while is not stored."),
    found.set.length ? make("h2", {}, "Set in place of the configuration") : null,
    found.set.length
      ? table("Set in place of the configuration", ["Limit", "Amounts"], found.set.map(({ limit, ...amounts }) => [limit, Object.entries(amounts).map(([what, value]) => `${what} ${value}`).join(", ")]))
      : null,
  ];
}
