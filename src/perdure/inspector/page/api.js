// Requests to the API below this page, for the tenant of its address. On a server they carry the token of the chat
// page's session, if any.

import { tenant } from "./address.js";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function answerOf(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new Refused(response.status, `The server answered ${response.status} without JSON.`);
  }
  if (!response.ok) throw new Refused(response.status, typeof body?.detail === "string" ? body.detail : JSON.stringify(body));
  return body;
}

function headers(more = {}) {
  const token = sessionStorage.getItem("perdure.token");
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export async function get(view, asked = {}) {
  const query = new URLSearchParams(Object.entries({ ...asked, tenant: tenant() }).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return answerOf(await fetch(`api/${view}?${query}`, { headers: headers() }));
}

async function post(path, given, whose = tenant()) {
  const body = whose ? { ...given, tenant: whose } : given;
  const sent = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return answerOf(await fetch(path, sent));
}

export const act = (name, body, whose) => post(`api/actions/${name}`, body, whose);

export const replay = (body) => post("api/replay", body);
