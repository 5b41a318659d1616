// Availability of the server. After a failed request it is polled until it answers; requests that wait for it are
// then repeated.

import * as api from "./api.js";
import { pause } from "./dom.js";

const FIRST = 500;
const LONGEST = 4000;

let waiting = null;
let hurry = () => undefined;
const listeners = [];

export const isAway = () => waiting !== null;
export const onChange = (listener) => listeners.push(listener);

// Resolves when the server answers again.
export function back() {
  waiting ??= probe().finally(() => {
    waiting = null;
    listeners.forEach((listener) => listener(false));
  });
  return waiting;
}

async function probe() {
  let delay = FIRST;
  for (let tries = 0; ; tries += 1) {
    try {
      await api.alive();
      return;
    } catch (failure) {
      if (failure.status && !failure.away) return;
    }
    if (tries === 0) listeners.forEach((listener) => listener(true));
    await Promise.race([pause(delay), new Promise((resolve) => { hurry = resolve; })]);
    delay = Math.min(LONGEST, delay * 1.5);
  }
}

// Repeats a request until the server is available. A server may answer that it is alive, and refuse the request as before.
export async function persist(request) {
  for (let delay = 0; ; delay = Math.min(LONGEST, delay * 1.5 || FIRST)) {
    try {
      return await request();
    } catch (failure) {
      if (!failure.away) throw failure;
      await back();
      await pause(delay);
    }
  }
}

for (const sign of ["online", "focus"]) addEventListener(sign, () => hurry());
