// A user: all that is stored of the user, what the calls of models used, and removing everything of the user.

import { get } from "./api.js";
import { inParts } from "./bulk.js";
import { THREAD_BYTES, announce, bytes, count as several, facts, field, fill, make, number, table, threadLink, threadStatus, time, userLink } from "./dom.js";
import { address } from "./address.js";
import { changedIn } from "./filters.js";
import { money, total } from "./steps.js";

const SHOWN = 200; // Threads in the table; all of them count.

export async function showUser(main, asked) {
  const user = asked.user || "";
  const about = await get("about");
  const sums = make("div");
  const list = make("div");
  const note = make("p.quiet", { role: "status" });
  const stop = make("button", { type: "button" }, "Stop");
  const besides = make("div");
  const staying = make("p");
  let stored = null;
  const since = changedIn(asked.since);
  fill(main,
    make("p", {}, make("a", { href: address("threads", { user }) }, "← Threads")),
    make("h1", {}, `User ${user}`),
    make("p", {}, make("a", { href: address("runs", { user, state: "any" }) }, "Runs of this user")),
    make("div.row", {}, field("Changed in", since)), sums, besides, make("div.row", {}, note, stop), list, about.permissions.includes("delete") ? removal() : null);

  let turn = 1;
  stop.onclick = () => {
    turn += 1;
    stop.hidden = true;
    note.textContent += " Stopped.";
  };

  since.addEventListener("change", () => {
    history.replaceState(null, "", address("user", { user, since: since.value }));
    load().catch(failed);
  });

  // Threads are read one by one, as no index has their users or tokens.
  async function load() {
    const mine = ++turn;
    const threads = [];
    let [examined, cursor, usage, count] = [0, null, total([]), 0];
    let [runs, size, shared] = [0, 0, 0];
    note.className = "quiet";
    stop.hidden = false;
    do {
      const page = await get("user", { user, since: since.value, cursor });
      if (mine !== turn) return;
      if (cursor === null) {
        stored = page.stored;
        fill(besides, stored && storedShown(stored));
        staying.textContent = stays(stored);
      }
      for (const each of page.threads) {
        runs += each.runs;
        size += each.bytes ?? 0;
        shared += each.others.length > 0;
      }
      examined += page.examined;
      cursor = page.cursor;
      count += page.threads.length;
      usage = total([usage, ...page.threads.map((each) => each.usage).filter(Boolean)]);
      threads.push(...page.threads.slice(0, SHOWN - threads.length));
      note.textContent = `${number(count)} ${count === 1 ? "thread" : "threads"} of the user in ${number(examined)} examined${cursor === null ? ", which are all" : " so far"}.${count > SHOWN ? ` ${SHOWN} of them are shown.` : ""}`;
      fill(sums, facts([
        ["Threads", number(count)],
        ["Shared with other users, so they stay", shared ? number(shared) : null],
        ["Runs in them", number(runs)],
        ["Size of the threads", bytes(size)],
        ["Calls of models", number(usage.calls)],
        ["Tokens in", number(usage.input)],
        ["Tokens out", number(usage.output)],
        ["Cost", usage.cost === null ? null : money(usage.cost, usage.currency)],
        ["Without a price", usage.unpriced.slice(0, 5).join(", ")],
      ]), make("p.quiet", {}, THREAD_BYTES));
      fill(list, threads.length ? table("Threads of the user", ["Thread", "Status", "Graph", "Activity", "Runs", "Size", "Also of", "Tokens in", "Tokens out", "Cost"], threads.map(row)) : make("p.quiet", {}, cursor === null ? (since.value ? "No thread of the user changed in this time." : "The user has no thread.") : "None so far."));
    } while (cursor !== null);
    stop.hidden = true;
    announce(note.textContent);
  }

  function removal() {
    const confirm = make("input", { name: "confirm", required: true, autocomplete: "off", spellcheck: false });
    const outcome = make("p", { role: "status", tabIndex: -1 });
    const button = make("button", { type: "submit" }, "Delete everything of the user");
    const form = make("form", {},
      make("p.problem", {}, "All threads, whatever time is chosen above, crons, assistants and what is known of the user are removed, but no thread that is also of others; runs that are under way end. It cannot be brought back. The log of actions, the counts of the last day, backups, what an agent itself wrote into its store and what the user has used of limits stay, and so do the default assistants of graphs."),
      staying,
      field("Type the user's id to confirm", confirm), make("div.row", {}, button), outcome);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      turn += 1; // The list below is not read any further.
      stop.hidden = true;
      button.disabled = true;
      const sum = { threads: 0, shared: 0, crons: 0, assistants: 0, entries: 0, refused: 0 };
      let isInLog = false;
      const add = (part) => {
        isInLog = part.is_in_log;
        for (const name of Object.keys(sum)) sum[name] += part[name];
      };
      const words = (isOver) => `${several(sum.threads, "thread", "threads")}, ${several(sum.crons, "cron", "crons")}, ${several(sum.assistants, "assistant", "assistants")} and ${several(sum.entries, "entry", "entries")} of what was known are removed${isOver ? "" : " so far"}.${sum.shared ? ` ${several(sum.shared, "thread stays", "threads stay")}, as other users have runs there.` : ""}${sum.refused ? ` ${several(sum.refused, "thread stays", "threads stay")}: you may not delete ${sum.refused === 1 ? "it" : "them"}.` : ""}${isInLog ? " Other processes use the database: what was removed stays in its log until they have written a few megabytes, or end. Delete the user again later to empty the log." : ""}${isOver ? ` ${stays(stored)}`.trimEnd() : ""}`;
      if (await inParts("delete-user", { user, confirm: confirm.value }, outcome, add, words)) {
        confirm.value = "";
        if (form.isConnected) await load().catch(failed);
      }
      button.disabled = false;
      outcome.focus();
    });
    return make("div.actions.run", {}, make("details", {}, make("summary", {}, "Delete everything of the user"), form));
  }

  const failed = (error) => {
    stop.hidden = true;
    note.textContent = error.message;
    note.className = "problem";
  };
  load().catch(failed);
  return () => {
    turn += 1;
  };
}

// What is stored beside the listed threads: what is removed with the user, and what stays.
function storedShown(stored) {
  return facts([
    ["Crons", number(stored.crons.length)],
    ["Assistants", number(stored.assistants.length)],
    ["Threads that wait to begin", stored.unlisted.length ? number(stored.unlisted.length) : null],
    ["Entries of what is known", number(stored.entries)],
    ["Turns that it is extracted from", stored.turns ? number(stored.turns) : null],
    ["Empty names in the store", stored.names ? number(stored.names) : null],
    ["Chats with sessions", stored.sessions ? number(stored.sessions) : null],
    ["Stays: items in the store", [several(stored.items, "item", "items"), ...named(stored.namespaces)].join(", ")],
    ["Stays: used of limits", stored.limits.join(", ")],
  ]);
}

const NAMES = 5;

const named = (found) => [...found.slice(0, NAMES).map(({ namespace }) => namespace.join(" › ")), ...(found.length > NAMES ? [`${found.length - NAMES} more`] : [])];

// What a removal leaves of this user, by name, and what removes it.
function stays(stored) {
  if (!stored) return "";
  const items = stored.items ? `${several(stored.items, "item of the store stays", "items of the store stay")} under ${named(stored.namespaces).join(", ")}: a program removes them with store.delete.` : "";
  const limits = stored.limits.length ? `What is used of ${stored.limits.length === 1 ? "the limit" : "the limits"} ${stored.limits.join(", ")} stays until it is anew; perdure limits reset removes it.` : "";
  return `${items} ${limits}`.trim();
}

function row(each) {
  const usage = each.usage;
  return [
    threadLink(each.thread_id, each.title),
    threadStatus(each), each.graph_id || each.run?.graph || "", time(each.updated_at),
    number(each.runs), each.bytes === null ? "?" : bytes(each.bytes),
    make("span", {}, each.others.flatMap((name, index) => [index ? ", " : "", userLink(name)])),
    ...(usage === null ? ["?", "?", "?"] : [number(usage.input), number(usage.output), usage.cost === null ? "" : money(usage.cost, usage.currency)]),
  ];
}
