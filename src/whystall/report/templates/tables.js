// Tables that sort by their headings, filter by a text, and show their first rows until asked for all.
const FIRST = 12;

function valueOf(row, index) {
  const cell = row.cells[index];
  return cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v);
}

function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return typeof a === "number" ? 1 : -1;
}

function textOf(row) {
  return [...row.cells].map((cell) => `${cell.title} ${cell.textContent}`).join(" ").toLowerCase();
}

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

class Table {
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    this.texts = new Map([...this.body.rows].map((row) => [row, textOf(row)]));
    this.wanted = "";
    this.open = this.texts.size <= FIRST + 3;
    if (table.classList.contains("sortable")) this.addSorting();
    if (table.dataset.filter) this.addFilter();
    if (!this.open) this.addMore();
    this.show();
    new ResizeObserver(() => this.addStop()).observe(table.parentElement);
  }

  // The keyboard stops at a table only where it needs scrolling.
  addStop() {
    const frame = this.table.parentElement;
    frame.tabIndex = frame.scrollWidth > frame.clientWidth ? 0 : -1;
  }

  addSorting() {
    [...this.table.tHead.rows[0].cells].forEach((heading, index) => {
      const button = element("button", { type: "button" }, heading.textContent);
      button.addEventListener("click", () => this.sort(index, heading));
      heading.replaceChildren(button);
    });
  }

  addFilter() {
    const id = `${this.table.id}-filter`;
    const input = element("input", { type: "search", id });
    this.count = element("output", {});
    input.addEventListener("input", () => {
      this.wanted = input.value.toLowerCase();
      this.show();
    });
    const label = element("label", { htmlFor: id }, `Filter ${this.table.dataset.filter}`);
    this.table.parentElement.before(element("div", { className: "filter" }, label, input, this.count));
  }

  addMore() {
    this.more = element("button", { type: "button", className: "more" }, `Show all ${this.texts.size} rows`);
    this.more.addEventListener("click", () => {
      this.open = true;
      this.show();
      this.table.parentElement.focus();
    });
    this.table.parentElement.after(this.more);
  }

  sort(index, heading) {
    const first = heading.classList.contains("n") ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    for (const cell of heading.parentElement.cells) cell.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...this.body.rows].map((row) => [valueOf(row, index), row]);
    rows.sort((a, b) => sign * compare(a[0], b[0]));
    this.body.append(...rows.map(([, row]) => row));
    this.show();
  }

  show() {
    const matching = [...this.body.rows].filter((row) => this.texts.get(row).includes(this.wanted));
    const shown = new Set(this.open || this.wanted ? matching : matching.slice(0, FIRST));
    for (const row of this.body.rows) row.hidden = !shown.has(row);
    if (this.count) this.count.textContent = this.wanted ? `${matching.length} of ${this.texts.size}` : "";
    if (this.more) this.more.hidden = this.open || this.wanted !== "";
  }
}

document.querySelectorAll("table.data").forEach((table) => new Table(table));
