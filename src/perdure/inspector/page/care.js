// Care: the schema, and examinations that go over all threads, a part at a time, until they are stopped.

import { get } from "./api.js";
import { THREAD_BYTES, brief, bytes, facts, field, fill, focusIfLost, hide, make, number, status, table, time } from "./dom.js";
import { address } from "./address.js";
import { growth } from "./growth.js";

const MOST = 100;

export async function showCare(main, asked) {
  const about = await get("care");
  const schema = about.schema;
  const result = make("div");
  const progress = make("p.quiet", { role: "status" });
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const keepLast = make("input", { type: "number", min: "1", value: about.retention?.keep_last ?? "" });
  const repeated = make("input", { type: "checkbox" });
  const keepFor = make("input", { type: "text", value: about.retention?.keep_for ?? "", placeholder: "30d", autocomplete: "off" });
  let turn = 0;

  async function run(what, asked, show) {
    const mine = ++turn;
    let examined = 0;
    let size = 0;
    let cursor = null;
    const rows = [];
    stop.hidden = false;
    try {
      do {
        const page = await get("scan", { what, cursor, ...asked });
        if (mine !== turn) return;
        examined += page.examined;
        rows.push(...page.rows);
        for (const each of page.rows) size += each.bytes ?? 0;
        if (what === "sizes") rows.sort((a, b) => (b.bytes ?? 0) - (a.bytes ?? 0));
        const hidden = rows.length - MOST;
        if (what === "sizes") rows.length = Math.min(rows.length, MOST);
        cursor = page.cursor;
        fill(result, show(rows.slice(0, MOST)), hidden > 0 && what !== "sizes" ? make("p.quiet", {}, `${number(hidden)} more.`) : null);
        const sum = what === "sizes" || what === "retention" ? `: ${bytes(size)}${what === "sizes" ? "" : " would go"}` : "";
        progress.textContent = `${number(examined)} threads examined${cursor ? " so far" : ", which is all"}${sum}.`;
      } while (cursor !== null);
    } catch (error) {
      fill(result, make("p.problem", { role: "alert" }, error.message));
    }
    hide(stop, progress);
  }
  stop.onclick = () => {
    turn += 1;
    progress.textContent += " Stopped.";
    hide(stop, progress);
  };
  const grown = make("section", {}, make("h2", {}, "Growth"), make("p.quiet", {}, "Loading…"));
  growth().then((shown) => grown.lastChild.replaceWith(shown));
  const button = (text, what, asked, show) => make("button", { type: "button", onclick: () => run(what, asked(), show) }, text);
  const none = () => ({});
  fill(main,
    make("h1", {}, "Care"),
    facts([
      ["Size of the database, with indexes and free space", about.database_bytes === null ? null : bytes(about.database_bytes)],
      ...(schema === null || schema.version === null ? [] : [
        ["Schema version", `${schema.version}${schema.version === schema.release ? ", which is this release's" : `, this release needs ${schema.release}`}`],
        ["Pending migrations", schema.pending.length ? make("pre", {}, schema.pending.join("\n")) : "none"],
      ]),
    ]),
    about.keys && facts([
      ["Encryption keys wrapped", time(about.keys.wrapped_at)],
      ["Data keys", number(about.keys.data_keys)],
    ]),
    about.password && facts([
      ["Password valid until", about.password.valid_until ? time(about.password.valid_until) : "replaced"],
      ["Failed renewals since", about.password.failures ? make("span.problem", {}, number(about.password.failures)) : "none"],
    ]),
    grown,
    make("div.row", {},
      button("Largest threads", "sizes", none, (rows) => sizes(rows, about.alert_bytes)),
      button("Failed runs and dead replies", "dead", () => ({ repeated: repeated.checked ? "1" : "" }), dead),
      make("label.check", {}, repeated, " also runs that were run again"),
      button("Dead replies only", "replies", none, dead),
      button("Check all threads", "fsck", none, findings)),
    make("div.row", {}, field("Keep the newest", keepLast), field("and those younger than", keepFor),
      button("Preview what would go", "retention", () => ({ keep_last: keepLast.value, keep_for: keepFor.value.trim() }), preview)),
    make("div.row", {}, progress, stop), result);
  if (asked.what === "replies") {
    run("replies", none(), dead);
    focusIfLost(progress);
  }
  return () => {
    turn += 1;
  };
}

const link = (each) => make("a.brief", { href: address("thread", { id: each.thread_id }) }, each.thread_id);
const nothing = (text) => make("p.quiet", {}, text);

function sizes(rows, alert) {
  if (!rows.length) return nothing("No threads yet.");
  return make("div", {}, make("p.quiet", {}, THREAD_BYTES), table("Largest threads", ["Thread", "Size", "Checkpoints", "Largest channels"], rows.map((each) => [link(each),
    each.problem ? make("span.problem", {}, brief(each.problem)) : bytes(each.bytes), each.checkpoints === undefined ? "" : number(each.checkpoints),
    make("span", {}, (each.channels || []).map((channel) => make(`span.${channel.bytes > alert ? "problem" : "quiet"}`, {}, `${channel.name} ${bytes(channel.bytes)}  `)))])));
}

function dead(rows) {
  if (!rows.length) return nothing("Nothing was given up.");
  return table("Given up", ["Thread", "What", "State", "Attempts", "Since", "Error"], rows.map((each) => [link(each), each.kind === "run" ? `run ${each.run_id}${each.is_repeated ? `, run again${each.repeated_by ? ` as ${each.repeated_by}` : ""}` : ""}` : each.kind === "reply" ? `reply ${each.number}` : "", each.state ? status(each.state) : "", each.attempts ?? "", time(each.updated_at), brief(each.error || each.problem)]));
}

function findings(rows) {
  if (!rows.length) return nothing("No damage was found.");
  return table("Findings", ["Thread", "Kind", "Finding", "Advice"], rows.map((each) => [link(each), each.kind || "", brief(each.problem), each.advice || ""]));
}

function preview(rows) {
  if (!rows.length) return nothing("Nothing would be removed.");
  return table("Preview", ["Thread", "Checkpoints that would go", "Size"], rows.map((each) => [link(each), each.problem ? brief(each.problem) : (each.expired ? "the whole thread" : number(each.checkpoints)), bytes(each.bytes)]));
}
