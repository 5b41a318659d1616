import { call, callOnce } from "./api.js";

export default {
  title: "Supervisor",
  intro: "A cheap model routes each message, a worker looks orders up, and a strong model writes. Say hello, then ask: Where is my order? By Telegram and WhatsApp the message takes the way of a real one, through a double of the provider on this machine.",
  fields: [{ name: "by", label: "Write by", options: ["HTTP", "Telegram", "WhatsApp"] }, { name: "chat", label: "Chat", value: "491700000001" }],
  async send(text, { by, chat }) {
    if (by === "HTTP") {
      const { reply, route } = await callOnce("api/chat", { chat, text });
      return [{ who: "agent", text: reply, note: `routed as ${route.kind}${route.worker ? ` to ${route.worker}` : ""}` }];
    }
    const { replies } = await call("POST", `doubles/${by.toLowerCase()}`, { chat, text });
    return replies.map((reply) => ({ who: "agent", text: reply, note: `sent by ${by}` }));
  },
  actions: [{ label: "What the models cost", run: () => call("GET", "api/usage") }],
};
