// The field for SQL: names are completed, Ctrl+Enter runs. And the page of what runs looks after it.
"use strict";
(() => {
  const form = document.getElementById("sql");
  const field = document.getElementById("statement");
  const list = document.getElementById("names");
  const database = document.getElementById("database");
  const WORD = /[A-Za-z0-9_$.`-]+$/;
  let choices = [], chosen = -1, turn = 0, timer = 0;

  function word() {
    const found = WORD.exec(field.value.slice(0, field.selectionStart));
    return found ? found[0] : "";
  }

  function hide() {
    turn += 1;
    clearTimeout(timer);
    list.hidden = true;
    choices = [];
    chosen = -1;
    field.removeAttribute("aria-activedescendant");
  }

  function mark(index) {
    chosen = (index + choices.length) % choices.length;
    [...list.children].forEach((item, at) => {
      item.setAttribute("aria-selected", String(at === chosen));
      if (at === chosen) item.scrollIntoView({ block: "nearest" });
    });
    field.setAttribute("aria-activedescendant", `name-${chosen}`);
  }

  function quoted(choice) {
    if (choice.kind === "keyword") return choice.text;
    const parts = choice.kind === "table" ? choice.text.split(".") : [choice.text];
    return parts
      .map((part) => (/^[A-Za-z_][A-Za-z0-9_]*$/.test(part) ? part : "`" + part.replaceAll("`", "``") + "`"))
      .join(".");
  }

  function take(index) {
    const choice = choices[index];
    const end = field.selectionStart;
    const text = quoted(choice);
    field.setRangeText(text, end - word().length, end, "end");
    hide();
    field.focus();
  }

  function show(found) {
    choices = found;
    list.replaceChildren(...found.map((choice, index) => {
      const item = document.createElement("li");
      item.id = `name-${index}`;
      item.setAttribute("role", "option");
      const kind = document.createElement("small");
      kind.textContent = choice.kind;
      item.append(choice.text, kind);
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(index); });
      return item;
    }));
    list.hidden = !found.length;
    if (found.length) mark(0); else hide();
  }

  async function complete() {
    const mine = ++turn;
    // the tables of the statement, whose columns are meant
    const tables = [...new Set(field.value.match(/(?<=\b(?:from|join|into|update)\s+)[\w.`-]+/gi) || [])];
    const asked = new URLSearchParams({
      prefix: word().slice(0, 200),
      database: database.value,
      tables: tables.slice(0, 10).join(",").slice(0, 2000),
    });
    try {
      const answer = await fetch(`/sql/names?${asked}`);
      if (answer.ok && mine === turn) show(await answer.json());
    } catch { hide(); }
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    if (word().length < 2) { hide(); return; }
    timer = setTimeout(complete, 120);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      complete();
    } else if (!list.hidden) {
      const keys = {
        ArrowDown: () => mark(chosen + 1),
        ArrowUp: () => mark(chosen - 1),
        Enter: () => take(chosen),
        Tab: () => take(chosen),
        Escape: hide,
      };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    }
  });
  field.addEventListener("blur", hide);

  const result = document.getElementById("result");
  if (!result || !result.dataset.run) return;
  async function look() {
    try {
      const answer = await fetch(`${result.dataset.run}/state`);
      const found = await answer.json();
      if (found.status !== "running") { location.reload(); return; }
      document.getElementById("told").textContent = found.told;
    } catch { /* asked again */ }
    setTimeout(look, 500);
  }
  setTimeout(look, 500);
})();
