// Growth of the database and its threads: the samples of past days, and one of now.

import { get } from "./api.js";
import { bars } from "./bars.js";
import { bytes, make, number } from "./dom.js";

const DAY = 86_400e6;
const SPANS = [7, 30, 90];

export async function growth() {
  let found;
  try {
    found = await get("growth");
  } catch (error) {
    return make("p.quiet", {}, error.message);
  }
  return make("div.charts", {},
    chart("Size of the database", "It is not known: this kind of database, or your rights, do not tell it.", found.samples, "bytes", bytes),
    chart("Threads", "Their number is not known without reading them all on this kind of database.", found.samples, "threads", number));
}

function chart(title, unknown, all, name, text) {
  const samples = all.filter((each) => each[name] !== null);
  if (!samples.length) return make("figure", {}, make("figcaption", {}, make("strong", {}, title), ` ${unknown}`));
  const words = [`${text(samples.at(-1)[name])} now`, ...changes(samples, name, text)].join(", ");
  return make("figure", {}, make("figcaption", {}, make("strong", {}, title), ` ${words}`), bars(`${title} by day: ${words}`, columns(samples, name, text)));
}

// The change within each span that the samples cover, or else since the first sample.
function changes(samples, name, text) {
  const [first, last] = [samples[0], samples.at(-1)];
  const since = (sample, words) => {
    const change = last[name] - sample[name];
    return `${change < 0 ? "−" : "+"}${text(Math.abs(change))} ${words}`;
  };
  const covered = SPANS.filter((days) => last.at - first.at >= days * DAY);
  if (covered.length) return covered.map((days) => since(samples.findLast((each) => each.at <= last.at - days * DAY), `in ${days} days`));
  return samples.length > 1 ? [since(first, `since ${day(first.at)}`)] : ["and samples of the days to come show how it grows"];
}

// A day without work has the value of the day before.
function columns(samples, name, text) {
  const found = [];
  let place = 0;
  const end = Math.floor(samples.at(-1).at / DAY);
  for (let at = Math.floor(samples[0].at / DAY); at <= end; at += 1) {
    while (place + 1 < samples.length && Math.floor(samples[place + 1].at / DAY) <= at) place += 1;
    const value = samples[place][name];
    found.push({ tip: `${day(at * DAY)}: ${text(value)}`, parts: [[value, "column"]] });
  }
  return found;
}

const day = (micros) => new Date(micros / 1000).toISOString().slice(0, 10);
