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
const squares = all(".map a.chip");
let origin = null; // the link by which the open panel was reached

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
    dim(chip, off);
    shown += off ? 0 : 1;
  }
  for (const row of all(".board tr[data-cell]")) row.hidden = !row.querySelector("a.chip:not(.off)");
  for (const family of all("tbody.family")) family.hidden = !family.querySelector("tr[data-cell]:not([hidden])");
  const cells = all(".board tr[data-cell]:not([hidden])").length;
  stops(chips);
  one("found").textContent = `${shown} of ${chips.length} verdicts in ${cells} cells`;
}

function dim(chip, off) {
  chip.classList.toggle("off", off);
  if (off) chip.setAttribute("aria-disabled", "true");
  else chip.removeAttribute("aria-disabled");
}

// The table of which a chip is one, and what the filters leave of it.
function mates(chip) {
  return squares.includes(chip) ? squares : chips;
}

function seen(list) {
  return list.filter((chip) => !chip.classList.contains("off") && chip.getClientRects().length);
}

// One stop for the tabulator in each table, however many chips it has: the arrows go on from there.
function stops(list, wanted = list.find((chip) => chip.tabIndex === 0)) {
  const left = seen(list), stop = left.includes(wanted) ? wanted : left[0];
  for (const chip of list) chip.tabIndex = chip === stop ? 0 : -1;
}

// The nearest verdict in the direction of the key, by where it stands on the screen.
function neighbour(from, key) {
  const here = from.getBoundingClientRect();
  const across = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  let best = null, least = Infinity;
  for (const chip of seen(mates(from))) {
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
  // What lies below an open panel is not reached by the keyboard.
  document.querySelector("main").inert = Boolean(now);
  if (now) now.querySelector(".close").focus();
  else if (origin) origin.focus();
}

function step(by) {
  const from = [origin, ...chips, ...squares].find((chip) => chip?.hash === location.hash);
  const list = from ? seen(mates(from)) : [], next = list[list.indexOf(from) + by];
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
  else if (event.key.startsWith("Arrow") && event.target.matches(":is(.board, .map) a.chip")) neighbour(event.target, event.key)?.focus();
  else if (event.key === "ArrowDown" && !now && !event.target.matches("a, summary, pre, button, input, .scroll")) seen(chips)[0]?.focus();
  else return;
  event.preventDefault();
}

// The pairs, narrowed to what somebody has.
const mine = ["my-vllm", "my-trl", "my-device"].map(one);
function narrow() {
  const [vllm, trl, device] = mine.map((field) => field.value);
  for (const cell of all(".map [data-vllm]")) cell.hidden = Boolean(vllm) && cell.dataset.vllm !== vllm;
  for (const row of all(".map tr[data-trl]")) row.hidden = trl ? row.dataset.trl !== trl : !row.querySelector("td:not([hidden]) a");
  for (const chip of squares) dim(chip, Boolean(device) && chip.dataset.device !== device);
  const fits = (row) => (!vllm || row.dataset.vllm === vllm) && (!trl || row.dataset.trl === trl) && (!device || row.dataset.device === device);
  for (const row of all(".ran tr[data-vllm]")) row.hidden = !fits(row);
  stops(squares);
  one("answer").textContent = vllm || trl || device ? answer() : "";
}

// In words, what is left of the pairs: those that ran, or what was only read of the newest.
function answer() {
  const some = (names) => `${names.slice(0, 4).join(", ")}${names.length > 4 ? " …" : ""}`;
  const ran = all(".ran tr[data-vllm]").filter((row) => !row.hidden);
  if (ran.length) return `ran: ${some(ran.map((row) => row.querySelector("a").ariaLabel.split(":")[0]))}`;
  const read = seen(squares).filter((chip) => chip.dataset.state === "read");
  return `nothing of these ran${read.length ? `; only read, and all that TRL takes is there: ${some(read.map((chip) => chip.title.split(":")[0]))}` : ""}`;
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
for (const link of all("main a")) link.addEventListener("click", () => { origin = link; });
for (const list of [chips, squares]) for (const chip of list) chip.addEventListener("focus", () => stops(list, chip));
for (const field of fields) field.addEventListener("input", filter);
for (const button of all("button.copy")) button.addEventListener("click", () => copy(button));
one("clear").addEventListener("click", () => {
  for (const field of fields) field.type === "checkbox" ? (field.checked = false) : (field.value = "");
  filter();
});
addEventListener("keydown", pressed);
addEventListener("hashchange", opened);
addEventListener("click", (event) => { if (panel() && !event.target.closest(".panel, main")) location.hash = "top"; });
one("tools").hidden = false;
for (const element of all(".scripted")) element.hidden = false;
filter();
narrow();
if (panel()) opened();
