// Bars over time. What they show is in the label, too.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 60;

// Columns have a tip, and parts with a value and a class, each drawn from the foot over those before it.
export function bars(label, columns) {
  const most = Math.max(...columns.flatMap((column) => column.parts.map(([value]) => value)), 0) || 1;
  const picture = element("svg", { viewBox: `0 0 ${columns.length * 10} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  columns.forEach((column, place) => {
    for (const [value, name] of column.parts) {
      if (!value) continue;
      const height = Math.max(2, (value / most) * HEIGHT);
      const bar = element("rect", { x: place * 10 + 1, y: HEIGHT - height, width: 8, height, class: name });
      const tip = element("title", {});
      tip.textContent = column.tip;
      bar.append(tip);
      picture.append(bar);
    }
  });
  return picture;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
