// The sign agreement of each layer in the last round that measured it.

import { count, make, say } from "./format.js";

const MAX_WITHOUT_SCROLLING = 24;

/** Return a layer's name, which may wrap after its dots. */
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

  /** Show a record's agreement; hide the section if it has none. */
  show(record) {
    const layers = Object.entries(record?.sign_agreement ?? {});
    this.section.hidden = !layers.length;
    if (!layers.length) return;
    say(this.when, count(record.round));
    if (layers.map(([name]) => name).join("\n") !== [...this.items.keys()].join("\n")) this.rebuild(layers);
    for (const [name, share] of layers) {
      const item = this.items.get(name);
      say(item.querySelector(".value"), share.toFixed(2));
      item.querySelector(".fill").style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    }
  }

  rebuild(layers) {
    this.items = new Map(
      layers.map(([name]) => {
        const item = make("li");
        const bar = make("span", "bar");
        bar.setAttribute("aria-hidden", "true");
        bar.append(make("span", "fill"));
        item.append(layer(name), make("span", "value"), bar);
        return [name, item];
      }),
    );
    this.list.replaceChildren(...this.items.values());
    this.box.tabIndex = layers.length > MAX_WITHOUT_SCROLLING ? 0 : -1;
    this.box.classList.toggle("high", layers.length > MAX_WITHOUT_SCROLLING);
  }
}
