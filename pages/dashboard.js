// The dashboard's share of the browser: filters, sorting, links of rows, ages, tips and the theme. One listener an event, on the
// document, so that nothing is bound to elements that Gradio replaces. Nothing here is trusted by the server.
(() => {
  if (window.cel) return;
  const minus = /\u2212/g;
  const sorted = new Map(); // table name -> {column, down}
  const groups = new Map(); // table name -> chosen group

  // --- theme: the system's unless chosen here
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const asked = new URLSearchParams(location.search).get("__theme");
  const dark = () => {
    const kept = asked || localStorage.getItem("cel-theme");
    return kept ? kept === "dark" : system.matches;
  };
  const paint = () => {
    if (document.body.classList.contains("dark") !== dark()) document.body.classList.toggle("dark", dark());
    document.documentElement.style.colorScheme = dark() ? "dark" : "light";
    document.querySelectorAll("[data-theme-switch]").forEach((b) => {
      const text = dark() ? "Light" : "Dark";
      if (b.textContent !== text) b.textContent = text;
    });
  };
  new MutationObserver(paint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  system.addEventListener("change", paint);

  // --- tables
  const tables = (name, within = document) => [...within.querySelectorAll("table[data-table]")].filter((t) => t.dataset.table === name);
  const value = (cell) => {
    const marked = cell.querySelector("[data-sort]");
    const text = (marked ? marked.dataset.sort : cell.textContent).trim();
    const number = parseFloat(text.replace(/^[≤≥[]\s*/, "").replace(minus, "-").replace(/,(?=\d{3})/g, ""));
    return Number.isNaN(number) || /^[A-Za-z]/.test(text) ? text.toLowerCase() : number;
  };
  const sort = (table) => {
    const order = sorted.get(table.dataset.table);
    if (!order) return;
    const rows = [...table.tBodies[0].rows];
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
    rows.sort((a, b) => {
      const [x, y] = [value(a.cells[order.column]), value(b.cells[order.column])];
      if (x === "" || y === "") return (x === "") - (y === "");
      return order.down ? compare(y, x) : compare(x, y);
    });
    table.tBodies[0].append(...rows);
    [...table.tHead.rows[0].cells].forEach((cell, i) => {
      if (i === order.column) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  };
  const filter = (table) => {
    const name = table.dataset.table;
    const box = [...document.querySelectorAll("input[data-filter]")].find((i) => i.dataset.filter === name);
    const words = (box ? box.value : "").toLowerCase().split(/\s+/).filter(Boolean);
    if (!groups.has(name)) {
      const pressed = [...document.querySelectorAll('button[data-group-of][aria-pressed="true"]')].find((b) => b.dataset.groupOf === name);
      if (pressed) groups.set(name, pressed.dataset.group);
    }
    const group = groups.get(name) || "";
    const asked = table.closest("[data-words]"); // the server sought the words, in whole texts
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const fits = (!group || row.dataset.group === group) && (asked || words.every((w) => text.includes(w)));
      row.hidden = !fits;
      shown += fits;
    }
    const empty = table.parentElement.querySelector(".empty");
    if (empty) {
      empty.hidden = shown > 0;
      empty.textContent = words.length ? "Nothing fits the filter." : "None.";
    }
    document.querySelectorAll("button[data-group-of]").forEach((b) => {
      if (b.dataset.groupOf === name) b.setAttribute("aria-pressed", String(b.dataset.group === group));
    });
  };

  // --- addresses
  const word = (name) => new URLSearchParams(location.search).get(name);
  const follow = (within) => {
    within.querySelectorAll("a[data-keep-run]").forEach((a) => {
      const path = a.getAttribute("href").split("?")[0];
      const kept = new URLSearchParams(["run", "example"].filter((name) => word(name)).map((name) => [name, word(name)]));
      a.setAttribute("href", word("run") ? `${path}?${kept}` : path);
    });
  };
  const address = (changes) => {
    const url = new URL(location.href);
    for (const [key, text] of Object.entries(changes)) {
      if (text) url.searchParams.set(key, text);
      else url.searchParams.delete(key);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url.href.replace(/%2C/g, ","));
    follow(document);
  };

  const age = (t) => {
    const s = (Date.now() - Date.parse(t.dateTime)) / 1000;
    const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, l]) => s >= l) || ["", 0];
    const text = length ? `${Math.round(s / length)} ${unit}` : "now";
    if (t.textContent !== text) t.textContent = text;
  };
  // --- the worker's state, at the right end of the bar
  let said = { text: "", state: "" };
  const say = () => {
    document.querySelectorAll("[data-worker]").forEach((w) => {
      if (w.textContent !== said.text) w.textContent = said.text;
      w.classList.toggle("bad", said.state === "dead");
    });
  };
  const ask = async () => {
    if (document.hidden) return;
    try {
      said = await (await fetch("/worker")).json();
    } catch {
      said = { text: "the dashboard has ended: start it again", state: "dead" };
    }
    say();
  };
  setInterval(ask, 2000);
  document.addEventListener("visibilitychange", ask);
  ask();

  const restore = (within = document) => {
    within.querySelectorAll("table[data-table]").forEach((t) => { sort(t); filter(t); });
    within.querySelectorAll("time[data-age]").forEach(age);
    const title = document.querySelector(".page h1");
    const early = document.querySelector(".early"); // stands where Gradio has not drawn the page yet (first_paint.py)
    if (title && early) early.remove();
    if (title) document.title = `${title.textContent} · CEL`;
    const state = within.querySelector("[data-address]");
    if (state) address(JSON.parse(state.dataset.address));
    const goto = within.querySelector("[data-goto]");
    if (goto && goto.dataset.goto.startsWith("/")) location.href = goto.dataset.goto;
    fill(within);
    relook(within);
    stale();
    follow(within);
    paint();
    say();
  };
  // --- pieces that the server makes slowly: fetched once, put back whenever the page is drawn again
  const fetched = new Map(); // address -> HTML of the server's own
  const refused = new Set(); // addresses that were answered by an error: asked again when an example is opened again
  const fill = (within) => {
    within.querySelectorAll("[data-fetch]").forEach(async (place) => {
      const asked = place.dataset.fetch;
      if (!asked.startsWith("/")) return;
      if (!fetched.has(asked)) fetched.set(asked, fetch(asked).then((r) => (r.ok ? r.text() : Promise.reject(r.status))));
      try {
        const text = await fetched.get(asked);
        if (text.includes("notice bad")) refused.add(asked);
        if (place.isConnected && place.dataset.fetch === asked && place.innerHTML !== text) place.innerHTML = text;
      } catch {
        fetched.delete(asked);
        place.textContent = "The dashboard did not answer: open the example again.";
      }
    });
  };

  document.addEventListener("click", (e) => {
    const button = e.target instanceof Element && e.target.closest("[data-asks]");
    if (!button) return;
    const place = button.closest("[data-ask]");
    place.dataset.fetch = place.dataset.ask;
    place.replaceChildren(place.querySelector("template").content.cloneNode(true));
    fill(place.parentElement);
  });

  // --- head switches: the browser knows at once what is off, the server checks it and counts
  let wanted = null; // heads off, as text, where the page has switches
  const numbers = (name) => name.match(/\d+/g).map(Number);
  const named = (cells) => cells.map((c) => c.dataset.head).sort((a, b) => {
    const [x, y] = [numbers(a), numbers(b)];
    return x[0] - y[0] || x[1] - y[1];
  }).join(",");
  const stale = () => {
    if (wanted === null) return;
    document.querySelectorAll("[data-heads]").forEach((e) => e.classList.toggle("stale", e.dataset.heads !== wanted));
  };
  // colours that came after the map was drawn; what is pressed and focused stays
  const relook = (within) => {
    const said = within.querySelector("[data-looks]");
    const map = document.querySelector(".map[data-switches]");
    if (!said || !map) return;
    const looks = JSON.parse(said.dataset.looks);
    map.querySelectorAll("button[data-head]").forEach((cell) => {
      const [css, style, tip] = looks[cell.dataset.head];
      if (cell.dataset.tip === tip && cell.className === css) return;
      cell.className = css;
      cell.style.cssText = style;
      cell.dataset.tip = tip;
      cell.setAttribute("aria-label", tip.replace("\n", ", "));
    });
    map.parentElement.querySelector(".legend").innerHTML = said.querySelector(".legend").innerHTML;
  };
  const switches = (element, changed) => {
    let anchor = null;
    const cells = () => [...element.querySelectorAll("button[data-head]")];
    const isOff = (cell) => cell.getAttribute("aria-pressed") === "true";
    const put = (cell, off) => cell.setAttribute("aria-pressed", String(off));
    let sent = 0; // when the server was last told, and how often of this very set
    let tries = 0;
    const tell = () => {
      sent = Date.now();
      tries += 1;
      changed(wanted);
    };
    const told = () => {
      const text = named(cells().filter(isOff));
      if (text === wanted) return;
      wanted = text;
      tries = 0;
      stale();
      tell();
    };
    // of several events in flight an older one may be the last to arrive: say it again
    setInterval(() => {
      const asked = document.querySelector("[data-asked]"); // what the server has heard last
      if (wanted !== null && tries < 3 && Date.now() - sent > 900 && asked && asked.dataset.asked !== wanted) tell();
    }, 300);
    const all = (chosen) => {
      const off = !chosen.every(isOff);
      chosen.forEach((cell) => put(cell, off));
      told();
    };
    const begin = () => {
      const found = cells();
      wanted = found.length ? named(found.filter(isOff)) : null;
      stale();
    };
    const at = (layer, index) => cells().find((c) => c.dataset.head === `L${layer}H${index}`);
    const press = (cell, range) => {
      if (range && anchor && anchor.isConnected && anchor !== cell) {
        const [a, b] = [numbers(anchor.dataset.head), numbers(cell.dataset.head)];
        const between = (x, i) => Math.min(a[i], b[i]) <= x[i] && x[i] <= Math.max(a[i], b[i]);
        const off = isOff(anchor);
        cells().filter((c) => [0, 1].every((i) => between(numbers(c.dataset.head), i))).forEach((c) => put(c, off));
      } else put(cell, !isOff(cell));
      anchor = cell;
      told();
    };
    const focus = (cell) => {
      cells().forEach((c) => { c.tabIndex = c === cell ? 0 : -1; });
      cell.focus();
    };
    element.addEventListener("click", (e) => {
      const cell = e.target.closest("button[data-head]");
      if (cell) {
        focus(cell);
        return press(cell, e.shiftKey);
      }
      const label = e.target.closest("[data-row], [data-column]");
      if (!label || !e.shiftKey) return;
      e.preventDefault();
      const [place, value] = label.dataset.row !== undefined ? [0, label.dataset.row] : [1, label.dataset.column];
      all(cells().filter((c) => numbers(c.dataset.head)[place] === Number(value)));
    });
    element.addEventListener("mousedown", (e) => { if (e.shiftKey) e.preventDefault(); }); // no text is marked
    element.addEventListener("keydown", (e) => {
      const cell = e.target.closest("button[data-head]");
      if (!cell) return;
      const [layer, index] = numbers(cell.dataset.head);
      const moves = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (moves[e.key]) {
        const next = at(layer + moves[e.key][0], index + moves[e.key][1]);
        if (next) focus(next);
      } else if (e.key === " " || e.key === "Enter") press(cell, e.shiftKey);
      else return;
      e.preventDefault();
    });
    // presets and chips stand elsewhere on the page
    document.addEventListener("click", (e) => {
      if (!element.isConnected || !(e.target instanceof Element)) return;
      const set = e.target.closest("[data-set-heads]");
      const cycle = e.target.closest("[data-cycle]");
      const chip = e.target.closest("[data-switch]");
      if (chip) return press(cells().find((c) => c.dataset.head === chip.dataset.switch) || anchor, false);
      if (!set && !cycle) return;
      let text = set ? set.dataset.setHeads : "";
      if (cycle) {
        const list = cycle.dataset.cycle.split(" ");
        text = list[(list.indexOf(wanted) + 1) % list.length];
      }
      const off = new Set(text.split(","));
      cells().forEach((c) => put(c, off.has(c.dataset.head)));
      told();
    });
    begin();
    return begin;
  };
  document.addEventListener("click", async (e) => {
    const button = e.target instanceof Element && e.target.closest("[data-copy-link]");
    if (!button) return;
    const text = button.textContent;
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy it from the address";
    }
    setTimeout(() => { button.textContent = text; }, 1500);
  });

  setInterval(() => document.querySelectorAll("time[data-age]").forEach(age), 20000);

  // --- one listener an event
  document.addEventListener("input", (e) => {
    const name = e.target.dataset && e.target.dataset.filter;
    if (name) tables(name).forEach(filter);
  });
  document.addEventListener("click", (e) => {
    if (!(e.target instanceof Element)) return;
    const head = e.target.closest("table[data-table] th button");
    if (head) {
      const cell = head.closest("th");
      const table = cell.closest("table");
      const before = sorted.get(table.dataset.table);
      const down = before && before.column === cell.cellIndex ? !before.down : cell.classList.contains("n");
      sorted.set(table.dataset.table, { column: cell.cellIndex, down });
      sort(table);
      return;
    }
    const group = e.target.closest("button[data-group-of]");
    if (group) {
      groups.set(group.dataset.groupOf, group.dataset.group);
      tables(group.dataset.groupOf).forEach(filter);
      return;
    }
    if (e.target.closest("[data-theme-switch]")) {
      localStorage.setItem("cel-theme", dark() ? "light" : "dark");
      paint();
      return;
    }
    const row = e.target.closest("tr[data-href]");
    if (row && !e.target.closest("a, button, input") && !String(getSelection())) location.href = row.dataset.href;
  });

  // --- tips
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  const point = (e) => {
    const target = e.target instanceof Element && e.target.closest("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = target.dataset.tip;
    const box = target.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 4 ? above : box.bottom + 6}px`;
  };
  document.addEventListener("pointerover", point);
  document.addEventListener("focusin", point);

  // buttons that tell the server their name
  const pressable = (element, pressed) => {
    element.addEventListener("click", (e) => {
      const button = e.target.closest("button[data-press]");
      if (button && !button.disabled) pressed(button.dataset.press);
    });
  };

  // rows that can be picked by mouse or keyboard: `picked` is told the row's key
  const pickable = (element, picked) => {
    const pick = (row) => {
      row.parentElement.querySelectorAll("tr.sel").forEach((r) => r.classList.remove("sel"));
      row.classList.add("sel");
      refused.forEach((asked) => fetched.delete(asked));
      refused.clear();
      address({ example: row.dataset.key });
      picked(row.dataset.key);
    };
    element.addEventListener("click", (e) => {
      const row = e.target.closest("tr[data-key]");
      if (row) pick(row);
    });
    element.addEventListener("keydown", (e) => {
      const row = e.target.closest("tr[data-key]");
      if (!row) return;
      if (e.key === "Enter" || e.key === " ") pick(row);
      else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        const step = e.key === "ArrowDown" ? "nextElementSibling" : "previousElementSibling";
        let next = row[step];
        while (next && next.hidden) next = next[step];
        if (next) next.focus();
      } else return;
      e.preventDefault();
    });
  };

  // a filter box above a list that holds only the first of many rows, and of each only the beginning, asks the server
  const findable = (element, sought) => {
    let timer = 0;
    element.addEventListener("input", (e) => {
      if (!e.target.closest("input[data-filter]")) return;
      clearTimeout(timer);
      const text = e.target.value;
      timer = setTimeout(() => {
        const list = element.querySelector("[data-words]");
        if (list && list.dataset.words !== text) sought(text);
      }, 250);
    });
  };

  window.cel = { restore, address, pickable, pressable, findable, switches };
  restore();
})();
