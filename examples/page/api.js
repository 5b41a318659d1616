// Requests to the example's endpoints, relative to the page's folder. An error response is an Error with its reason.

export async function call(method, path, body, headers = {}) {
  const response = await fetch(new URL(path, new URL("..", import.meta.url)), {
    method,
    headers: { ...headers, ...(method === "GET" ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const answer = response.status === 204 ? null : await response.json().catch(() => null);
  if (response.ok) return answer;
  const detail = answer?.detail ?? answer?.message;
  throw Object.assign(new Error(typeof detail === "string" ? detail : `The server answered ${response.status}: ${JSON.stringify(answer)}`), { status: response.status });
}

// Repeats a request whose connection was lost, under the same key: the server answers a message once.
export async function callOnce(path, body, headers = {}) {
  const key = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
  for (let tries = 0; ; tries += 1) {
    try {
      return await call("POST", path, body, { ...headers, "Idempotency-Key": key });
    } catch (error) {
      if (error.status || tries === 20) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 500); });
    }
  }
}
