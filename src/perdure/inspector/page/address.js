// Addresses of the views within the page.

export function address(view, asked = {}) {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
  return query.size ? `#/${view}?${query}` : `#/${view}`;
}
