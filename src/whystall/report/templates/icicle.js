// The module tree: click or Enter zooms into a module, Escape back out, arrows walk the tree.
function start(figure) {
  const nodes = [...figure.querySelectorAll(".node")].map((element) => ({
    element,
    x: Number(element.dataset.x),
    w: Number(element.dataset.w),
    depth: Number(element.dataset.depth),
    text: element.querySelector("title").textContent,
  }));
  const output = figure.querySelector("output");
  const whole = { x: 0, w: 100 };
  let frame = whole;

  const within = (inner, outer) => inner.x >= outer.x - 1e-3 && inner.x + inner.w <= outer.x + outer.w + 1e-3;
  const parentOf = (node) => nodes.find((other) => other.depth === node.depth - 1 && within(node, other));

  function zoom(to) {
    frame = to;
    figure.dataset.zoom = to === whole ? "" : to.text;
    for (const { element, x, w } of nodes) {
      element.setAttribute("x", `${((x - to.x) * 100) / to.w}%`);
      element.setAttribute("width", `${(w * 100) / to.w}%`);
    }
  }

  function focus(node) {
    if (!node) return;
    for (const other of nodes) other.element.setAttribute("tabindex", other === node ? "0" : "-1");
    node.element.focus();
  }

  function move(node, key) {
    if (key === "ArrowUp") return focus(parentOf(node));
    if (key === "ArrowDown") return focus(nodes.find((other) => other.depth === node.depth + 1 && within(other, node)));
    const row = nodes.filter((other) => other.depth === node.depth).sort((a, b) => a.x - b.x);
    return focus(row[row.indexOf(node) + (key === "ArrowRight" ? 1 : -1)]);
  }

  nodes.forEach((node, index) => {
    const { element } = node;
    element.setAttribute("tabindex", index === 0 ? "0" : "-1");
    element.setAttribute("role", "button");
    element.setAttribute("aria-label", node.text);
    element.addEventListener("click", () => zoom(frame === node ? parentOf(node) ?? whole : node));
    element.addEventListener("pointerenter", () => { output.textContent = node.text; });
    element.addEventListener("focus", () => { output.textContent = node.text; });
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") zoom(frame === node ? whole : node);
      else if (event.key === "Escape") zoom(whole);
      else if (event.key.startsWith("Arrow")) move(node, event.key);
      else return;
      event.preventDefault();
    });
  });
  figure.classList.add("live");
}

document.querySelectorAll(".icicle").forEach(start);
