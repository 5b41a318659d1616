// What was said: the messages of the latest state as bubbles, with tool calls, results and reasoning folded.

import { get } from "./api.js";
import { focusIfLost, make, number, time } from "./dom.js";
import { money } from "./steps.js";

const ROLES = new Map(Object.entries({ human: "User", user: "User", ai: "Assistant", assistant: "Assistant", system: "System", developer: "Developer", tool: "Tool", function: "Tool" }));
const LINE = 80;
const PARTS_MAX = 20;

const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

// With words, it is loaded back to a message that has them all, to which the focus goes.
export async function conversation(id, namespace = "", words = "") {
  const place = make("div.conversation");
  const older = make("button", { type: "button", hidden: true }, "Earlier messages");
  const list = make("ol", { "aria-label": "Conversation" });
  place.append(older, list);
  let cursor = null;
  const load = async () => {
    const page = await get("conversation", { id, namespace, cursor });
    list.prepend(...page.messages.map((each) => bubble(each)));
    cursor = page.cursor;
    older.hidden = cursor === null;
    older.textContent = `Earlier messages (${number(page.start)})`;
    if (!list.children.length) place.replaceChildren(make("p.quiet", {}, "The state of this thread has no messages."));
  };
  older.onclick = async () => {
    older.disabled = true;
    try {
      await load();
    } catch (error) {
      place.prepend(make("p.problem", { role: "alert" }, error.message));
    }
    older.disabled = false;
    if (older.hidden) focusIfLost(list.firstElementChild);
    else focusIfLost(older);
  };
  await load();
  const wanted = words.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  const has = (each) => wanted.every((word) => each.textContent.toLocaleLowerCase().includes(word));
  let found = null;
  for (let part = 0; wanted.length && !found && part < PARTS_MAX; part += 1) {
    if (part) await load();
    found = [...list.children].findLast(has);
    if (cursor === null) break;
  }
  if (found) {
    found.dataset.found = "";
    found.tabIndex = -1;
  }
  return place;
}

function bubble(each) {
  const role = ROLES.get(each.role) || each.role;
  const kind = role === "User" ? "human" : role === "Assistant" ? "ai" : role === "Tool" ? "tool" : "other";
  const named = each.name ? `${role} ${each.name}` : role;
  const about = [each.usage?.model, each.usage ? `${number(each.usage.input)} tokens in, ${number(each.usage.output)} out` : null, each.usage?.cost != null ? money(each.usage.cost, each.usage.currency) : null].filter(Boolean).join(" · ");
  const body = [];
  if (each.reasoning) body.push(folded("Reasoning", each.reasoning));
  if (kind === "tool") body.push(folded(`${each.status === "error" ? "Failed: " : "Result"}${each.name ? ` of ${each.name}` : ""}: ${line(each.text)}`, each.text));
  else if (each.text) body.push(make("p.said", {}, each.text));
  for (const part of each.parts) body.push(folded(`Part: ${part?.type ?? typeof part}`, json(part)));
  for (const call of each.tool_calls) body.push(folded(`Calls ${call.name}(${line(json(call.args).replace(/\s+/g, " "))})`, json(call.args)));
  if (!body.length) body.push(make("p.quiet", {}, "(empty)"));
  return make(`li.bubble.is-${kind}`, {},
    make("p.mark", {}, named, each.node ? ` by ${each.node}` : null, each.at ? make("span", {}, " · ", time(each.at)) : null, each.status === "error" ? make("span.tag.is-bad", {}, "error") : null),
    body, about ? make("p.mark", {}, about) : null);
}

const line = (text) => (text.length > LINE ? `${text.slice(0, LINE).trim()}…` : text).replace(/\s+/g, " ");

const folded = (words, text) => make("details", {}, make("summary", {}, words), make("pre", {}, text));
