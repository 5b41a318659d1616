// The queue: what is due, who holds which run, what waits for an answer, and what failed.

import { get } from "./api.js";
import { announce, fill, make, number, shortId, span, status, table, time } from "./dom.js";
import { address } from "./address.js";

const EVERY_MS = 4000;

export async function showQueue(main) {
  const place = make("div");
  const load = async () => {
    const found = await get("queue");
    fill(place, ...parts(found));
  };
  await load();
  fill(main, make("h1", {}, "Queue"), place);
  const news = setInterval(() => {
    if (document.hidden || place.contains(document.activeElement)) return;
    load().catch((error) => announce(error.message));
  }, EVERY_MS);
  return () => clearInterval(news);
}

const link = (id) => make("a", { href: address("thread", { id }) }, id);

function parts(found) {
  const due = (at) => (at === null ? "" : at <= found.now ? `for ${span((found.now - at) / 1e6)}` : `in ${span((at - found.now) / 1e6)}`);
  return [
    found.is_whole ? null : make("p.notice", {}, "There is more work than is shown here."),
    found.stuck.length ? make("h2", {}, "Stuck") : null,
    found.stuck.length ? table("Stuck", ["What", "Threads", "Since", "What to do"], found.stuck.map((each) => [`${each.problem}: ${each.what} ${each.name}`, make("span", {}, number(each.threads), ", e.g. ", link(each.example)), time(each.since), each.advice])) : null,
    make("h2", {}, "Work"),
    found.work.length
      ? table("Work", ["Thread", "User", "Graph", "Due", "Waiting messages", "Open run", "Held by", "Replies", "Scheduled"], found.work.map((each) => [
          link(each.thread_id), each.user ?? "", each.graph_id || each.open_run?.graph || "", due(each.queue.due_at ?? each.outbox.due_at), each.queue.pending ? number(each.queue.pending) : "",
          each.open_run ? make("span", {}, `${shortId(each.open_run.run_id)}, attempt ${each.open_run.attempts}, since `, time(each.open_run.started_at)) : "",
          each.queue.owner ? make("span", {}, each.queue.owner, ", lease ", time(each.queue.lease_until)) : each.queue.retry_at ? make("span", {}, "no one, next attempt ", time(each.queue.retry_at)) : "",
          Object.entries(each.outbox.states).map(([name, count]) => `${count} ${name}`).join(", "),
          each.later_at ? time(each.later_at) : ""]))
      : make("p.quiet", {}, "Nothing is due, and no run is open."),
    make("h2", {}, "Workers that hold runs"),
    found.workers.length ? table("Workers", ["Worker", "Runs"], found.workers.map((each) => [each.name, number(each.runs)])) : make("p.quiet", {}, "No worker holds a run."),
    make("h2", {}, "Waiting for an answer"),
    threads(found.interrupted, "No thread waits for an answer."),
    make("h2", {}, "Sleeping, or waiting for a signal"),
    found.waiting.length
      ? table("Sleeping, or waiting for a signal", ["Thread", "Graph", "Since", "Until", "For"], found.waiting.flatMap((each) => each.waits.map((wait) => [
          link(each.thread_id), each.graph_id || each.run?.graph || "", time(wait.since), wait.until ? time(wait.until) : "", wait.signal ?? "its time"])))
      : make("p.quiet", {}, "No thread sleeps or waits for a signal."),
    make("h2", {}, "Failed"),
    threads(found.failed, "No thread has failed."),
  ];
}

function threads(list, nothing) {
  if (!list.length) return make("p.quiet", {}, nothing);
  return table(nothing, ["Thread", "Graph", "Since", "Attempts", "Error"], list.map((each) => [link(each.thread_id), each.graph_id || each.run?.graph || "", time(each.updated_at), each.run ? number(each.run.attempts) : "", each.run?.error || each.fault || ""]));
}
