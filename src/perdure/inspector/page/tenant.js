// The tenant whose threads are shown, and the choice of another one for those who may see all of them.

import { get } from "./api.js";
import { address, tenant } from "./address.js";
import { announce, field, fill, make } from "./dom.js";

export async function showTenant(place) {
  let about;
  try {
    about = await get("about");
  } catch {
    return; // The view says why.
  }
  if (!about.all_tenants) {
    place.textContent = about.tenant ? `tenant ${about.tenant}` : "";
    return;
  }
  const names = make("datalist", { id: "tenants" });
  const input = make("input", { type: "search", value: tenant(), autocomplete: "off", spellcheck: false, placeholder: "none" });
  input.setAttribute("list", names.id);
  let turn = 0;
  const offer = async () => {
    const mine = ++turn;
    try {
      const found = await get("tenants", { beginning: input.value });
      if (mine === turn) fill(names, found.tenants.filter(Boolean).map((name) => make("option", { value: name })));
    } catch (error) {
      announce(error.message);
    }
  };
  const go = () => {
    if (input.value !== tenant()) location.hash = address("threads", { tenant: input.value });
  };
  const form = make("form", { role: "search", ariaLabel: "Tenants" }, field("Tenant", input), names);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  input.addEventListener("focus", offer);
  input.addEventListener("input", offer);
  input.addEventListener("change", go);
  addEventListener("hashchange", () => (input.value = tenant()));
  fill(place, form);
}
