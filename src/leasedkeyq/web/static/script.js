// The web page of leasedkeyq: times in the zone of the reader, live parts, keys. Everything works
// without it, too. No part of it makes code out of text.
"use strict";

(() => {
  const body = document.body;
  const root = document.documentElement;

  // Times

  const full = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "numeric",
    hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  function away(seconds) {
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const at = units.findIndex((unit) => size >= unit[1]);
    const [name, length] = units[at];
    let text = `${Math.floor(size / length)} ${name}`;
    if (at < units.length - 2) {
      const [next, part] = units[at + 1];
      const rest = Math.floor((size % length) / part);
      if (rest) text += ` ${rest} ${next}`;
    }
    return seconds > 0 ? `${text} ago` : `in ${text}`;
  }

  function times(where) {
    const now = Date.now();
    for (const element of where.querySelectorAll("time[datetime]")) {
      const moment = new Date(element.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      if (!element.dataset.ready) {
        element.dataset.ready = "yes";
        element.title = `${full.format(moment)} (${element.dateTime})`;
      }
      const text = element.dataset.form === "full"
        ? full.format(moment)
        : away((now - moment.getTime()) / 1000);
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // The marks of charts are in UTC until here.
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

  function marks(where) {
    for (const element of where.querySelectorAll("text[data-at]")) {
      const moment = new Date(element.dataset.at);
      const midnight = moment.getHours() === 0 && moment.getMinutes() === 0;
      element.textContent = (midnight ? day : clock).format(moment);
    }
  }

  // Light or dark

  const themeButton = document.getElementById("theme");

  function switchTheme() {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    const path = new URL(themeButton.dataset.root || "/", location).pathname;
    document.cookie = `leasedkeyq_theme=${root.dataset.theme}; path=${path}; max-age=31536000; samesite=lax`;
  }

  if (themeButton) {
    themeButton.hidden = false;
    themeButton.addEventListener("click", switchTheme);
  }

  // Live parts

  const pauseButton = document.getElementById("pause");
  const waiting = new Map();
  let source = null;
  let paused = sessionStorage.getItem("leasedkeyq-paused") === "yes";

  // Nothing moves under the pointer, under the focus, or while text is selected in it.
  function busy(part) {
    if (part.matches(":hover") || part.contains(document.activeElement)) return true;
    const selection = getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function swap(name, html) {
    const part = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
    if (!part) return;
    if (name !== "trouble" && (paused || busy(part))) {
      waiting.set(name, html);
      return;
    }
    waiting.delete(name);
    const opened = new Set(
      [...part.querySelectorAll("details[id][open]")].map((element) => element.id));
    const chosen = part.querySelector(".chosen a")?.getAttribute("href");
    const scrolls = [...part.querySelectorAll(".scroll")].map((element) => element.scrollLeft);
    part.innerHTML = html;
    for (const element of part.querySelectorAll("details[id]")) {
      if (opened.has(element.id)) element.open = true;
    }
    part.querySelectorAll(".scroll").forEach((element, at) => {
      element.scrollLeft = scrolls[at] ?? 0;
    });
    if (chosen) {
      const link = [...part.querySelectorAll("[data-row] a")].find(
        (element) => element.getAttribute("href") === chosen);
      link?.closest("[data-row]").classList.add("chosen");
    }
    if (name === "trouble") part.hidden = !html;
    prepare(part);
    part.dispatchEvent(new CustomEvent("leasedkeyq:swapped", { bubbles: true }));
  }

  function settle() {
    for (const [name, html] of [...waiting]) swap(name, html);
  }

  function showState(lost) {
    if (!pauseButton) return;
    pauseButton.hidden = false;
    pauseButton.setAttribute("aria-pressed", String(paused));
    pauseButton.classList.toggle("lost", lost && !paused);
    pauseButton.querySelector(".word").textContent = paused ? "Paused" : lost ? "Not live" : "Live";
  }

  function open() {
    const url = body.dataset.liveUrl;
    if (!url || source || paused || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("open", () => showState(false));
    source.addEventListener("part", (event) => {
      const { part, html } = JSON.parse(event.data);
      swap(part, html);
    });
    source.addEventListener("ended", () => location.reload());
    source.addEventListener("error", () => {
      showState(true);
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 10000);
      }
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  function pause() {
    if (!body.dataset.liveUrl) return;
    paused = !paused;
    sessionStorage.setItem("leasedkeyq-paused", paused ? "yes" : "no");
    if (paused) close(); else { settle(); open(); }
    showState(false);
  }

  if (pauseButton) pauseButton.addEventListener("click", pause);
  // A page that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);

  // Rows, by j and k

  function rows() {
    return [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
  }

  function step(by) {
    const all = rows();
    if (!all.length) return;
    const now = all.findIndex((row) => row.classList.contains("chosen"));
    const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? 0 : now + by))];
    all[now]?.classList.remove("chosen");
    next.classList.add("chosen");
    next.scrollIntoView({ block: "nearest" });
    (next.matches("a") ? next : next.querySelector("a"))?.focus({ preventScroll: true });
  }

  function chosen() {
    return document.querySelector("[data-row].chosen");
  }

  const keys = {
    "/": () => (document.querySelector("[data-search]") || document.querySelector("input[type=search]"))?.focus(),
    j: () => step(1),
    k: () => step(-1),
    x: () => chosen()?.querySelector("input[type=checkbox]")?.click(),
    p: pause,
    t: () => themeButton && switchTheme(),
    "?": () => document.querySelector("a[href$='/help']")?.click(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape") {
      document.activeElement?.blur();
      settle();
      return;
    }
    if (event.target.closest("input:not([type=checkbox]), select, textarea, [contenteditable]")) return;
    const act = keys[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });

  // Questions before changes, copy buttons, boxes that choose all

  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const from = document.getElementById(button.dataset.copy);
    const text = from ? from.dataset.text ?? from.textContent : "";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without HTTPS a browser has no clipboard for us: select the text instead.
      if (from) getSelection().selectAllChildren(from);
      return;
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  });

  document.addEventListener("change", (event) => {
    const all = event.target.closest("[data-check-all]");
    if (!all) return;
    for (const box of document.querySelectorAll(`input[name="${CSS.escape(all.dataset.checkAll)}"]`)) {
      box.checked = all.checked;
    }
  });

  // Filters of a table that is there already

  function narrow(field) {
    const wanted = field.value.trim().toLowerCase();
    for (const row of document.querySelectorAll(`${field.dataset.filter} [data-row]`)) {
      row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-filter]")) narrow(event.target);
  });

  function prepare(where) {
    times(where);
    marks(where);
    document.querySelectorAll("[data-filter]").forEach(narrow);
    for (const element of where.querySelectorAll("[data-copy]")) element.hidden = false;
  }

  prepare(document);
  setInterval(() => { if (!document.hidden) { times(document); settle(); } }, 1000);
  if (body.dataset.liveUrl) { showState(false); open(); }
})();
