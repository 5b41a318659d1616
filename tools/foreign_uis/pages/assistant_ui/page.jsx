// A chat of assistant-ui on its adapter for LangGraph, as its documentation wires it.
import { createRoot } from "react-dom/client";
import { Client } from "@langchain/langgraph-sdk";
import {
  ActionBarPrimitive,
  AssistantRuntimeProvider,
  BranchPickerPrimitive,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import {
  unstable_createLangGraphStream,
  useLangGraphInterruptState,
  useLangGraphRuntime,
  useLangGraphSendCommand,
} from "@assistant-ui/react-langgraph";

const address = new URLSearchParams(location.search);
const client = new Client({ apiUrl: window.server, apiKey: null, callerOptions: { maxRetries: 0 } });
const stream = unstable_createLangGraphStream({ client, assistantId: "agent" });

function setThread(threadId) {
  if (!threadId) return;
  address.set("thread", threadId);
  history.replaceState(null, "", `?${address}`);
}

const known = (threadId) => ({ status: "regular", remoteId: threadId, externalId: threadId });

/** The server's threads are the list. */
const threadList = {
  list: async () => {
    const found = await client.threads.search({ metadata: { graph_id: "agent" }, limit: 100 });
    return { threads: found.map((thread) => known(thread.thread_id)) };
  },
  fetch: async (threadId) => known(threadId),
  initialize: async () => known((await client.threads.create()).thread_id),
  generateTitle: async () => new ReadableStream({ start: (title) => title.close() }),
  rename: async () => {},
  archive: async () => {},
  unarchive: async () => {},
  delete: async (threadId) => client.threads.delete(threadId),
};

/** The checkpoint that holds just these messages. */
async function getCheckpointId(threadId, parentMessages) {
  for (const state of await client.threads.getHistory(threadId, { limit: 100 })) {
    const held = state.values.messages ?? [];
    const isIt =
      held.length === parentMessages.length && held.every((message, at) => message.id === parentMessages[at].id);
    if (isIt) return state.checkpoint.checkpoint_id ?? null;
  }
  return null;
}

const Text = ({ text }) => <span className="body">{text}</span>;

const Branches = () => (
  <BranchPickerPrimitive.Root hideWhenSingleBranch className="branches">
    <BranchPickerPrimitive.Previous>previous</BranchPickerPrimitive.Previous>
    <span className="at">
      <BranchPickerPrimitive.Number />/<BranchPickerPrimitive.Count />
    </span>
    <BranchPickerPrimitive.Next>next</BranchPickerPrimitive.Next>
  </BranchPickerPrimitive.Root>
);

const UserMessage = () => (
  <MessagePrimitive.Root className="message human">
    <MessagePrimitive.Parts components={{ Text }} />
    <ActionBarPrimitive.Root>
      <ActionBarPrimitive.Edit>edit</ActionBarPrimitive.Edit>
    </ActionBarPrimitive.Root>
    <Branches />
  </MessagePrimitive.Root>
);

const EditComposer = () => (
  <ComposerPrimitive.Root className="editing">
    <ComposerPrimitive.Input />
    <ComposerPrimitive.Send>save</ComposerPrimitive.Send>
  </ComposerPrimitive.Root>
);

const AssistantMessage = () => (
  <MessagePrimitive.Root className="message ai">
    <MessagePrimitive.Parts components={{ Text }} />
    <ActionBarPrimitive.Root>
      <ActionBarPrimitive.Reload>regenerate</ActionBarPrimitive.Reload>
    </ActionBarPrimitive.Root>
    <Branches />
  </MessagePrimitive.Root>
);

function Question() {
  const interrupt = useLangGraphInterruptState();
  const send = useLangGraphSendCommand();
  if (!interrupt) return null;
  const decide = (decision) => () => send({ resume: { decisions: [decision] } });
  const action = { name: "delete_file", args: { path: "b.txt" } };
  return (
    <section id="question">
      <span className="asked">{JSON.stringify(interrupt.value)}</span>
      <button onClick={decide({ type: "approve" })}>approve</button>
      <button onClick={decide({ type: "edit", edited_action: action })}>change</button>
      <button onClick={decide({ type: "reject", message: "keep it" })}>reject</button>
    </section>
  );
}

function Chat() {
  const runtime = useLangGraphRuntime({
    unstable_allowCancellation: true,
    threadId: address.get("thread") ?? undefined,
    onThreadIdChange: setThread,
    stream,
    getCheckpointId,
    unstable_threadListAdapter: threadList,
    load: async (externalId) => {
      const state = await client.threads.getState(externalId);
      return { messages: state.values.messages ?? [], interrupts: state.tasks[0]?.interrupts ?? [] };
    },
  });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadPrimitive.Root>
        <ThreadPrimitive.Viewport>
          <ThreadPrimitive.Messages components={{ UserMessage, EditComposer, AssistantMessage }} />
        </ThreadPrimitive.Viewport>
        <Question />
        <ComposerPrimitive.Root className="composer">
          <ComposerPrimitive.Input placeholder="Say something" />
          <ThreadPrimitive.If running={false}>
            <ComposerPrimitive.Send>send</ComposerPrimitive.Send>
          </ThreadPrimitive.If>
          <ThreadPrimitive.If running>
            <ComposerPrimitive.Cancel>stop</ComposerPrimitive.Cancel>
          </ThreadPrimitive.If>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

createRoot(document.querySelector("#root")).render(<Chat />);
