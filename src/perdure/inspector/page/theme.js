// Runs before the first paint, so that the page never flashes in the other colours.
(() => {
  const chosen = localStorage.getItem("perdure.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
