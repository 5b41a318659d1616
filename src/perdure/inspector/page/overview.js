// How it is going: numbers that are shown anew every few seconds, the last hour and day as bars, and tables of a span.

import { get } from "./api.js";
import { address } from "./address.js";
import { bars } from "./bars.js";
import { nodeTimes } from "./nodes.js";
import { announce, facts, fill, make, number, span, table, userLink } from "./dom.js";
import { money } from "./steps.js";

const EVERY_MS = 5000;
const SPANS = { hour: ["Last hour", "in the last hour", "1h"], day: ["Last 24 hours", "in the last 24 hours", "1d"], month: ["Last 30 days", "in the last 30 days", "30d"] };

export async function showOverview(main, asked) {
  const [top, bottom] = [make("div"), make("div")];
  let chosen = Object.hasOwn(SPANS, asked.span) ? asked.span : "day";
  let found = null;
  const tabs = make("div.tabs", { role: "group", "aria-label": "Runs, models and costs of" }, Object.entries(SPANS).map(([name, [words]]) => make("button", { type: "button", "data-span": name, onclick: () => turnTo(name) }, words)));
  const show = () => {
    for (const button of tabs.children) button.setAttribute("aria-pressed", button.dataset.span === chosen);
    fill(bottom, ...period(found, chosen));
  };
  const turnTo = (name) => {
    chosen = name;
    history.replaceState(null, "", address("overview", { span: name }));
    show();
  };
  const load = async () => {
    found = await get("overview");
    fill(top, ...now(found));
    show();
  };
  await load();
  fill(main, make("h1", {}, "Now"), top, make("h2", {}, "Runs, models and costs"), tabs, bottom, nodeTimes());
  const news = setInterval(() => {
    if (document.hidden || [top, bottom].some((place) => place.contains(document.activeElement))) return;
    load().catch((error) => announce(error.message));
  }, EVERY_MS);
  return () => clearInterval(news);
}

function now(found) {
  const { queue, threads, hour, day } = found;
  const minute = found.minutes.at(-2);
  const most = (count) => (count === null ? null : count >= 1000 ? "1,000 or more" : number(count));
  return [
    facts([
      ["Runs in the last full minute", big(number(minute.runs))],
      ["Threads with messages that wait", big(number(queue.due))],
      ["Oldest message waits for", queue.oldest === null ? null : big(span((found.now - queue.oldest) / 1e6))],
      ["Runs under way", big(number(queue.under_way))],
      ["Replies to send", queue.replies ? big(number(queue.replies)) : null],
      ["Threads with messages for later", queue.scheduled ? make("a.big", { href: address("queue", { part: "upcoming" }) }, number(queue.scheduled)) : null],
      ["Threads that stand failed now", threads.failed === null ? null : make("a.big", { href: address("runs") }, most(threads.failed))],
      [threads.asleep === null ? "Threads that ask or sleep" : "Threads that ask", threads.interrupted === null ? null : make("a.big", { href: address("questions") }, most(threads.interrupted - threads.asleep))],
      ["Threads that sleep", threads.asleep ? make("a.big", { href: address("queue") }, number(threads.asleep)) : null],
    ]),
    found.is_whole ? null : make("p.notice", {}, "There is more than was counted: counts of threads end at 1,000."),
    make("div.charts", {},
      chart("The last hour, by minute", found.minutes, hour, "minute"),
      chart("The last 24 hours", found.hours, day, "hour")),
  ].filter(Boolean);
}

const byCost = (a, b) => (b.cost ?? 0) - (a.cost ?? 0) || b.input_tokens + b.output_tokens - a.input_tokens - a.output_tokens || b.calls - a.calls;

// The runs of a span by graph, user, error and version, and the calls of models. Each table says in its caption of when it is.
function period(found, chosen) {
  const [sums, [, when, since]] = [found[chosen], SPANS[chosen]];
  const { currency } = found;
  const of = (caption, headings, rows) => (rows.length ? table(`${caption}, ${when}`, headings, rows, true) : null);
  const counted = (each) => usage(each, currency);
  const models = [...sums.models].sort(byCost);
  const days = chosen === "month" ? found.days.filter((each) => each.runs || each.calls).reverse() : [];
  return [
    facts([["Runs", number(sums.runs)], ["Failed", number(sums.failed)], ["Calls of models", number(sums.calls)], ["Tokens in", number(sums.input_tokens)], ["Tokens out", number(sums.output_tokens)], ["Cost", sums.cost === null ? null : money(sums.cost, currency)], ["Latency to the end", latency(sums.end)], ["To the first token of a model", latency(sums.first)]]),
    sums.runs ? null : make("p.quiet", {}, "No run has ended."),
    of("By graph, the most runs first", ["Graph", "Runs", "Failed", ...USAGE, "To the end", "To the first token"], sums.graphs.map((each) => [each.graph ?? "all others", number(each.runs), number(each.failed), ...counted(each), latency(each.end), latency(each.first)])),
    of("By model, the most costly first", ["Model", "Calls", ...USAGE], models.map((each) => [each.model ?? "all others", number(each.calls), ...counted(each)])),
    of("By user, the most costly first", ["User", "Runs", "Failed", ...USAGE], [...sums.users].sort(byCost).map((each) => [each.user === null ? "all others" : userLink(each.user), number(each.runs), number(each.failed), ...counted(each)])),
    chosen === "month" ? make("p.quiet", {}, "Users are counted for a day; a user's page has the costs of all threads.") : null,
    of("By error, the most runs first", ["Error", "Runs that failed"], sums.errors.map((each) => [each.kind === null ? "all others" : make("a", { href: address("runs", { error: each.kind, since }) }, each.kind), number(each.runs)])),
    of("By version of the graph, the latest first", ["Graph", "Version", "Since about", "Runs", "Failed"], (sums.versions ?? []).map(versionShown)),
    of("By day", ["Day", "Runs", "Failed", "Calls", ...USAGE], days.map((each) => [new Date(each.at / 1000).toISOString().slice(0, 10), number(each.runs), number(each.failed), number(each.calls), ...counted(each)])),
    make("p.quiet", {}, "Runs count when they end: one that failed stays counted as failed when it is run again, and its repetition is counted, too. Workers add up what they end and store it every ten seconds; what a worker that was killed had not stored is missing."),
  ].filter(Boolean);
}

const USAGE = ["Cost", "Tokens in", "Tokens out"];

// The cost is empty where no model has a price.
const usage = (each, currency) => [each.cost === null ? "" : money(each.cost, currency), number(each.input_tokens), number(each.output_tokens)];

function versionShown(each) {
  const began = new Date(each.since / 1000).toISOString();
  const link = (state, text) => make("a", { href: address("runs", { version: each.version, state, since: "1d" }) }, text);
  return [each.graph ?? "all others", each.version === null ? "all others" : link("any", each.version),
    make("time", { dateTime: began }, began.slice(0, 16).replace("T", " ")), number(each.runs),
    each.failed && each.version !== null ? link("", number(each.failed)) : number(each.failed)];
}

const big = (words) => make("span.big", {}, words);

function latency(found) {
  if (found === null) return "";
  const shown = (seconds) => (seconds === null ? "over an hour" : `${seconds} s`);
  return `half within ${shown(found.p50)}, 95% within ${shown(found.p95)}`;
}

// Bars of the runs, with the failed ones at their feet.
function chart(title, slots, sums, unit) {
  const words = `${number(sums.runs)} runs, ${number(sums.failed)} failed, at most ${number(Math.max(...slots.map((slot) => slot.runs)))} in one ${unit}`;
  const columns = slots.map((slot) => ({
    tip: `${new Date(slot.at / 1000).toISOString().slice(11, 16)}: ${slot.runs} runs, ${slot.failed} failed`,
    parts: [[slot.runs, "column"], [slot.failed, "column is-bad"]],
  }));
  return make("figure", {}, make("figcaption", {}, make("strong", {}, title), ` ${words}`), bars(`${title}: ${words}`, columns));
}
