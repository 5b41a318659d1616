// Limits over all processes: what is used now, what waits, and when there is more.

import { get } from "./api.js";
import { announce, fill, make, number, table, time } from "./dom.js";
import { address } from "./address.js";
import { money } from "./steps.js";

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

const NAME_MAX = 200; // A longer name is stored without its end.
const NEAR = 0.8; // From this share on, a limit is near its end.

const keyOf = (key) => (Object.keys(key).length ? make("span", {}, Object.entries(key).flatMap(([what, name], index) => [index ? ", " : "", `${what} `, what === "user" && name.length <= NAME_MAX ? make("a", { href: address("user", { user: name }) }, name) : name])) : "all");
const WHAT = { model: "calls of models", tool: "calls of tools", run: "runs" };

// A rate is used up by what may come at once; after that it comes at its pace.
function left(each, unit) {
  if (!each) return "";
  const text = `${number(each.left)} of ${number(each.burst)} left at once, ${number(each.most)} ${unit}`;
  return each.next_at === null ? text : make("span", {}, `${text}, more `, time(each.next_at));
}

function spent(budget, currency) {
  if (!budget) return "";
  return make("span", {}, `${Number(budget.spent.toPrecision(4))} of ${money(budget.most, currency)} spent, anew `, time(budget.resets_at));
}

const percent = (share) => make(share >= NEAR ? "span.problem" : "span", {}, `${Math.round(share * 100)}%`);

function parts(found) {
  const shown = [...found.limits].sort((a, b) => b.share - a.share);
  return [
    found.cursor === null ? null : make("p.notice", {}, "There are more keys than are shown here; perdure limits ls lists them."),
    found.limits.length
      ? table("Limits, the most used first", ["Limit", "Used", "Of", "Key", "At once", "Rate", "Tokens", "Budget", "Calls that wait", "Processes"], shown.map((each) => [
          each.limit, percent(each.share), WHAT[each.of], keyOf(each.key),
          each.concurrency ? `${number(each.concurrency.used)} of ${number(each.concurrency.most)}` : "",
          left(each.rate, "a minute"), left(each.tokens, "a minute"), spent(each.budget, found.currency),
          each.waiting ? number(each.waiting) : "", number(each.processes.length)]), true)
      : make("p.quiet", {}, "No limit is in use. A key that was not used for a while is not stored."),
    found.limits.some((each) => each.rate || each.tokens) ? make("p.quiet", {}, "A rate counts what may come at once: a limit that rests has all of it, and what is used comes back at its pace.") : null,
    found.set.length ? make("h2", {}, "Set in place of the configuration") : null,
    found.set.length
      ? table("Set in place of the configuration", ["Limit", "Amounts"], found.set.map(({ limit, ...amounts }) => [limit, Object.entries(amounts).map(([what, value]) => `${what} ${value}`).join(", ")]))
      : null,
  ];
}
