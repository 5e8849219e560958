// A button beside each change to make and each command that copies it, where the browser has a clipboard.
function beside(text) {
  const what = text.getAttribute("aria-label") || text.textContent;
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy" });
  const say = (word) => {
    button.textContent = word;
    button.setAttribute("aria-label", `${word}: ${what}`);
  };
  say("Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      say("Copied");
    } catch { say("Not allowed here"); }
    setTimeout(say, 2000, "Copy");
  });
  text.after(" ", button);
}

if (navigator.clipboard) document.querySelectorAll("pre, code.command").forEach(beside);
