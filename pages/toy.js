// The toy page's share of the browser. The address is the state: a change goes into it, and the whole of it to the server.
// One question is in flight at a time, so that no answer overwrites a newer one; of those that wait behind it, the newest is
// asked when the answer has come, and every one that asks for an act. A question without an answer is asked again.
(() => {
  const PATIENCE_MS = 15000;
  const TRIES = 3;
  const toy = (window.celToy ??= { serial: 0, flying: false, lost: false, waiting: [], timer: 0 });
  toy.trigger = trigger;
  const send = (question, tries = TRIES) => {
    toy.flying = true;
    toy.serial += 1;
    clearTimeout(toy.timer);
    toy.timer = setTimeout(() => {
      toy.lost = true; // what the page shows is unknown from here on, until an answer has drawn it anew
      if (tries > 1) send(question, tries - 1);
      else next(0);
    }, PATIENCE_MS);
    toy.trigger("ask", { ...question, serial: toy.serial, anew: toy.lost });
  };
  const next = (again) => {
    toy.flying = false;
    clearTimeout(toy.timer);
    if (toy.waiting.length) send(toy.waiting.shift());
    else if (again) toy.timer = setTimeout(ask, again, {});
  };
  const ask = (changes, act = "") => {
    window.cel.address(changes);
    const question = { query: Object.fromEntries(new URLSearchParams(location.search)), act };
    if (!toy.flying) return send(question);
    if (toy.waiting.length && !toy.waiting.at(-1).act) toy.waiting.pop();
    toy.waiting.push(question);
  };
  watch("value", () => {
    const answer = element.querySelector("[data-serial]");
    if (!answer || Number(answer.dataset.serial) !== toy.serial) return;
    toy.lost = false;
    next(Number(answer.dataset.again || 0));
  });
  if (toy.bound) return;
  toy.bound = true;
  const field = (form, name) => [...form.querySelectorAll("[data-field]")].find((each) => each.dataset.field === name);
  const paired = (input) => {
    const form = input.closest("form[data-toy]");
    const box = input.dataset.for ? field(form, input.dataset.for) : input;
    return [box, [...form.querySelectorAll("input[type=range]")].find((r) => r.dataset.for === box.dataset.field)];
  };
  const reach = (range, text) => {
    const number = Number(text);
    if (!Number.isFinite(number) || text.trim() === "") return;
    if (number > Number(range.max)) range.max = number;
    range.value = number;
  };
  document.addEventListener("input", (e) => {
    if (!(e.target instanceof HTMLInputElement) || !e.target.closest("form[data-toy]")) return;
    const [box, range] = paired(e.target);
    if (e.target.dataset.for) box.value = String(Number(Number(e.target.value).toFixed(6)));
    else if (range) reach(range, e.target.value);
  });
  document.addEventListener("change", (e) => {
    const input = e.target;
    const form = input.closest && input.closest("form[data-toy]");
    if (!form) return;
    const name = input.dataset.for || input.dataset.field;
    if (!name) return;
    const changes = { [name]: input.type === "checkbox" ? (input.checked ? "1" : "") : input.value.trim() };
    if (form.dataset.usual && (name === "x" || name === "y")) {
      const values = JSON.parse(form.dataset.usual)[input.value] || "";
      field(form, `${name}s`).value = values;
      changes[`${name}s`] = "";
    }
    ask(changes);
    const state = form.querySelector("[data-beyond]");
    if (state) {
      const usual = { batch: "0", noise: "0", decay: "0", init: "1", weight: "0.5", tasks: "2" };
      const boxes = [...state.closest("details").querySelectorAll("input")];
      const n = boxes.filter((b) => (b.type === "checkbox" ? b.checked : b.value.trim() && b.value.trim() !== usual[b.dataset.field])).length;
      state.textContent = n ? `${n} on` : "off";
    }
  });
  document.addEventListener("submit", (e) => { if (e.target.closest("form[data-toy]")) e.preventDefault(); });
  document.addEventListener("click", (e) => {
    const button = e.target instanceof Element && e.target.closest("button");
    if (!button) return;
    if (button.dataset.set) ask({ [button.dataset.set]: button.dataset.value });
    else if (button.dataset.act) ask({}, button.dataset.act);
    else if ("newSeed" in button.dataset) {
      const box = field(button.closest("form"), "seed");
      box.value = String(Math.floor(Math.random() * 1000));
      reach(paired(box)[1], box.value);
      ask({ seed: box.value });
    }
  });
})();
