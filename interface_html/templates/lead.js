// The lead's page: a summary of the study, read every few seconds. Text enters the page through textContent only.
"use strict";
(function (FG) {
  const PERIOD = 5000; // milliseconds between two readings
  const TOKEN = "fgrlhf/lead/token";
  const $ = FG.$,
    el = FG.el;

  // The link names the token; it is kept for reloads of this tab and taken out of the address.
  function takeToken() {
    const found = /[#&]token=([\w-]+)/.exec(location.hash);
    if (!found) return;
    sessionStorage.setItem(TOKEN, found[1]);
    history.replaceState(null, "", location.pathname);
  }

  async function call(method, path, body) {
    const headers = { "Content-Type": "application/json" };
    headers.Authorization = `Bearer ${sessionStorage.getItem(TOKEN) || ""}`;
    const response = await fetch(path, { method, headers, body: JSON.stringify(body), credentials: "omit" });
    const content = await response.json();
    if (!response.ok) throw new Error(content.error || `the server answered ${response.status}`);
    return content;
  }

  const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);
  const number = (value, digits) => (value === null ? "–" : value.toFixed(digits));

  // ---- tables ------------------------------------------------------------------------------------------------
  function table(title, heads, rows) {
    const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
    const body = rows.map(([first, ...cells]) =>
      el("tr", {}, el("th", { scope: "row" }, first), cells.map((cell) => el("td", {}, cell))),
    );
    return el(
      "div",
      { class: "table", role: "region", "aria-label": title, tabindex: "0" },
      el("table", {}, el("caption", {}, title), el("thead", {}, head), el("tbody", {}, body)),
    );
  }

  function annotatorTable({ page, annotators }) {
    const heads = ["Annotator", "Done", "Last hour", "Median active s", "Gold (labels)", "Skipped"];
    const compares = page === "comparison";
    if (compares) heads.push("Ties", "Won by first shown (pairs)");
    const rows = annotators.map((one) => {
      const cells = [one.name, `${one.done}`, `${one.last_hour}`, number(one.seconds, 1)];
      cells.push(`${percent(one.gold)} (${one.gold_labels})`, `${one.skipped}`);
      if (compares) cells.push(percent(one.ties), `${percent(one.first)} (${one.decided})`);
      return cells;
    });
    return table(`Annotators: ${page}`, heads, rows);
  }

  function itemTable({ page, items }, perItem) {
    const rows = items.unfinished.map(({ item, annotators }) => [
      item,
      `${annotators.length} of ${perItem}`,
      annotators.join(", ") || "–",
    ]);
    return table(`Items that need annotators: ${page}`, ["Item", "Judged", "By"], rows);
  }

  function pageSection(part, perItem) {
    const { items, page } = part;
    const counts = Object.entries(items.by_count).map(
      ([count, many]) => `${many} judged by ${count === "0" ? "nobody" : count}`,
    );
    return el(
      "section",
      { "aria-label": page },
      el("h2", {}, `${page}: ${items.complete} of ${items.total} items complete`),
      el("p", { class: "hint" }, counts.join(", ")),
      annotatorTable(part),
      items.unfinished.length ? itemTable(part, perItem) : null,
    );
  }

  function agreementTable(pairs) {
    const rows = pairs.map((pair) => [
      `${pair.first} and ${pair.second}`,
      `${number(pair.span_f1, 2)} (${pair.annotated})`,
      `${percent(pair.same_preference)} (${pair.compared})`,
    ]);
    return table("Agreement", ["Annotators", "Span F1 (items)", "Same preference (items)"], rows);
  }

  function ratingTable(ratings) {
    const scales = ratings[0].scales.map(({ label }) => `${label}: same, mean distance`);
    const rows = ratings.map((pair) => [
      `${pair.first} and ${pair.second}`,
      `${pair.rated}`,
      ...pair.scales.map(({ same, distance }) => `${percent(same)}, ${number(distance, 1)}`),
    ]);
    return table("Agreement of ratings", ["Annotators", "Items", ...scales], rows);
  }

  function noteWords({ reason, flagged }) {
    if (reason !== null) return `Skipped: ${reason}`;
    return flagged ? "Flagged" : "Comment";
  }

  function noteTable({ total, latest }) {
    const rows = latest.map((note) => [
      note.check === null ? note.item : `${note.item} (hidden: ${note.check})`,
      note.page,
      note.annotator,
      new Date(note.created * 1000).toLocaleString(),
      noteWords(note),
      el("span", { class: "text", dir: "auto" }, note.text ? FG.visible(note.text) : "–"),
    ]);
    const title = total > latest.length ? `the latest ${latest.length} of ${total}` : `${total}`;
    const heads = ["Item", "Page", "Annotator", "Time", "What", "Text"];
    return table(`Skips, flags and comments: ${title}`, heads, rows);
  }

  function openTable(open, mayRelease) {
    const rows = open.map((one) => {
      const minutes = Math.round(Math.abs(one.seconds_left) / 60);
      const held = one.seconds_left > 0;
      const label = `Release the lease of ${one.annotator} on ${one.item}`;
      return [
        one.item,
        one.page,
        one.annotator,
        held ? `held for ${minutes} more min` : `ended ${minutes} min ago`,
        one.has_draft ? "yes" : "no",
        held && mayRelease
          ? el("button", { type: "button", "data-release": `${one.number}`, "aria-label": label }, "Release")
          : "–",
      ];
    });
    const heads = ["Item", "Page", "Annotator", "Lease", "Draft"];
    if (mayRelease) return table("Items that are open", [...heads, "Action"], rows);
    return table("Items that are open", heads, rows.map((cells) => cells.slice(0, heads.length)));
  }

  function contents(study) {
    const parts = study.pages.map((part) => pageSection(part, study.per_item));
    if (study.agreement.length) parts.push(el("section", { "aria-label": "Agreement" }, agreementTable(study.agreement)));
    if (study.ratings.length)
      parts.push(el("section", { "aria-label": "Agreement of ratings" }, ratingTable(study.ratings)));
    if (study.notes.total) parts.push(el("section", { "aria-label": "Notes" }, noteTable(study.notes)));
    if (study.open.length) parts.push(el("section", { "aria-label": "Leases" }, openTable(study.open, study.may_release)));
    return parts;
  }

  // ---- refreshing --------------------------------------------------------------------------------------------
  async function refresh() {
    try {
      const study = await call("GET", "/api/lead");
      $("title").textContent = `${study.title}: progress`;
      FG.morph($("lead"), contents(study)); // touches only what differs: focus and scrolling stay
      FG.notice("");
    } catch (error) {
      FG.notice(`Not up to date: ${error.message}.`);
    }
  }

  async function onClick(event) {
    const assignment = event.target.dataset.release;
    if (!assignment) return;
    try {
      await call("POST", "/api/lead/release", { assignment: Number(assignment) });
    } catch (error) {
      FG.notice(`Not released: ${error.message}.`);
      return;
    }
    await refresh();
  }

  async function run() {
    if (!document.hidden) await refresh();
    setTimeout(run, PERIOD);
  }

  takeToken();
  $("lead").addEventListener("click", onClick);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  run();
})(window.FG);
