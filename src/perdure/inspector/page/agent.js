// What the agent plans, and its subagents: who they are, what they do now and since when, with their transcripts.

import { get } from "./api.js";
import { address } from "./address.js";
import { fill, make, time } from "./dom.js";

const AGAIN_MS = 2000;
const STATES = { running: ["status is-open", "running"], asked: ["tag is-asked", "waits for an answer"], failed: ["tag is-bad", "failed"], open: ["tag is-asked", "not over"], done: ["quiet", "done"] };

// where: the thread, and optionally a namespace and a checkpoint. What runs is shown anew every few seconds.
export async function agent(where) {
  const plan = make("div");
  const list = make("ol.agents", { "aria-label": "Subagents" });
  const more = make("button", { type: "button", hidden: true }, "More subagents");
  const none = make("p.quiet", { hidden: true }, "This thread has no subagents.");
  const place = make("div", {}, plan, make("h2.run", {}, "Subagents"), none, list, more);
  let parts = 1;
  const load = async () => {
    const { todos } = await get("todos", where);
    let found = [];
    let cursor = "";
    for (let part = 0; part < parts && cursor !== null; part += 1) {
      const page = await get("subagents", { id: where.id, after: cursor });
      found = [...found, ...page.subagents];
      cursor = page.cursor;
    }
    fill(plan, todos.length ? [make("h2.run", {}, "To-dos"), make("ol.todos", {}, todos.map(todo))] : null);
    fill(list, found.map((each) => entry(each, where.id)));
    none.hidden = found.length > 0;
    more.hidden = cursor === null;
    return found.some((each) => each.state === "running");
  };
  const again = () => setTimeout(async () => {
    if (!place.isConnected) return;
    try {
      if (await load()) again();
    } catch (error) {
      place.prepend(make("p.problem", { role: "alert" }, error.message));
    }
  }, AGAIN_MS);
  more.onclick = async () => {
    parts += 1;
    more.disabled = true;
    try {
      await load();
    } catch (error) {
      place.prepend(make("p.problem", { role: "alert" }, error.message));
    }
    more.disabled = false;
  };
  if (await load()) again();
  return place;
}

const todo = (each) => make("li", {}, each.content, " ", make(`span.${each.status === "completed" ? "quiet" : "tag"}`, {}, each.status.replace(/_/g, " ")));

function entry(each, id) {
  const [kind, word] = STATES[each.state];
  const open = (view) => address("thread", { id, namespace: each.namespace, view });
  return make("li", {},
    make("p", {}, make("b", {}, each.name), " ", make(`span.${kind.replace(" ", ".")}`, {}, word), each.task ? ` ${each.task}` : null),
    make("p.quiet", {}, "since ", time(each.began_at), each.changed_at ? [", last step ", time(each.changed_at)] : null, each.step === null ? null : ` · step ${each.step}`, each.nodes.length ? ` · ${each.nodes.join(", ")}` : null),
    make("p", {}, make("a", { href: open("conversation") }, "Transcript"), " · ", make("a", { href: open("") }, "Steps"), " · ", make("a", { href: open("files") }, "Files")));
}
