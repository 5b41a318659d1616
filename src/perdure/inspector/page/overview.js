// How it is going: numbers that are shown anew every few seconds, and the last hour and day as bars.

import { get } from "./api.js";
import { address } from "./address.js";
import { bars } from "./bars.js";
import { nodeTimes } from "./nodes.js";
import { announce, facts, fill, make, number, span, table } from "./dom.js";

const EVERY_MS = 5000;

export async function showOverview(main) {
  const place = make("div");
  const load = async () => fill(place, ...parts(await get("overview")));
  await load();
  fill(main, make("h1", {}, "Now"), place, nodeTimes());
  const news = setInterval(() => {
    if (document.hidden || place.contains(document.activeElement)) return;
    load().catch((error) => announce(error.message));
  }, EVERY_MS);
  return () => clearInterval(news);
}

function parts(found) {
  const { queue, threads, hour, day } = found;
  const minute = found.minutes.at(-2);
  const most = (count) => (count === null ? null : count >= 1000 ? "1,000 or more" : number(count));
  return [
    facts([
      ["Runs in the last full minute", big(number(minute.runs))],
      ["Waiting", big(number(queue.due))],
      ["Oldest waits for", queue.oldest === null ? null : big(span((found.now - queue.oldest) / 1e6))],
      ["Under way", big(number(queue.under_way))],
      ["Replies to send", queue.replies ? big(number(queue.replies)) : null],
      ["Scheduled", queue.scheduled ? big(number(queue.scheduled)) : null],
      ["Threads that stand failed now", threads.failed === null ? null : make("a.big", { href: address("runs") }, most(threads.failed))],
      [threads.asleep === null ? "Wait for an answer, a time or a signal" : "Wait for an answer", threads.interrupted === null ? null : make("a.big", { href: address("questions") }, most(threads.interrupted - threads.asleep))],
      ["Wait for a time or a signal", threads.asleep ? make("a.big", { href: address("queue") }, number(threads.asleep)) : null],
    ]),
    found.is_whole ? null : make("p.notice", {}, "There is more than was counted: counts of threads end at 1,000."),
    make("div.charts", {},
      chart("The last hour, by minute", found.minutes, hour, "minute"),
      chart("The last 24 hours", found.hours, day, "hour")),
    make("p.quiet", {}, "Runs count when they end: one that failed stays counted as failed when it is run again, and its repetition is counted, too."),
    ...period("In the last hour", hour, "1h"),
    ...period("In the last 24 hours", day, "1d"),
    day.versions.length ? table("By version of the graph, in the last 24 hours", ["Graph", "Version", "Since about", "Runs", "Failed"], day.versions.map(versionShown)) : null,
    found.month.models.length ? make("h2", {}, "Models") : null,
    found.month.models.length ? table("Tokens and cost", ["", "Calls", ...USAGE], [["Last hour", hour], ["Last 24 hours", day], ["Last 30 days", found.month]].map(([title, each]) => [title, number(each.calls), ...usage(each)])) : null,
    found.month.models.length ? table("By model, in 30 days", ["Model", "Calls", ...USAGE], found.month.models.map((each) => [each.model ?? "all others", number(each.calls), ...usage(each)])) : null,
    found.month.models.length ? table("By day", ["Day", "Runs", "Failed", "Calls", ...USAGE], found.days.filter((each) => each.runs || each.calls).reverse().map((each) => [new Date(each.at / 1000).toISOString().slice(0, 10), number(each.runs), number(each.failed), number(each.calls), ...usage(each)])) : null,
    make("p.quiet", {}, "Workers add up what they end and store it every ten seconds; what a worker that was killed had not stored is missing."),
  ].filter(Boolean);
}

// The runs of a time by graph, user and error.
function period(title, sums, since) {
  const name = title.toLowerCase();
  return [
    make("h2", {}, title),
    facts([["Latency to the end", latency(sums.end)], ["To the first token of a model", latency(sums.first)]]),
    sums.graphs.length ? table(`By graph, ${name}`, ["Graph", "Runs", "Failed", "To the end", "To the first token", ...USAGE], sums.graphs.map((each) => [each.graph ?? "all others", number(each.runs), number(each.failed), latency(each.end), latency(each.first), ...usage(each)])) : make("p.quiet", {}, "No run has ended."),
    sums.users.length ? table(`By user, ${name}, the most tokens first`, ["User", "Runs", "Failed", ...USAGE], sums.users.map((each) => [each.user === null ? "all others" : make("a", { href: address("user", { user: each.user }) }, each.user), number(each.runs), number(each.failed), ...usage(each)])) : null,
    sums.errors.length ? table(`By error, ${name}`, ["Error", "Runs that failed"], sums.errors.map((each) => [each.kind === null ? "all others" : make("a", { href: address("runs", { error: each.kind, since }) }, each.kind), number(each.runs)])) : null,
  ];
}

const USAGE = ["Tokens in", "Tokens out", "Cost"];

// The cost is empty where no model has a price.
const usage = (each) => [number(each.input_tokens), number(each.output_tokens), each.cost === null ? "" : String(Number(each.cost.toPrecision(4)))];

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
