// Values of a state: messages as people read them, everything else as JSON.

import { bytes, make, number } from "./dom.js";

// A message's fields, whatever it is wrapped in; null for anything else.
export function message(item) {
  const inner = item && typeof item === "object" && item.value && typeof item.value === "object" ? item.value : item;
  return inner && typeof inner === "object" && "type" in inner && "content" in inner ? inner : null;
}

export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(content, null, 2);
  return content.map((part) => (typeof part === "string" ? part : part?.type === "text" ? part.text : JSON.stringify(part, null, 2))).join("\n");
}

export function shown(item) {
  const found = message(item);
  return found ? card(found) : make("pre", {}, typeof item === "string" ? item : JSON.stringify(item, null, 2));
}

function card(found) {
  const calls = Array.isArray(found.tool_calls) ? found.tool_calls : [];
  const about = [found.type, found.name ? ` ${found.name}` : "", found.tool_call_id ? ` answers ${found.tool_call_id}` : ""].join("");
  return make(`div.message.of-${/^[a-z]+$/.test(found.type) ? found.type : "other"}`, {},
    make("p.role", {}, about, found.id ? make("code", {}, found.id) : null),
    textOf(found.content) ? make("pre", {}, textOf(found.content)) : null,
    calls.map((call) => make("pre.call", {}, `calls ${call?.name}(${JSON.stringify(call?.args)})  ${call?.id ?? ""}`)));
}

// What the API sends for a value: the whole of it, or the beginning of a large one.
export function valueShown(sent) {
  if ("beginning" in sent) return make("div", {}, make("p.quiet", {}, `The beginning of ${bytes(sent.bytes)}:`), make("pre", {}, sent.beginning));
  return shown(sent.value);
}

export function change(name, found) {
  const body = [];
  const block = (sign, word, item, where) => make(`div.change.${word}`, {}, make("p.mark", {}, `${sign} ${word}${where ?? ""}`), shown(item));
  switch (found.change) {
    case "added":
      body.push(...(Array.isArray(found.after) ? found.after : [found.after]).map((item) => block("+", "added", item)));
      break;
    case "removed":
      body.push(...(Array.isArray(found.before) ? found.before : [found.before]).map((item) => block("−", "removed", item)));
      break;
    case "value":
      body.push(block("−", "removed", found.before), block("+", "added", found.after));
      break;
    case "dict":
      for (const [key, value] of Object.entries(found.removed)) body.push(block("−", "removed", value, ` ${key}`));
      for (const [key, value] of Object.entries(found.edited)) body.push(block("−", "removed", value.before, ` ${key}`), block("+", "added", value.after, ` ${key}`));
      for (const [key, value] of Object.entries(found.added)) body.push(block("+", "added", value, ` ${key}`));
      break;
    case "list":
      body.push(make("p.quiet", {}, `${number(found.kept)} of ${number(found.length)} items are the same.`));
      for (const each of found.removed) body.push(block("−", "removed", each.item, ` at ${each.index}`));
      for (const each of found.edited) body.push(make("div.change.edited", {}, make("p.mark", {}, `± edited at ${each.to}`), make("del", {}, shown(each.before)), make("ins", {}, shown(each.after))));
      for (const each of found.moved) body.push(block("↕", "moved", each.item, ` from ${each.from} to ${each.to}`));
      for (const each of found.added) body.push(block("+", "added", each.item, ` at ${each.index}`));
      for (const [kind, count] of Object.entries(found.counts)) if (count > found[kind].length) body.push(make("p.quiet", {}, `${number(count - found[kind].length)} more ${kind}.`));
      break;
  }
  return make("section.channel", {}, make("h3", {}, name), body);
}

// LangGraph's own channels, by which steps trigger each other, come last and folded.
export const isTrigger = (name) => name.startsWith("branch:") || name.startsWith("join:") || name.startsWith("__");

export function folded(names, show) {
  const own = names.filter((name) => !isTrigger(name));
  const triggers = names.filter(isTrigger);
  const shownOwn = own.map(show);
  if (!triggers.length) return shownOwn;
  return [...shownOwn, make("details.channel.triggers", { open: !own.length }, make("summary", {}, `LangGraph's own channels: ${triggers.join(", ")}`), triggers.map(show))];
}
