// The page works without this: it adds the filter, the keys and the copying of commands.
"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const one = (id) => document.getElementById(id);
const chips = all(".board a.chip");
const fields = all("#tools input, #tools select");
const layerOf = (chip) => chip.parentElement.dataset.layer;
const words = new Map(chips.map((chip) => {
  const cell = chip.closest("tr").dataset.cell;
  return [chip, `${cell} ${layerOf(chip)} ${chip.textContent} ${chip.title}`.toLowerCase()];
}));
let origin = null; // the verdict from which the open panel was reached

function wanted() {
  const searched = one("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, layer, evidence] = ["verdict", "layer", "evidence"].map((id) => one(id).value);
  const [surprise, changed] = ["surprise", "changed"].map((id) => one(id).checked);
  return (chip, text) =>
    searched.every((word) => text.includes(word)) &&
    (!verdict || chip.classList.contains(verdict)) &&
    (!layer || layerOf(chip) === layer) &&
    (!evidence || chip.classList.contains(evidence)) &&
    (!surprise || chip.classList.contains("surprise")) &&
    (!changed || chip.classList.contains("changed"));
}

function filter() {
  const fits = wanted();
  let shown = 0;
  for (const chip of chips) {
    const off = !fits(chip, words.get(chip));
    chip.classList.toggle("off", off);
    chip.tabIndex = off ? -1 : 0;
    shown += off ? 0 : 1;
  }
  for (const row of all(".board tr[data-cell]")) row.hidden = !row.querySelector("a.chip:not(.off)");
  for (const family of all("tbody.family")) family.hidden = !family.querySelector("tr[data-cell]:not([hidden])");
  const cells = all(".board tr[data-cell]:not([hidden])").length;
  one("found").textContent = `${shown} of ${chips.length} verdicts in ${cells} cells`;
}

function seen() {
  return chips.filter((chip) => !chip.classList.contains("off"));
}

// The nearest verdict in the direction of the key, by where it stands on the screen.
function neighbour(from, key) {
  const here = from.getBoundingClientRect();
  const across = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  let best = null, least = Infinity;
  for (const chip of seen()) {
    const there = chip.getBoundingClientRect();
    const [along, aside] = across ? [there.left - here.left, there.top - here.top] : [there.top - here.top, there.left - here.left];
    if (sign * along <= 1) continue;
    const distance = sign * along + 20 * Math.abs(aside);
    if (distance < least) [best, least] = [chip, distance];
  }
  return best;
}

function panel() {
  return location.hash ? document.querySelector(`article.panel[id="${CSS.escape(location.hash.slice(1))}"]`) : null;
}

async function copy(button) {
  const command = button.previousElementSibling;
  let done = false;
  try {
    await navigator.clipboard.writeText(command.textContent);
    done = true;
  } catch {
    getSelection().selectAllChildren(command);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
}

function opened() {
  const now = panel();
  if (now) now.querySelector(".close").focus();
  else if (origin) origin.focus();
}

function step(by) {
  const list = seen(), at = list.indexOf(origin ?? chips.find((chip) => chip.hash === location.hash));
  const next = list[at + by];
  if (!next) return;
  origin = next;
  location.hash = next.hash;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input[type=search], select");
  const now = panel();
  if (event.key === "Escape") {
    if (now) location.hash = "top";
    else if (typing) {
      one("search").value = "";
      filter();
    }
  } else if (typing) return;
  else if (event.key === "/") one("search").focus();
  else if (event.key === "c" && now) copy(now.querySelector("button.copy"));
  else if ((event.key === "j" || event.key === "k") && now) step(event.key === "j" ? 1 : -1);
  else if (event.key.startsWith("Arrow") && event.target.matches(".board a.chip")) neighbour(event.target, event.key)?.focus();
  else if (event.key === "ArrowDown" && !now && !event.target.matches("a, summary, pre, button, input, .scroll")) seen()[0]?.focus();
  else return;
  event.preventDefault();
}

// The map, narrowed to what somebody has.
const mine = ["my-vllm", "my-trl", "my-device"].map(one);
function narrow() {
  const [vllm, trl, device] = mine.map((field) => field.value);
  for (const cell of all(".map [data-vllm]")) cell.hidden = vllm && cell.dataset.vllm !== vllm;
  for (const row of all(".map tr[data-trl]")) row.hidden = trl && row.dataset.trl !== trl;
  const left = all(".map a.chip").filter((chip) => !chip.parentElement.hidden && !chip.closest("tr").hidden);
  for (const chip of left) chip.classList.toggle("off", Boolean(device) && chip.dataset.device !== device);
  const ran = left.filter((chip) => chip.dataset.device && (!device || chip.dataset.device === device));
  const pairs = ran.slice(0, 4).map((chip) => `vLLM ${chip.parentElement.dataset.vllm} with TRL ${chip.closest("tr").dataset.trl}`);
  one("answer").textContent = vllm || trl || device ? (ran.length ? `ran: ${pairs.join(", ")}${ran.length > 4 ? " …" : ""}` : "nothing of these ran") : "";
}
for (const field of mine) field.addEventListener("input", narrow);
one("mine").hidden = false;

for (const command of all("pre.command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  command.after(button);
}
for (const chip of chips) chip.addEventListener("click", () => { origin = chip; });
for (const field of fields) field.addEventListener("input", filter);
for (const button of all("button.copy")) button.addEventListener("click", () => copy(button));
one("clear").addEventListener("click", () => {
  for (const field of fields) field.type === "checkbox" ? (field.checked = false) : (field.value = "");
  filter();
});
addEventListener("keydown", pressed);
addEventListener("hashchange", opened);
one("tools").hidden = false;
for (const element of all(".scripted")) element.hidden = false;
filter();
