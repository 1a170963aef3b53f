// Elements, briefly.

type Attributes = Record<string, string | number | boolean | undefined>;
type Children = readonly (Node | string | undefined)[];

function filled<E extends Element>(made: E, attributes: Attributes, children: Children): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : String(value));
    }
  }
  made.append(...children.filter((child) => child !== undefined));
  return made;
}

export function element<K extends keyof HTMLElementTagNameMap>(name: K, attributes: Attributes = {}, ...children: Children): HTMLElementTagNameMap[K] {
  return filled(document.createElement(name), attributes, children);
}

export function shape<K extends keyof SVGElementTagNameMap>(name: K, attributes: Attributes = {}, ...children: Children): SVGElementTagNameMap[K] {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

export function button(label: string, attributes: Attributes, pressed: () => void): HTMLButtonElement {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", pressed);
  return made;
}

/** A table that says what a picture shows. Rows are made when somebody opens it: there may be thousands. */
export function alternative(summary: string, columns: readonly string[], rows: () => Children[]): HTMLDetailsElement {
  const made = element("details", { class: "alternative" }, element("summary", {}, summary));
  made.addEventListener(
    "toggle",
    () => {
      const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
      const body = rows().map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
      const table = element("table", { "aria-label": summary }, element("thead", {}, head), element("tbody", {}, ...body));
      made.append(element("div", { class: "rows", role: "region", "aria-label": summary, tabindex: 0 }, table));
    },
    { once: true },
  );
  return made;
}

/** One stop for the Tab key among `items`; arrow keys go from one to the next, Enter and the space bar press. */
export function roving(items: readonly (HTMLElement | SVGElement)[], pressed: (position: number) => void): void {
  items.forEach((item, k) => {
    item.setAttribute("tabindex", k === 0 ? "0" : "-1");
    item.addEventListener("click", () => pressed(k));
    item.addEventListener("keydown", (event) => {
      const { key } = event as KeyboardEvent;
      const next = { ArrowRight: k + 1, ArrowDown: k + 1, ArrowLeft: k - 1, ArrowUp: k - 1, Home: 0, End: items.length - 1 }[key];
      if (next !== undefined && items[next] !== undefined) {
        item.setAttribute("tabindex", "-1");
        items[next].setAttribute("tabindex", "0");
        items[next].focus();
      } else if (key === "Enter" || key === " ") {
        pressed(k);
      } else if (next === undefined) {
        return;
      }
      event.preventDefault();
    });
  });
}
