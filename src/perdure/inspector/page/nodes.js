// Times of nodes over all threads: steps are read a part at a time, until they are all, or stopped.

import { get } from "./api.js";
import { announce, duration, field, fill, make, number, table } from "./dom.js";

const CLASSES = 8; // for each doubling, as the server has them
const SPANS = [["1h", "the last hour"], ["6h", "the last 6 hours"], ["1d", "the last 24 hours"], ["7d", "the last week"], ["30d", "the last 30 days"]];

export function nodeTimes() {
  const since = make("select", { name: "nodes-since" }, SPANS.map(([value, text]) => make("option", { value, selected: value === "1d" }, text)));
  const begin = make("button", { type: "submit" }, "Measure nodes");
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const note = make("p.quiet", { role: "status" });
  const list = make("div");
  const form = make("form.row", {}, field("Steps of", since), begin, stop);
  let turn = 0;

  async function measure() {
    const mine = ++turn;
    const nodes = new Map();
    let [examined, unreadable, cursor] = [0, 0, null];
    note.className = "notice";
    note.textContent = "Reading …";
    fill(list);
    stop.hidden = false;
    const all = await countThreads();
    do {
      const part = await get("nodes", { since: since.value, cursor });
      if (mine !== turn || !form.isConnected) return;
      for (const each of part.nodes) add(nodes, each);
      examined += part.examined;
      unreadable += part.unreadable;
      cursor = part.cursor;
      const threads = `${number(examined)} ${examined === 1 ? "thread" : "threads"}`;
      note.textContent = `${cursor === null ? `${threads} examined, which are all that changed since.` : `So far, ${threads}${all === null ? "" : ` of at most ${number(Math.max(all, examined))}`}: the numbers below are not whole.`}${unreadable ? ` ${number(unreadable)} cannot be read: run perdure fsck.` : ""}`;
      fill(list, shown([...nodes.values()], cursor === null));
    } while (cursor !== null);
    note.className = "quiet";
    hideStop();
    announce(note.textContent);
  }

  function hideStop() {
    if (document.activeElement === stop) begin.focus();
    stop.hidden = true;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    measure().catch((error) => {
      hideStop();
      note.textContent = error.message;
      note.className = "problem";
    });
  });
  stop.onclick = () => {
    turn += 1;
    hideStop();
    note.textContent += " Stopped.";
  };
  return make("section", {}, make("h2", {}, "Nodes"), make("p.quiet", {}, "How often each node ran and how long it took, from the steps that are stored. Every thread that changed since then is read."), form, note, list);
}

// Null where the number is not known.
async function countThreads() {
  const found = await get("growth");
  return found.samples.at(-1).threads;
}

function add(nodes, each) {
  const key = JSON.stringify([each.graph, each.node]);
  const sum = nodes.get(key) ?? { graph: each.graph, node: each.node, count: 0, failed: 0, longest: 0, classes: new Map() };
  sum.count += each.count;
  sum.failed += each.failed;
  sum.longest = Math.max(sum.longest, each.longest);
  for (const [place, count] of Object.entries(each.classes)) sum.classes.set(Number(place), (sum.classes.get(Number(place)) ?? 0) + count);
  nodes.set(key, sum);
}

// The middle of the class with a percentile, in microseconds, and no more than the longest.
function percentile({ classes, count, longest }, part) {
  let passed = 0;
  for (const place of [...classes.keys()].sort((a, b) => a - b)) {
    passed += classes.get(place);
    if (passed >= part * count) return Math.min(longest, 2 ** ((place + 0.5) / CLASSES));
  }
  return longest;
}

function shown(nodes, isWhole) {
  if (!nodes.length) return make("p.quiet", {}, isWhole ? "No node ran." : "None so far.");
  const rows = nodes.map((each) => ({ ...each, p50: percentile(each, 0.5), p95: percentile(each, 0.95) })).sort((a, b) => b.p95 - a.p95);
  return table(isWhole ? "Nodes, the slowest first" : "Nodes so far, the slowest first", ["Graph", "Node", "Ran", "Failed", "Half within", "95% within", "Longest"], rows.map((each) => [each.graph ?? "", each.node.replaceAll("|", " › "), number(each.count), number(each.failed), duration(each.p50), duration(each.p95), duration(each.longest)]));
}
