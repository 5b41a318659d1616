// The history of a thread as a tree of checkpoints, each of which has a parent. A path leads from the first checkpoint
// to the visible one; a fork is where paths separate. A checkpoint never changes.

import * as api from "./api.js";

const PAGE = 100;
const MOST = 2000;

// Returns the names of the steps of a run that goes on from a checkpoint: those that had ended, oldest first, as far as the
// rows of the history reach, and those that it does next. `isAnew` is true if none had begun.
export function stepsUntil(rows, checkpoint) {
  const known = new Map(rows.map((row) => [row.checkpoint_id, row]));
  const steps = [];
  for (let row = known.get(checkpoint); row && !row.next.includes("__start__"); row = known.get(row.parent_checkpoint_id)) steps.unshift(row.next);
  const isAnew = !steps.length;
  const again = steps.pop() ?? [];
  return { stayed: steps.flat(), again, isAnew };
}

export class Tree {
  constructor(thread) {
    this.thread = thread;
    this.nodes = new Map();
    this.children = new Map();
    this.counts = new Map();
    this.head = null;
  }

  // Reads the checkpoints added since the last call; `head` is the thread's latest checkpoint for the server.
  async update(head) {
    const fresh = [];
    const listed = new Set();
    const size = await api.most(PAGE);
    let before;
    for (;;) {
      const page = await api.history(this.thread, size, before);
      for (const one of page) listed.add(one.checkpoint_id);
      const unknown = page.filter((one) => !this.nodes.has(one.checkpoint_id));
      fresh.push(...unknown);
      if (page.length < size || unknown.length < page.length || fresh.length >= MOST) break;
      before = page.at(-1).checkpoint_id;
    }
    this._forget(listed);
    for (const { checkpoint_id: id, parent_checkpoint_id: parent, next } of fresh.reverse()) {
      this.nodes.set(id, { id, parent, next });
      if (!this.children.has(parent)) this.children.set(parent, []);
      this.children.get(parent).push(id);
    }
    this.head = head;
  }

  // Removes checkpoints that were rolled back: known, newer than the oldest known one in the listing, but not in it.
  _forget(listed) {
    const known = [...this.nodes.keys()];
    const since = known.findIndex((id) => listed.has(id));
    for (const id of known.slice(since < 0 ? 0 : since)) {
      if (listed.has(id)) continue;
      const { parent } = this.nodes.get(id);
      this.nodes.delete(id);
      this.children.set(parent, this.children.get(parent).filter((child) => child !== id));
    }
  }

  // Returns the newest descendant of a checkpoint, or the checkpoint itself. Nodes are kept in the order in which they
  // were stored, which the clock-based ids do not determine.
  newestUnder(id) {
    const under = new Set([id]);
    let newest = id;
    for (const node of this.nodes.values()) {
      if (!under.has(node.parent)) continue;
      under.add(node.id);
      newest = node.id;
    }
    return newest;
  }

  path(leaf) {
    const path = [];
    for (let node = this.nodes.get(leaf); node; node = this.nodes.get(node.parent)) path.unshift(node.id);
    return path;
  }

  async count(id) {
    if (!this.counts.has(id)) this.counts.set(id, (await api.messagesAt(this.thread, id)).length);
    return this.counts.get(id);
  }

  // Returns the first checkpoint of a path that contains the message at a place.
  async firstWith(path, place) {
    let low = 0;
    let high = path.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((await this.count(path[middle])) > place) high = middle;
      else low = middle + 1;
    }
    return path[low];
  }

  // Returns the forks of a path by the place of the first differing message: {parent, options, current}.
  async forks(path) {
    const found = new Map();
    const parting = path.slice(0, -1).filter((id) => this.children.get(id)?.length > 1);
    await Promise.all(parting.map((id) => this.count(id)));
    for (const parent of parting) {
      const options = this.children.get(parent);
      const current = options.indexOf(path[path.indexOf(parent) + 1]);
      const place = await this.count(parent);
      const before = found.get(place);
      if (before) {
        before.options.splice(before.current, 1, ...options);
        before.current += current;
      } else {
        found.set(place, { parent, options: [...options], current });
      }
    }
    return found;
  }
}
