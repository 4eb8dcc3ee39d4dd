// A list of which only the rows in sight are in the page, for lists of any length.
import { h } from "./dom.js";

const MORE_ROWS = 6;

/**
 * A list of rows of one height, read out as a table.
 *
 * label: its name; columns: [title, class] of each.
 * row(item, index): the cells of a row, one for each column, as lists of children.
 * onOpen(item): Enter or a click on a row. onNearEnd(): the last rows are in sight.
 */
export class VirtualList {
  constructor({ label, columns, row, onOpen, onNearEnd, kind }) {
    this.row = row;
    this.columns = columns;
    this.onOpen = onOpen;
    this.onNearEnd = onNearEnd;
    this.items = [];
    this.active = 0;
    this.id = `list-${kind}`;
    this.space = h("div", { class: "vspace", role: "rowgroup" });
    this.head = h("div", { class: "vrow vhead", role: "row", "aria-rowindex": 1 },
      columns.map(([title, name]) => h("span", { role: "columnheader", class: name }, title)));
    this.body = h("div", { class: "vbody", tabIndex: 0, role: "table", "aria-label": label },
      h("div", { role: "rowgroup", class: "vheadgroup" }, this.head), this.space);
    this.element = h("div", { class: `vlist vlist-${kind}` }, this.body);
    this.body.addEventListener("scroll", () => this.soon(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("focus", () => this.mark());
    this.space.addEventListener("click", (event) => {
      const found = event.target.closest(".vrow");
      if (!found || event.target.closest("a, button") || window.getSelection()?.toString()) return;
      this.active = Number(found.dataset.index);
      this.mark();
      this.onOpen?.(this.items[this.active]);
    });
    this.observer = new ResizeObserver(() => {
      this.rowHeight = 0;
      this.soon();
    });
    this.observer.observe(this.body);
  }

  /** Shows other items. `anchor` rows were put in front of those that are in sight and stay there. */
  show(items, anchor = 0) {
    this.items = items;
    this.active = Math.max(Math.min(this.active + anchor, items.length - 1), 0);
    if (anchor && this.body.scrollTop > 0) this.body.scrollTop += anchor * this.height();
    this.body.setAttribute("aria-rowcount", String(items.length + 1));
    this.soon();
  }

  height() {
    if (!this.rowHeight) this.rowHeight = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 44;
    return this.rowHeight;
  }

  soon() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = 0;
      this.draw();
    });
  }

  draw() {
    const height = this.height();
    this.space.style.height = `${this.items.length * height}px`;
    const top = Math.max(this.body.scrollTop - this.head.offsetHeight, 0);
    const first = Math.max(Math.floor(top / height) - MORE_ROWS, 0);
    const last = Math.min(Math.ceil((top + this.body.clientHeight) / height) + MORE_ROWS, this.items.length);
    const rows = [];
    for (let index = first; index < last; index += 1) {
      const cells = this.row(this.items[index], index);
      const row = h("div", { class: "vrow", role: "row", id: `${this.id}-${index}`, "aria-rowindex": index + 2 },
        cells.map((children, column) => h("span", { role: "cell", class: this.columns[column][1] }, children)));
      row.dataset.index = String(index);
      row.style.transform = `translateY(${index * height}px)`;
      rows.push(row);
    }
    // A link that has the focus keeps it when its row is drawn again.
    const focused = this.space.contains(document.activeElement) ? document.activeElement.closest(".vrow")?.id : null;
    this.space.replaceChildren(...rows);
    if (focused) document.getElementById(focused)?.querySelector("a, button")?.focus({ preventScroll: true });
    this.mark();
    if (last >= this.items.length - MORE_ROWS * 2) this.onNearEnd?.();
  }

  mark() {
    const id = `${this.id}-${this.active}`;
    for (const each of this.space.children) each.classList.toggle("active", each.id === id);
    if (this.items.length && document.getElementById(id)) this.body.setAttribute("aria-activedescendant", id);
    else this.body.removeAttribute("aria-activedescendant");
  }

  key(event) {
    if (event.target !== this.body || !this.items.length) return;
    const page = Math.max(Math.floor(this.body.clientHeight / this.height()) - 2, 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.items.length, End: this.items.length };
    if (event.key in moves) {
      event.preventDefault();
      this.active = Math.min(Math.max(this.active + moves[event.key], 0), this.items.length - 1);
      this.reveal();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.onOpen?.(this.items[this.active]);
    }
  }

  reveal() {
    const height = this.height();
    const top = this.active * height;
    const seen = this.body.clientHeight - this.head.offsetHeight;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + height > this.body.scrollTop + seen) this.body.scrollTop = top + height - seen;
    this.draw();
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.planned);
  }
}
