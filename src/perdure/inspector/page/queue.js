// The queue: whether anything is stuck, what is due, who holds which run, what will run by itself, and what failed.

import { get } from "./api.js";
import { announce, brief, count, fill, make, number, shortId, span, table, threadLink, time, userLink } from "./dom.js";
import { address } from "./address.js";

const EVERY_MS = 4000;

export async function showQueue(main, asked) {
  const place = make("div");
  const load = async () => {
    const found = await get("queue");
    const heading = place.contains(document.activeElement) ? document.activeElement.id : "";
    fill(place, ...parts(found));
    if (heading) place.querySelector(`#${heading}`)?.focus({ preventScroll: true });
  };
  await load();
  fill(main, make("h1", {}, "Queue"), place);
  if (/^[a-z]+$/.test(asked.part || "")) place.querySelector(`#queue-${asked.part}`)?.focus();
  const news = setInterval(() => {
    const held = place.contains(document.activeElement) ? document.activeElement : null;
    if (document.hidden || (held && held.tagName !== "H2")) return;
    load().catch((error) => announce(error.message));
  }, EVERY_MS);
  return () => clearInterval(news);
}

const link = (each) => threadLink(each.thread_id, each.title);
const KINDS = { cron: "cron", message: "message for later", retry: "next attempt", sleep: "sleep ends", signal: "signal, at the latest", question: "deadline of a question" };
const part = (name, words) => make("a", { href: address("queue", { part: name }) }, words);
const heading = (name, words) => make("h2", { id: `queue-${name}`, tabIndex: -1 }, words);
const quiet = (words) => make("p.quiet", {}, words);

// What an operator wants to know first, each line with a link to its part.
function verdict(found) {
  const isCut = (name) => found.cut.includes(name);
  const most = (name, amount, one, many) => (isCut(name) ? `At least ${count(amount, one, many)}` : count(amount, one, many));
  const stuck = found.stuck.reduce((sum, each) => sum + each.threads, 0);
  const queued = found.work.filter((each) => each.queue.pending);
  const waiting = queued.reduce((sum, each) => sum + each.queue.pending, 0);
  const since = Math.min(...queued.map((each) => each.queue.due_at ?? Infinity), found.now);
  const held = found.work.filter((each) => each.queue.owner).length;
  const retried = found.work.filter((each) => each.queue.run_id && !each.queue.owner).length;
  const replies = found.work.reduce((sum, each) => sum + each.outbox.pending, 0);
  const [next] = found.upcoming;
  const signals = found.waiting.filter((each) => each.waits.some((wait) => wait.kind === "signal")).length;
  const late = since < found.now ? `, due for up to ${span((found.now - since) / 1e6)}` : "";
  return make("ul.verdict", { "aria-label": "Verdict" }, [
    !found.is_surveyed ? null
      : stuck ? make("b.problem", {}, part("stuck", `${most("stuck", stuck, "thread is stuck", "threads are stuck")}.`))
      : make("b", {}, isCut("stuck") ? "Nothing is stuck in the queues that have been due longest." : "Nothing is stuck."),
    waiting ? part("work", `${most("work", waiting, "message waits", "messages wait")} in ${count(queued.length, "thread", "threads")}${late}.`) : "No message waits for a run.",
    held || retried ? part("work", `${most("work", held, "run is under way", "runs are under way")}${retried ? `, ${count(retried, "waits", "wait")} for the next attempt` : ""}.`) : "No run is under way.",
    [replies ? part("work", `${most("work", replies, "reply waits", "replies wait")} to be sent.`) : "No reply waits to be sent.", " ",
      make("a", { href: address("care", { what: "replies" }) }, "Look for replies that were given up")],
    next ? part("upcoming", `${most("upcoming", found.upcoming.length, "run starts", "runs start")} by ${found.upcoming.length === 1 ? "itself" : "themselves"}, the next ${next.at <= found.now ? "now" : `in ${span((next.at - found.now) / 1e6)}`}.`) : "No run starts by itself later.",
    found.interrupted.length || isCut("interrupted") ? make("a", { href: address("questions") }, `${most("interrupted", found.interrupted.length, "thread asks", "threads ask")}.`) : "No thread asks.",
    signals ? part("waiting", `${most("interrupted", signals, "thread sleeps until a signal", "threads sleep until a signal")}.`) : null,
    found.failed.length || isCut("failed") ? part("failed", `${most("failed", found.failed.length, "thread has", "threads have")} failed.`) : "No thread has failed.",
  ].filter(Boolean).map((line) => make("li", {}, line)));
}

function parts(found) {
  const due = (at) => (at === null ? "" : at <= found.now ? `for ${span((found.now - at) / 1e6)}` : `in ${span((at - found.now) / 1e6)}`);
  const signals = found.waiting.flatMap((each) => each.waits.filter((wait) => wait.kind === "signal").map((wait) => [each, wait]));
  const rest = (name) => (found.cut.includes(name) ? make("p.notice", {}, "There may be more than is shown here.") : null);
  return [
    verdict(found),
    found.stuck.length ? heading("stuck", "Stuck") : null,
    found.stuck.length ? table("Stuck", ["What", "Threads", "Since", "What to do"], found.stuck.map((each) => [brief(`${each.problem}: ${each.what} ${each.name}`), make("span", {}, number(each.threads), ", e.g. ", make("a.brief", { href: address("thread", { id: each.example }) }, each.example)), time(each.since), each.advice])) : null,
    heading("work", "Work"),
    found.work.length
      ? table("Work", ["Thread", "User", "Graph", "Due", "Messages that wait", "Open run", "Held by", "Replies"], found.work.map((each) => [
          link(each), userLink(each.user), brief(each.graph_id || each.open_run?.graph), due(each.queue.due_at ?? each.outbox.due_at), each.queue.pending ? number(each.queue.pending) : "",
          each.open_run ? make("span", {}, `${shortId(each.open_run.run_id)}, attempt ${each.open_run.attempts}, since `, time(each.open_run.started_at)) : "",
          each.queue.owner ? make("span", {}, brief(each.queue.owner), "lease ", time(each.queue.lease_until)) : each.queue.retry_at ? make("span", {}, "no one, next attempt ", time(each.queue.retry_at)) : "",
          Object.entries(each.outbox.states).map(([name, amount]) => `${amount} ${name}`).join(", ")]))
      : quiet("Nothing is due, and no run is open."),
    rest("work"),
    heading("workers", "Workers that hold runs"),
    found.workers.length ? table("Workers that hold runs", ["Worker", "Runs"], found.workers.map((each) => [brief(each.name), number(each.runs)])) : quiet("No worker holds a run."),
    heading("upcoming", "What will run"),
    found.upcoming.length
      ? table("What will run", ["When", "What", "Thread", "User", "Graph"], found.upcoming.map((each) => [
          each.at <= found.now ? `due ${due(each.at)}` : time(each.at), make("span", {}, KINDS[each.kind], each.what ? make("code.title", {}, each.what) : null),
          each.thread_id === null ? "a new one" : each.is_listed ? link(each) : brief(each.thread_id), userLink(each.user), brief(each.graph)]))
      : quiet("No cron, message for later, next attempt or sleep is to come."),
    found.has_crons ? null : quiet("Crons are not shown: you may not search them."),
    rest("upcoming"),
    signals.length ? heading("waiting", "Until a signal") : null,
    signals.length
      ? table("Until a signal", ["Thread", "User", "Graph", "Since", "Until", "Signal"], signals.map(([each, wait]) => [
          link(each), userLink(each.user), brief(each.graph_id || each.run?.graph), time(wait.since), wait.until ? time(wait.until) : "", brief(wait.signal)]))
      : null,
    rest("interrupted"),
    heading("failed", "Failed"),
    found.failed.length
      ? table("Failed", ["Thread", "User", "Graph", "Since", "Attempts", "Error"], found.failed.map((each) => [
          link(each), userLink(each.user), brief(each.graph_id || each.run?.graph), time(each.updated_at), each.run ? number(each.run.attempts) : "", brief(each.run?.error || each.fault)]))
      : quiet("No thread has failed."),
    rest("failed"),
  ].filter(Boolean);
}
