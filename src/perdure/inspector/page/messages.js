// A thread's messages with their runs, scheduled messages, and replies.

import { get } from "./api.js";
import { make, shortId, status, time } from "./dom.js";

const json = (value) => make("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 2));

export async function messages(id) {
  const found = await get("messages", { id });
  const place = make("div");
  const list = make("div");
  const more = make("button", { type: "button", hidden: found.cursor === null }, "Earlier messages");
  let cursor = found.cursor;
  more.onclick = async () => {
    const page = await get("messages", { id, before: cursor });
    list.append(...page.messages.map(message));
    cursor = page.cursor;
    more.hidden = cursor === null;
  };
  list.append(...found.messages.map(message));
  if (!found.messages.length && !found.later.length) list.append(make("p.quiet", {}, "No message was accepted on this thread."));
  place.append(...found.later.map((each) => make("div.notice", {}, "Scheduled: ", json(each.payload))), list, more);
  if (found.replies.length) place.append(make("h2", {}, "Replies"), ...found.replies.map(reply));
  return place;
}

function message(each) {
  return make("section.channel", {},
    make("p.mark", {}, `${each.number} · ${each.mode}${each.channel ? ` · ${each.channel}` : ""} · `, time(each.accepted_at), " ", each.run ? status(each.run.state) : status("pending"), each.run ? ` run ${shortId(each.run.run_id)}` : ""),
    json(each.payload), each.run?.error ? make("p.problem", {}, each.run.error) : null);
}

function reply(each) {
  return make("section.channel", {}, make("p.mark", {}, `${each.number} to ${each.channel || "no channel"} · `, status(each.state), ` ${each.attempts} attempts `, time(each.created_at), each.provider_id ? ` · ${each.provider_id}` : ""), json(each.payload), each.error ? make("p.problem", {}, each.error) : null);
}
