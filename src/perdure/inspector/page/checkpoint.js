// The checkpoint that is selected: what it changed, its state by channel, and the writes of its tasks.

import { get } from "./api.js";
import { bytes, duration, facts, field, fill, focusIfLost, make, number, shortId } from "./dom.js";
import { address } from "./address.js";
import { change, folded, valueShown } from "./values.js";

let tab = "changes";
let turn = 0;

export async function showCheckpoint(place, about, asked) {
  const mine = ++turn;
  const where = { id: about.thread_id, namespace: asked.namespace, checkpoint: asked.checkpoint };
  const found = await get("checkpoint", where);
  if (mine !== turn) return;
  const body = make("div.tab-body", { id: "tab-body" });
  const tabs = make("div.tabs", { role: "group", "aria-label": "Show" }, [["changes", "Changes"], ["state", "State"], ["writes", `Written by the next step (${found.writes.length})`]].map(([name, text]) => make("button", { type: "button", "data-tab": name, onclick: () => choose(name) }, text)));
  const back = address("thread", { id: about.thread_id, namespace: asked.namespace });
  fill(place,
    make("p.narrow", {}, make("a", { href: back }, "← Back")),
    make("h2", { tabIndex: -1 }, asked.checkpoint ? "Checkpoint" : "Latest checkpoint"),
    facts([
      ["Id", make("code", {}, found.checkpoint_id)],
      ["Parent", found.parent_id ? make("a", { href: address("thread", { ...where, checkpoint: found.parent_id }) }, shortId(found.parent_id)) : "none"],
      ["Created", found.created_at.slice(0, 23).replace("T", " ")],
      ["Step", found.step === null ? null : `${found.step}, ${found.source}`],
      [found.nodes.length > 1 ? "Nodes" : "Node", found.nodes.length ? found.nodes.join(", ") : null],
      ["Took", found.began_at && found.ended_at ? duration(found.ended_at - found.began_at) : null],
      ["Tags", found.tags.length ? found.tags.join(", ") : null],
      ["Size of the state", bytes(found.channels.reduce((sum, each) => sum + each.bytes, 0))],
    ]),
    make("p.quiet", {}, "The size of the state is that of this checkpoint's values. Checkpoints share what did not change, so their sum is more than the thread, and the thread is a part of the database."),
    tabs, body);

  async function choose(name) {
    tab = name;
    for (const button of tabs.children) button.setAttribute("aria-pressed", button.dataset.tab === name);
    if (name === "state") fill(body, state(found, where), metadata(found));
    else if (name === "writes") fill(body, writes(found));
    else await changes(body, about, found, where);
  }
  await choose(tab);
}

async function changes(body, about, found, where, before = "", after = found.checkpoint_id) {
  const other = make("input", { type: "text", value: before, placeholder: found.parent_id ? "its parent" : "nothing", autocomplete: "off", spellcheck: false });
  const form = make("form.row", {}, field("Compare with (a checkpoint, tag or step)", other), make("button", { type: "submit" }, "Compare"));
  const result = make("div");
  fill(body, form, result);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(other.value.trim());
  });
  async function show(from) {
    try {
      const diff = await get("diff", { id: where.id, namespace: where.namespace, before: from, after });
      const names = Object.keys(diff.channels);
      fill(result, names.length ? folded(names, (name) => change(name, diff.channels[name])) : make("p.quiet", {}, "No channel differs."));
    } catch (error) {
      fill(result, make("p.problem", { role: "alert" }, error.message));
    }
  }
  await show(before);
}

function state(found, where) {
  if (!found.channels.length) return make("p.quiet", {}, "No channel has a value.");
  const byName = Object.fromEntries(found.channels.map((channel) => [channel.name, channel]));
  return make("div", {}, folded(Object.keys(byName), (name) => {
    const channel = byName[name];
    const large = channel.bytes > found.alert_bytes;
    const title = make("summary", {}, make("b", {}, channel.name), " ", make(`span.${large ? "problem" : "quiet"}`, {}, bytes(channel.bytes), large ? `, above the alert line of ${bytes(found.alert_bytes)}` : "", channel.length === null ? "" : `, ${number(channel.length)} items`, channel.is_replayed ? ", put together from its updates" : ""));
    return make("details.channel", { open: true }, title, "items" in channel ? list(channel, where) : valueShown(channel));
  }));
}

function list(channel, where) {
  const items = make("ol.items", { start: channel.start }, channel.items.map((item) => make("li", {}, valueShown(item))));
  const more = make("button", { type: "button" });
  const label = (start) => {
    more.textContent = `${number(start)} earlier ${start === 1 ? "item" : "items"}`;
    more.hidden = start === 0;
  };
  let start = channel.start;
  label(start);
  more.onclick = async () => {
    try {
      const page = await get("channel", { ...where, channel: channel.name, before: start });
      items.prepend(...page.items.map((item) => make("li", {}, valueShown(item))));
      start = items.start = page.start;
      label(start);
      focusIfLost(items.firstElementChild);
    } catch (error) {
      more.replaceWith(make("p.problem", { role: "alert" }, error.message));
    }
  };
  return make("div", {}, more, items);
}

function metadata(found) {
  return make("details.channel", {}, make("summary", {}, make("b", {}, "Metadata of the checkpoint")), make("pre", {}, JSON.stringify(found.metadata, null, 2)));
}

function writes(found) {
  if (!found.writes.length) return make("p.quiet", {}, "No task has written after this checkpoint.");
  const tasks = new Map();
  for (const write of found.writes) tasks.set(write.task_id, [...(tasks.get(write.task_id) || []), write]);
  return make("div", {}, [...tasks].map(([task, all]) => make("section.channel", {}, make("h3", {}, `Task ${shortId(task)}`), all.map((write) => make("div", {}, make("p.mark", {}, write.channel), valueShown(write))))));
}
