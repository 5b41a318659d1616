// The past of a thread as a tree of checkpoints, each of which knows its parent. A path leads from the first of them to
// the one that is shown; where it parts from others there is a fork. What a checkpoint holds never changes.

import * as api from "./api.js";

const PAGE = 100;
const MOST = 2000;

export class Tree {
  constructor(thread) {
    this.thread = thread;
    this.nodes = new Map();
    this.children = new Map();
    this.counts = new Map();
    this.head = null;
  }

  // Reads what came since it was read last; `head` is the checkpoint that the server takes for the latest.
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

  // Removes what was taken back: it is known, is newer than the oldest known one that was listed, and was not listed.
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

  // The newest checkpoint that comes after another one, or that one itself. Nodes are kept in the order in which they
  // were stored: ids are made of clocks and say nothing about that.
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

  // The first checkpoint of a path that holds the message at a place.
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

  // The forks of a path by the place of the message at which the branches part: {parent, options, current}.
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
