// Switches between light and dark; remembers the choice where the browser allows it.
const root = document.documentElement;
const button = document.getElementById("theme");
const remembered = (() => { try { return localStorage.getItem("whystall-theme"); } catch { return null; } })();
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

function show() {
  const dark = isDark();
  button.textContent = dark ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
  document.dispatchEvent(new Event("themechange"));
}

if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("whystall-theme", root.dataset.theme); } catch { /* a private window keeps nothing */ }
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
show();

// Paper is light, also what is drawn on it.
let kept;
addEventListener("beforeprint", () => { kept = root.dataset.theme; root.dataset.theme = "light"; show(); });
addEventListener("afterprint", () => { if (kept) root.dataset.theme = kept; else delete root.dataset.theme; show(); });

// A link into a closed rank opens it.
function open() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target && target.closest("details");
  if (details) details.open = true;
}
addEventListener("hashchange", open);
open();
