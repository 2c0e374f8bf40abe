// The form that asks for a viewer token, and its storage: this tab's session, nowhere else.

import { Refused, ask } from "./feed.js";
import { duration, say } from "./format.js";

const KEY = "fedilc-viewer-token";
const WRONG = "This is not a viewer token of this run. Check that it is complete, or ask the operator for one.";

export const stored = () => sessionStorage.getItem(KEY);
export const forget = () => sessionStorage.removeItem(KEY);

export class TokenForm {
  constructor(section) {
    this.section = section;
    this.input = section.querySelector("input");
    this.button = section.querySelector("button");
    this.answer = section.querySelector(".answer");
    section.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
  }

  /** Ask until a token is valid; resolve to it. */
  open(refused = false) {
    this.section.hidden = false;
    this.say(refused ? WRONG : "", refused);
    this.input.focus();
    return new Promise((resolve) => {
      this.accept = resolve;
    });
  }

  async submit() {
    const token = this.input.value.trim();
    this.button.disabled = true;
    try {
      if (!/^[\x21-\x7e]+$/.test(token)) throw new Refused(401, WRONG, 0);
      await ask("v1/status", token);
    } catch (error) {
      this.refuse(error);
      return;
    }
    this.button.disabled = false;
    sessionStorage.setItem(KEY, token);
    this.input.value = "";
    this.section.hidden = true;
    this.accept(token);
  }

  refuse(error) {
    const wait = error.status === 429 ? error.wait || 60 : 0;
    if (wait) this.say(`Too many wrong tokens from your address. Wait ${duration(wait)}, then try again.`);
    else if (error.status === 401) this.say(WRONG, true);
    else this.say("The coordinator does not respond. Try again in a moment.");
    setTimeout(() => {
      this.button.disabled = false;
      if (wait) this.say("You may try again now.");
    }, 1000 * wait);
    this.input.select();
  }

  say(sentence, wrong = false) {
    say(this.answer, sentence);
    this.input.setAttribute("aria-invalid", String(wrong));
  }
}
