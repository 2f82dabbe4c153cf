// Rows as they come. The table holds 200 of them, however long the page is open.
"use strict";
(() => {
  const table = document.getElementById("tail");
  if (!table) return;
  const body = table.tBodies[0];
  const state = document.getElementById("state");
  const pause = document.getElementById("pause");
  const MOST = 200;
  let seen = 0, matched = 0, waiting = null, stream = null, failures = 0;

  const say = (text) => { state.textContent = text; };
  const number = (value) => value.toLocaleString("en");

  function told() {
    say(`${number(seen)} rows came` + (matched === seen ? "" : `, ${number(matched)} of them shown`));
  }

  function row(values) {
    const made = document.createElement("tr");
    for (const [text, kind] of values) {
      const cell = document.createElement("td");
      if (kind !== "text") cell.className = kind;
      cell.textContent = text;
      made.append(cell);
    }
    return made;
  }

  function draw() {
    const rows = waiting;
    waiting = null;
    if (!rows) return;
    body.prepend(...rows.slice(-MOST).reverse().map(row));
    while (body.rows.length > MOST) body.lastElementChild.remove();
    told();
  }

  function came(event) {
    failures = 0;
    const found = JSON.parse(event.data);
    seen += found.seen;
    matched += found.matched;
    if (!found.rows.length) { told(); return; }
    if (waiting) { waiting = waiting.concat(found.rows).slice(-MOST); return; }
    waiting = found.rows;
    // a tab that nobody looks at draws nothing
    requestAnimationFrame(draw);
  }

  function open() {
    stream = new EventSource(table.dataset.stream);
    stream.addEventListener("open", () => { if (!seen) say("Waiting for rows…"); });
    stream.addEventListener("rows", came);
    stream.addEventListener("failed", (event) => {
      close();
      say(JSON.parse(event.data).message);
      pause.textContent = "Try again";
    });
    stream.onerror = () => {
      failures += 1;
      if (stream && (stream.readyState === EventSource.CLOSED || failures > 5)) {
        close();
        say("The console does not answer: is it running, and are there too many live tails?");
        pause.textContent = "Try again";
      }
    };
  }

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  pause.addEventListener("click", () => {
    if (stream) {
      close();
      pause.textContent = "Go on";
      pause.setAttribute("aria-pressed", "true");
    } else {
      failures = 0;
      open();
      pause.textContent = "Pause";
      pause.setAttribute("aria-pressed", "false");
    }
  });
  addEventListener("pagehide", close);
  open();
})();
