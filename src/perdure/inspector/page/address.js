// Addresses of the views within the page.

// The tenant that the address of the page names; without one it is that of the inspector.
export const tenant = () => new URLSearchParams(location.hash.split(/\?(.*)/s)[1] || "").get("tenant") || "";

// All of them keep the tenant, unless they name another.
export function address(view, asked = {}) {
  const query = new URLSearchParams(Object.entries({ ...asked, tenant: asked.tenant ?? tenant() }).filter(([, value]) => value));
  return query.size ? `#/${view}?${query}` : `#/${view}`;
}
