// Prints the last cell of the row that the script of the page makes of the first holder in an answer. The arguments are the
// script and the answer.
"use strict";

const vm = require("node:vm");

const [script, answer] = process.argv.slice(1);
// A part of the page, with whatever the script asks of it.
const anything = new Proxy(() => anything, { get: () => anything, set: () => true });
const document = {
  getElementById: () => anything,
  addEventListener: () => {},
  createElement: () => ({ cells: [], append(...cells) { this.cells.push(...cells); } }),
};
const page = vm.createContext({
  document,
  performance,
  AbortController,
  URLSearchParams,
  fetch: () => new Promise(() => {}),
  setInterval: () => {},
  clearTimeout: () => {},
});
vm.runInContext(script, page);
const [holder] = page.parse(answer).holders;
process.stdout.write(page.holderRow(holder).cells.at(-1).textContent);
