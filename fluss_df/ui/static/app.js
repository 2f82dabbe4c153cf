// On every page: the switch of the theme, and parts that are loaded again while they are looked at.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only */ }
  });

  // A document is parsed by the browser, and no script in one that is loaded so runs.
  function load(url, use, after) {
    const request = new XMLHttpRequest();
    request.open("GET", url);
    request.responseType = "document";
    request.timeout = 20000;
    request.onload = () => {
      if (request.status === 200 && request.responseXML) use(request.responseXML);
    };
    request.onloadend = after;
    request.send();
  }

  function again(milliseconds, url, use) {
    const next = () => setTimeout(() => {
      if (document.hidden) next(); else load(url, use, next);
    }, milliseconds);
    next();
  }

  for (const part of document.querySelectorAll("[data-plot]")) {
    again(2000, part.dataset.plot, (found) => {
      part.replaceChildren(document.importNode(found.documentElement, true));
    });
  }
  const cards = document.querySelector("[data-cards]");
  if (cards) {
    again(3000, location.href, (found) => {
      const fresh = found.querySelector("[data-cards]");
      if (fresh) cards.replaceChildren(...[...fresh.children].map((n) => document.importNode(n, true)));
    });
  }
})();
