// The audit log: what was done through the inspector, newest first.

import { get } from "./api.js";
import { fill, make, table, time } from "./dom.js";
import { address } from "./address.js";

export async function showLog(main) {
  const found = await get("log");
  fill(main, make("h1", {}, "Log of actions"), found.entries.length
    ? table("Actions", ["Time", "Who", "Action", "Thread", "Details", "Outcome"], found.entries.map((each) => [time(each.at), each.who, each.action, make("a", { href: address("thread", { id: each.thread_id }) }, each.thread_id), Object.entries(each.details).map(([name, value]) => `${name} ${value}`).join(", "), each.outcome]))
    : make("p.quiet", {}, "Nothing was done through the inspector yet."));
}
