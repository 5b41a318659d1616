// The routes of the server as its OpenAPI description has them. Text is only ever set as text nodes.

const METHODS = ["get", "put", "post", "delete", "patch"];
const DEPTH = 6;
const at = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// A schema with the schemas that it refers to in their places, down to a depth: schemas may contain themselves.
function resolved(description, schema, depth = DEPTH) {
  if (Array.isArray(schema)) return schema.map((part) => resolved(description, part, depth));
  if (schema === null || typeof schema !== "object") return schema;
  if (typeof schema.$ref === "string") {
    const name = schema.$ref.split("/").pop();
    const found = schema.$ref.slice(2).split("/").reduce((held, part) => held?.[part], description);
    return depth && found ? resolved(description, found, depth - 1) : name;
  }
  return Object.fromEntries(Object.entries(schema).map(([key, held]) => [key, resolved(description, held, depth)]));
}

function schemaOf(description, content) {
  const schema = content?.["application/json"]?.schema;
  return schema && element("pre", {}, JSON.stringify(resolved(description, schema), null, 2));
}

function parameters(given) {
  const rows = given.map((one) => element("tr", {},
    element("td", {}, element("code", {}, one.name)),
    element("td", { className: "quiet" }, `${one.in}${one.required ? ", required" : ""}`),
    element("td", {}, one.description ?? one.schema?.type ?? ""),
  ));
  return element("table", {}, element("tbody", {}, ...rows));
}

function responses(given) {
  const rows = Object.entries(given).map(([status, one]) => element("tr", {},
    element("td", {}, element("code", {}, status)), element("td", {}, one.description ?? ""),
  ));
  return element("table", {}, element("tbody", {}, ...rows));
}

function route(description, method, path, operation) {
  const shown = element("details", { className: "route" }, element("summary", {},
    element("span", { className: "method" }, method.toUpperCase()), " ",
    element("span", { className: "path" }, path), " ",
    element("span", { className: "quiet" }, operation.summary ?? ""),
  ));
  shown.dataset.words = `${method} ${path} ${operation.summary ?? ""}`.toLowerCase();
  // What a route consists of is made when it is opened: schemas are long.
  shown.addEventListener("toggle", () => {
    const parts = [element("p", {}, operation.description ?? "")];
    if (operation.parameters?.length) parts.push(element("h3", {}, "Parameters"), parameters(operation.parameters));
    const body = schemaOf(description, operation.requestBody?.content);
    if (body) parts.push(element("h3", {}, "Body"), body);
    parts.push(element("h3", {}, "Responses"), responses(operation.responses ?? {}));
    shown.append(...parts);
  }, { once: true });
  return shown;
}

function show(description) {
  document.title = at("title").textContent = description.info.title;
  at("release").textContent = description.info.version;
  const groups = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const method of METHODS.filter((name) => methods[name])) {
      const operation = methods[method];
      const tag = operation.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, element("section", {}, element("h2", {}, tag)));
      groups.get(tag).append(route(description, method, path, operation));
    }
  }
  at("routes").replaceChildren(...groups.values());
}

at("find").addEventListener("input", () => {
  const words = at("find").value.toLowerCase().split(/\s+/);
  for (const section of at("routes").querySelectorAll("section")) {
    const routes = [...section.querySelectorAll(".route")];
    for (const one of routes) one.hidden = !words.every((word) => one.dataset.words.includes(word));
    section.hidden = routes.every((one) => one.hidden);
  }
});

try {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`the server answered with ${answer.status}`);
  show(await answer.json());
} catch (error) {
  at("routes").replaceChildren(element("p", {}, `The description cannot be shown: ${error.message}`));
}
