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
  }

  // Reads what came since it was read last.
  async update() {
    const fresh = [];
    const size = await api.most(PAGE);
    let before;
    for (;;) {
      const page = await api.history(this.thread, size, before);
      const unknown = page.filter((one) => !this.nodes.has(one.checkpoint_id));
      fresh.push(...unknown);
      if (page.length < size || unknown.length < page.length || fresh.length >= MOST) break;
      before = page.at(-1).checkpoint_id;
    }
    for (const { checkpoint_id: id, parent_checkpoint_id: parent, next } of fresh.reverse()) {
      this.nodes.set(id, { id, parent, next });
      if (!this.children.has(parent)) this.children.set(parent, []);
      this.children.get(parent).push(id);
    }
    for (const siblings of this.children.values()) siblings.sort();
  }

  get head() {
    let newest = null;
    for (const id of this.nodes.keys()) if (newest === null || id > newest) newest = id;
    return newest;
  }

  // The newest checkpoint that comes after another one, or that one itself.
  newestUnder(id) {
    let newest = id;
    const open = [id];
    while (open.length) {
      for (const child of this.children.get(open.pop()) ?? []) {
        if (child > newest) newest = child;
        open.push(child);
      }
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
