// Replay of a thread: recorded steps run again by a graph, or by two beside one another, a part at a time.

import { get, replay } from "./api.js";
import { fill, field, make, number } from "./dom.js";
import { address } from "./address.js";
import { change } from "./values.js";

export async function showReplay(main, asked) {
  const id = asked.id || "";
  const [about, thread] = await Promise.all([get("about"), get("thread", { id })]);
  const heading = [make("p", {}, make("a", { href: address("thread", { id }) }, "← Thread")), make("h1.id", {}, "Replay of ", id)];
  if (!about.permissions.includes("replay")) {
    fill(main, heading, make("p.notice", {}, "Replays are not permitted here. Start the inspector with --graph module:graph --allow replay."));
    return null;
  }
  const usual = about.graphs.includes(thread.graph_id) ? thread.graph_id : about.graphs[0];
  const choice = (name, chosen, none) => make("select", { name }, [none, ...about.graphs].filter((each) => each !== null).map((each) => make("option", { value: each, selected: each === chosen }, each || "no other")));
  const graph = choice("graph", usual, null);
  const other = choice("other", about.compared || "", "");
  const last = make("input", { name: "last", type: "number", min: "1", placeholder: "all" });
  const ignore = make("input", { name: "ignore", autocomplete: "off", spellcheck: false, placeholder: "channels" });
  const context = make("input", { name: "context", autocomplete: "off", spellcheck: false, placeholder: '{"user": "…"}' });
  const toTheEnd = make("input", { name: "all", type: "checkbox" });
  const start = make("button", { type: "submit" }, "Replay");
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const onward = make("button", { type: "button", hidden: true }, "Go on after this step");
  const bar = make("progress", { hidden: true, value: 0 });
  bar.setAttribute("aria-label", "Steps replayed");
  const note = make("p.quiet", { role: "status" });
  const result = make("div.replay");
  const form = make("form.row", {},
    field("Graph", graph), about.graphs.length > 1 ? field("Beside it", other) : null, field("Newest checkpoints", last),
    field("Ignore", ignore), field("Context, as JSON", context), make("label.check", {}, toTheEnd, " every step that differs"), start);
  fill(main, heading,
    make("p.quiet", {}, "Each recorded step runs again from its recorded state. Models and tools are answered from the recording, and nothing is written or called."),
    form, make("div.row", {}, bar, note, stop, onward), result);

  let turn = 0;
  let state = null;

  async function go() {
    const mine = ++turn;
    start.disabled = true;
    onward.hidden = true;
    stop.hidden = bar.hidden = false;
    try {
      do {
        const part = await replay({ id, graphs: state.graphs, cursor: state.cursor, ...state.options });
        if (mine !== turn) return;
        take(part);
      } while (state.cursor !== null && (toTheEnd.checked || !state.differs));
      state.differs = false;
      onward.hidden = state.cursor === null;
      if (!onward.hidden) onward.focus();
    } catch (error) {
      if (mine !== turn) return;
      result.append(make("p.problem", { role: "alert" }, error.message));
    }
    stop.hidden = bar.hidden = true;
    start.disabled = false;
  }

  function take(part) {
    state.cursor = part.cursor;
    bar.max = part.total;
    bar.value = part.done;
    for (const step of part.steps) {
      const differs = step.differences.some((each) => each.length);
      if (differs) {
        state.differs = true;
        state.found += 1;
      }
      if (step.skipped) state.skipped += 1;
      else if (step.nodes.length) state.replayed += 1;
      if (step.is_derived) state.derived += 1;
      if (differs || step.skipped) result.append(shown(step, id, state.graphs));
    }
    const words = [`${number(state.replayed)} ${state.replayed === 1 ? "step" : "steps"} replayed${part.cursor === null ? "" : ", not all"}`,
      state.found ? `${number(state.found)} ${state.found === 1 ? "differs" : "differ"}` : state.replayed ? "nothing differs" : "",
      state.skipped ? `${number(state.skipped)} not replayed` : "",
      state.derived ? `no calls are recorded for ${number(state.derived)}, so that changed prompts are not seen there` : ""];
    note.textContent = `${words.filter(Boolean).join("; ")}.`;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const options = { ignore: ignore.value.split(/[\s,]+/).filter(Boolean) };
    if (last.value) options.last = Number(last.value);
    result.replaceChildren();
    if (context.value.trim()) {
      try {
        options.context = JSON.parse(context.value);
      } catch {
        fill(result, make("p.problem", { role: "alert" }, "The context is not JSON."));
        return;
      }
    }
    const graphs = [graph.value, other.value].filter((name, place, all) => name && all.indexOf(name) === place);
    state = { graphs, options, cursor: null, found: 0, replayed: 0, skipped: 0, derived: 0, differs: false };
    note.textContent = "";
    go();
  });
  onward.onclick = go;
  stop.onclick = () => {
    turn += 1;
    stop.hidden = bar.hidden = true;
    start.disabled = false;
    onward.hidden = state.cursor === null;
    note.textContent = `Stopped. ${note.textContent}`;
  };
  return () => {
    turn += 1;
  };
}

function shown(step, id, graphs) {
  const title = make("h2", {}, make("a", { href: address("thread", { id, checkpoint: step.checkpoint_id }) }, `Step ${step.step}`), step.nodes.length ? ` ${[...new Set(step.nodes)].join(", ")}` : "");
  if (step.skipped) return make("section.channel", {}, title, make("p.quiet", {}, `Not replayed: ${step.skipped}.`));
  const columns = step.differences.map((found, place) => make("div.version", { "data-graph": graphs[place] },
    graphs.length > 1 ? make("h3", {}, graphs[place]) : null,
    found.length ? found.map(difference) : make("p.quiet", {}, "As it was recorded.")));
  const verdict = graphs.length > 1 && step.is_alike ? make("p.quiet", {}, "Both differ from the recording in the same way.") : null;
  return make("section.channel", {}, title, verdict, make("div.versions", {}, columns));
}

function difference(found) {
  const names = Object.keys(found.changes);
  return make("div.difference", {}, make("p.problem", {}, make("b", {}, found.place), `: ${found.detail}`), names.map((name) => change(name, found.changes[name])));
}
