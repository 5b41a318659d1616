// Conversations over the event streaming protocol, as `client.threads.stream()` has them.

const LATE_MS = 30_000;

/** Everything that an iterable gives, as it comes. */
function collected(iterable, each = (item) => item) {
  const items = [];
  const all = (async () => {
    for await (const item of iterable) items.push(await each(item));
    return items;
  })();
  all.catch(() => undefined);
  return { items, all };
}

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come`)), LATE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function until(reached, what) {
  const end = Date.now() + LATE_MS;
  while (!reached()) {
    if (Date.now() > end) throw new Error(`${what} did not happen`);
    await new Promise((resume) => setTimeout(resume, 10));
  }
}

const texts = (values) => (values?.messages ?? []).map(textOf);

function textOf(message) {
  const { content } = message;
  if (typeof content === "string") return content;
  return content.filter((block) => block.type === "text").map((block) => block.text).join("");
}

/** Several turns on one thread: what was said in each, token by token, and what was there at its end. */
export async function turns({ client, graph, inputs, threadId }) {
  const told = [];
  let thread = client.threads.stream(threadId ?? crypto.randomUUID(), { assistantId: graph });
  for (const input of inputs) {
    const tokens = [];
    const spoken = collected(thread.messages, async (message) => {
      const mine = [];
      for await (const token of message.text) mine.push(token);
      tokens.push(mine);
      return { text: textOf(await message.output), node: message.node };
    });
    const values = collected(thread.values, texts);
    const { run_id: runId } = await thread.run.start({ input });
    const output = texts(await within(thread.output, "the output"));
    await within(values.all, "the last values");
    await within(spoken.all, "the last message");
    told.push({ runId, tokens, spoken: spoken.items, values: values.items, output });
    await thread.close();
    thread = client.threads.stream(thread.threadId, { assistantId: graph });
  }
  await thread.close();
  return { threadId: thread.threadId, told };
}

/** Every event of one run in some channels, until the root's lifecycle ends. */
export async function events({ client, graph, input, channels, threadId = crypto.randomUUID() }) {
  const thread = client.threads.stream(threadId, { assistantId: graph });
  const seen = [];
  const ends = ["completed", "failed", "interrupted"];
  const isOver = () =>
    seen.some((e) => e.method === "lifecycle" && !e.params.namespace.length && ends.includes(e.params.data.event));
  const subscribed = thread.subscribe({ channels: [...channels, "lifecycle"] });
  await thread.run.start({ input });
  const subscription = await within(subscribed, "the subscription");
  collected(subscription, (event) => seen.push(event));
  await until(isOver, "the end of the run");
  const interrupts = [...thread.interrupts];
  await thread.close();
  return { threadId, seen, interrupts, interrupted: thread.interrupted };
}

/** A question that is asked, answered on the same connection or by another page, and answered once more. */
export async function question({ client, graph, input, response, elsewhere }) {
  const thread = client.threads.stream({ assistantId: graph });
  await thread.run.start({ input });
  await until(() => thread.interrupted && thread.interrupts.length, "the question");
  const asked = thread.interrupts.map((each) => ({ ...each }));
  const before = texts(await within(thread.output, "the output before the answer"));
  const page = elsewhere ? client.threads.stream(thread.threadId, { assistantId: graph }) : thread;
  const [{ interruptId, namespace }] = asked;
  const answer = { interrupt_id: interruptId, namespace, response };
  await page.input.respond(answer);
  const { values } = await settled(client, thread.threadId);
  const again = await page.input.respond(answer).then(() => null, codeOf);
  await thread.close();
  await page.close();
  return { threadId: thread.threadId, asked, before, after: texts(values), again };
}

const codeOf = (error) => error.code ?? error.message;

/** The state of a thread once nothing goes on there. */
async function settled(client, threadId) {
  for (const end = Date.now() + LATE_MS; Date.now() < end; ) {
    if ((await client.threads.get(threadId)).status !== "busy") return client.threads.getState(threadId);
    await new Promise((resume) => setTimeout(resume, 20));
  }
  throw new Error("the thread stays busy");
}

/** A walk whose line is cut in the middle: the steps of which it told, and the ids of the events. */
export async function walkedOverCuts({ client, line, threadId, steps, pause, cuts }) {
  const reconnects = [];
  const thread = client.threads.stream(threadId ?? crypto.randomUUID(), {
    assistantId: "walk",
    onReconnect: ({ attempt }) => reconnects.push(attempt),
  });
  const ids = [];
  thread.onEvent((event) => ids.push(event.event_id));
  const subscribed = thread.subscribe({ channels: ["custom"] });
  await thread.run.start({ input: { steps, pause }, config: { recursion_limit: 2 * steps + 10 } });
  const seen = [];
  const left = [...cuts];
  collected(await within(subscribed, "the subscription"), (event) => {
    seen.push(event.params.data.payload.step);
    if (left[0] === seen.length) {
      left.shift();
      line.cut();
    }
  });
  const output = await within(thread.output, "the output");
  await until(() => seen.length >= steps, "the last step");
  await thread.close();
  return { seen, ids, trail: output.trail, reconnects: reconnects.length };
}

/** A thread that a second page comes to in the middle of a run. */
export async function joined({ client, graph, input, seconds }) {
  const first = client.threads.stream({ assistantId: graph });
  await first.run.start({ input });
  await new Promise((resume) => setTimeout(resume, seconds * 1000));
  const second = client.threads.stream(first.threadId, { assistantId: graph });
  const spoken = collected(second.messages, async (message) => textOf(await message.output));
  const outputs = await within(Promise.all([first.output, second.output]), "the outputs");
  await within(spoken.all, "the last message");
  await Promise.all([first.close(), second.close()]);
  return { threadId: first.threadId, outputs: outputs.map(texts), spoken: spoken.items };
}

/** The commands that look at a thread, and the one that goes back in it. */
export async function looked({ client, graph, inputs }) {
  const { threadId } = await turns({ client, graph, inputs });
  const thread = client.threads.stream(threadId, { assistantId: graph });
  const { tree } = await thread.agent.getTree();
  const state = await thread.state.get({ namespace: [] });
  const { checkpoints } = await thread.state.listCheckpoints({ namespace: [] });
  const history = await client.threads.getHistory(threadId, { limit: 50 });
  const back = history.find((held) => !held.next.length && held.values.messages.length === 2);
  const { run_id: runId } = await thread.run.start({
    input: { messages: [{ role: "user", content: "instead" }] },
    forkFrom: back.checkpoint.checkpoint_id,
  });
  const output = texts(await within(thread.output, "the output of the fork"));
  const unknown = await thread.input
    .inject({ message: { role: "user", content: "x" } })
    .then(() => null, codeOf);
  await thread.close();
  return {
    threadId,
    tree,
    values: texts(state.values),
    checkpoints: checkpoints.map((held) => held.id),
    history: history.map((held) => held.checkpoint.checkpoint_id),
    runId,
    output,
    unknown,
  };
}

/** The subgraphs that a run was found to have. */
export async function below({ client, graph, input }) {
  const thread = client.threads.stream({ assistantId: graph });
  const found = collected(thread.subgraphs, (each) => ({ name: each.name, namespace: each.namespace }));
  await thread.run.start({ input });
  await within(thread.output, "the output");
  await within(found.all, "the last subgraph");
  await thread.close();
  return found.items;
}
