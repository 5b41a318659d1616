// The audit log: what was done through the inspector, newest first.

import { get } from "./api.js";
import { fill, make, table, time } from "./dom.js";
import { address } from "./address.js";

const cells = (each) => [time(each.at), each.who, each.action, each.thread_id ? make("a", { href: address("thread", { id: each.thread_id }) }, each.thread_id) : "", Object.entries(each.details).map(([name, value]) => `${name} ${value}`).join(", "), each.outcome];
const page = (entries) => table("Actions", ["Time", "Who", "Action", "Thread", "Details", "Outcome"], entries.map(cells));

export async function showLog(main) {
  const found = await get("log");
  let cursor = found.cursor;
  const list = make("div");
  const more = make("button", { type: "button", hidden: cursor === null }, "Earlier actions");
  more.onclick = async () => {
    const next = await get("log", { cursor });
    if (next.entries.length) list.append(page(next.entries));
    cursor = next.cursor;
    more.hidden = cursor === null;
  };
  if (found.entries.length) list.append(page(found.entries));
  else if (cursor === null) list.append(make("p.quiet", {}, "Nothing was done through the inspector yet."));
  fill(main, make("h1", {}, "Log of actions"), make("p.quiet", {}, "What was done through these pages; actions of commands and programs are not in it."), list, more);
}
