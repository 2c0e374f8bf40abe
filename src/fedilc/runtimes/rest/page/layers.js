// How far signs agree in each layer, in the last round that measured it.

import { count, make, say } from "./words.js";

const FEW = 24;

/** A layer's name, which may break at its points. */
function layer(name) {
  const made = make("span", "layer");
  name.split(/(?<=\.)/).forEach((part) => made.append(part, make("wbr")));
  return made;
}

export class Layers {
  constructor(section) {
    this.section = section;
    this.list = section.querySelector("ul");
    this.when = section.querySelector(".when");
    this.box = section.querySelector(".box");
    this.items = new Map();
  }

  /** Show a record's agreement; without any, nothing. */
  show(record) {
    const found = Object.entries(record?.sign_agreement ?? {});
    this.section.hidden = !found.length;
    if (!found.length) return;
    say(this.when, count(record.round));
    if (found.map(([name]) => name).join("\n") !== [...this.items.keys()].join("\n")) this.rebuild(found);
    for (const [name, share] of found) {
      const item = this.items.get(name);
      say(item.querySelector(".value"), share.toFixed(2));
      item.querySelector(".fill").style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    }
  }

  rebuild(found) {
    this.items = new Map(
      found.map(([name]) => {
        const item = make("li");
        const bar = make("span", "bar");
        bar.setAttribute("aria-hidden", "true");
        bar.append(make("span", "fill"));
        item.append(layer(name), make("span", "value"), bar);
        return [name, item];
      }),
    );
    this.list.replaceChildren(...this.items.values());
    this.box.tabIndex = found.length > FEW ? 0 : -1;
    this.box.classList.toggle("high", found.length > FEW);
  }
}
