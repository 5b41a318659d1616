// The queue: whether anything is stuck, what is due, who holds which run, what sleeps, and what failed.

import { get } from "./api.js";
import { announce, brief, count, fill, make, number, shortId, span, table, time } from "./dom.js";
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

const link = (id) => make("a.brief", { href: address("thread", { id }) }, id);
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
  const late = since < found.now ? `, due for up to ${span((found.now - since) / 1e6)}` : "";
  return make("ul.verdict", { "aria-label": "Verdict" }, [
    !found.is_surveyed ? null
      : stuck ? make("b.problem", {}, part("stuck", `${most("stuck", stuck, "thread is stuck", "threads are stuck")}.`))
      : make("b", {}, isCut("stuck") ? "Nothing is stuck in the queues that have been due longest." : "Nothing is stuck."),
    waiting ? part("work", `${most("work", waiting, "message waits", "messages wait")} in ${count(queued.length, "thread", "threads")}${late}.`) : "No message waits for a run.",
    held || retried ? part("work", `${most("work", held, "run is under way", "runs are under way")}${retried ? `, ${count(retried, "waits", "wait")} for the next attempt` : ""}.`) : "No run is under way.",
    [replies ? part("work", `${most("work", replies, "reply waits", "replies wait")} to be sent.`) : "No reply waits to be sent.", " ",
      make("a", { href: address("care", { what: "replies" }) }, "Look for replies that were given up")],
    found.interrupted.length || isCut("interrupted") ? make("a", { href: address("questions") }, `${most("interrupted", found.interrupted.length, "thread waits", "threads wait")} for an answer.`) : "No thread waits for an answer.",
    found.waiting.length ? part("waiting", `${most("interrupted", found.waiting.length, "thread sleeps or waits", "threads sleep or wait")} for a signal.`) : null,
    found.failed.length || isCut("failed") ? part("failed", `${most("failed", found.failed.length, "thread has", "threads have")} failed.`) : "No thread has failed.",
  ].filter(Boolean).map((line) => make("li", {}, line)));
}

function parts(found) {
  const due = (at) => (at === null ? "" : at <= found.now ? `for ${span((found.now - at) / 1e6)}` : `in ${span((at - found.now) / 1e6)}`);
  const rest = (name) => (found.cut.includes(name) ? make("p.notice", {}, "There may be more than is shown here.") : null);
  return [
    verdict(found),
    found.stuck.length ? heading("stuck", "Stuck") : null,
    found.stuck.length ? table("Stuck", ["What", "Threads", "Since", "What to do"], found.stuck.map((each) => [brief(`${each.problem}: ${each.what} ${each.name}`), make("span", {}, number(each.threads), ", e.g. ", link(each.example)), time(each.since), each.advice])) : null,
    heading("work", "Work"),
    found.work.length
      ? table("Work", ["Thread", "User", "Graph", "Due", "Waiting messages", "Open run", "Held by", "Replies", "Scheduled"], found.work.map((each) => [
          link(each.thread_id), brief(each.user), brief(each.graph_id || each.open_run?.graph), due(each.queue.due_at ?? each.outbox.due_at), each.queue.pending ? number(each.queue.pending) : "",
          each.open_run ? make("span", {}, `${shortId(each.open_run.run_id)}, attempt ${each.open_run.attempts}, since `, time(each.open_run.started_at)) : "",
          each.queue.owner ? make("span", {}, brief(each.queue.owner), "lease ", time(each.queue.lease_until)) : each.queue.retry_at ? make("span", {}, "no one, next attempt ", time(each.queue.retry_at)) : "",
          Object.entries(each.outbox.states).map(([name, amount]) => `${amount} ${name}`).join(", "),
          each.later_at ? time(each.later_at) : ""]))
      : quiet("Nothing is due, and no run is open."),
    rest("work"),
    heading("workers", "Workers that hold runs"),
    found.workers.length ? table("Workers that hold runs", ["Worker", "Runs"], found.workers.map((each) => [brief(each.name), number(each.runs)])) : quiet("No worker holds a run."),
    heading("waiting", "Sleeping, or waiting for a signal"),
    found.waiting.length
      ? table("Sleeping, or waiting for a signal", ["Thread", "Graph", "Since", "Until", "For"], found.waiting.flatMap((each) => each.waits.map((wait) => [
          link(each.thread_id), brief(each.graph_id || each.run?.graph), time(wait.since), wait.until ? time(wait.until) : "", brief(wait.signal ?? "its time")])))
      : quiet("No thread sleeps or waits for a signal."),
    rest("interrupted"),
    heading("failed", "Failed"),
    found.failed.length
      ? table("Failed", ["Thread", "Graph", "Since", "Attempts", "Error"], found.failed.map((each) => [
          link(each.thread_id), brief(each.graph_id || each.run?.graph), time(each.updated_at), each.run ? number(each.run.attempts) : "", brief(each.run?.error || each.fault)]))
      : quiet("No thread has failed."),
    rest("failed"),
  ].filter(Boolean);
}
