// The lead's page: a summary of the study, read every few seconds. Text enters the page through textContent only.
"use strict";
(function (FG) {
  const PERIOD = 5000; // milliseconds between two readings
  const TOKEN = "fgrlhf/lead/token";
  const $ = FG.$,
    el = FG.el,
    t = FG.t;
  const NONE = "–";
  const PAGES = { annotation: t("annotation"), comparison: t("comparison"), rating: t("rating") };
  const CHECKS = { gold: t("gold"), repeat: t("repeated") };

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
    if (!response.ok) throw new Error(FG.reason(content.error || t("the server answered {status}", { status: response.status })));
    return content;
  }

  const percent = (share) => (share === null ? NONE : t("{n} %", { n: Math.round(share * 100) }));
  const number = (value, places) => (value === null ? NONE : FG.number(value, places));
  const withCount = (value, count) => (value === NONE ? NONE : t("{value} ({count})", { value, count }));
  const names = ({ first, second }) => t("{first} and {second}", { first, second });

  // ---- tables ------------------------------------------------------------------------------------------------
  function table(title, heads, rows) {
    const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
    const body = rows.map(([first, ...cells]) =>
      el("tr", {}, el("th", { scope: "row" }, first), cells.map((cell) => el("td", {}, cell))),
    );
    return el(
      "div",
      { class: "table", role: "group", "aria-label": title, tabindex: "0" },
      el("table", {}, el("caption", {}, title), el("thead", {}, head), el("tbody", {}, body)),
    );
  }

  function annotatorTable({ page, annotators }) {
    const heads = [
      t("Annotator"),
      t("Done"),
      t("Last hour"),
      t("Active seconds (median)"),
      t("Gold (labels)"),
      t("Skipped"),
    ];
    const compares = page === "comparison";
    if (compares) heads.push(t("Ties"), t("Won by first shown (pairs)"));
    const rows = annotators.map((one) => {
      const cells = [one.name, `${one.done}`, `${one.last_hour}`, number(one.seconds, 1)];
      cells.push(withCount(percent(one.gold), one.gold_labels), `${one.skipped}`);
      if (compares) cells.push(percent(one.ties), withCount(percent(one.first), one.decided));
      return cells;
    });
    return table(t("Annotators: {page}", { page: PAGES[page] }), heads, rows);
  }

  function itemTable({ page, items }, perItem) {
    const rows = items.unfinished.map(({ item, annotators }) => [
      FG.isolated(item),
      t("{n} of {total}", { n: annotators.length, total: perItem }),
      FG.list(annotators.map(FG.isolated)) || NONE,
    ]);
    const title = t("Items that need annotators: {page}", { page: PAGES[page] });
    return table(title, [t("Item"), t("Judged"), t("By")], rows);
  }

  function pageSection(part, perItem) {
    const { items, page } = part;
    const counts = Object.entries(items.by_count).map(([count, many]) =>
      count === "0" ? t("{many} judged by nobody", { many }) : t("{many} judged by {count}", { many, count }),
    );
    const complete = { page: PAGES[page], n: items.complete, total: items.total };
    return el(
      "section",
      { "aria-label": PAGES[page] },
      el("h2", {}, t("{page}: {n} of {total} items complete", complete)),
      el("p", { class: "hint" }, FG.list(counts)),
      annotatorTable(part),
      items.unfinished.length ? itemTable(part, perItem) : null,
    );
  }

  function paceTable(days) {
    const rows = days.map(({ day, annotator, page, items, untimed, hours, per_hour: rate }) => [
      day,
      annotator,
      PAGES[page],
      `${items}`,
      untimed === items ? NONE : FG.number(hours, 2),
      number(rate, 1),
      untimed ? `${untimed}` : NONE,
    ]);
    const heads = [t("Day (UTC)"), t("Annotator"), t("Page"), t("Items"), t("Active hours"), t("Items per active hour"), t("Items without a time")];
    return table(t("Pace by day"), heads, rows);
  }

  function agreementTable(pairs) {
    const rows = pairs.map((pair) => [
      names(pair),
      withCount(number(pair.span_f1, 2), pair.annotated),
      withCount(percent(pair.same_preference), pair.compared),
    ]);
    return table(t("Agreement"), [t("Annotators"), t("Span F1, one-to-one overlap (items)"), t("Same preference (items)")], rows);
  }

  function ratingTable(ratings) {
    const scales = ratings[0].scales.map(({ label }) => t("{label}: same, mean distance", { label }));
    const rows = ratings.map((pair) => [
      names(pair),
      `${pair.rated}`,
      ...pair.scales.map(({ same, distance }) => FG.list([percent(same), number(distance, 1)])),
    ]);
    return table(t("Agreement of ratings"), [t("Annotators"), t("Items"), ...scales], rows);
  }

  function noteWords({ reason, flagged }) {
    if (reason !== null) return t("Skipped: {reason}", { reason });
    return flagged ? t("Flagged") : t("Comment");
  }

  const timeOf = (seconds) => new Date(seconds * 1000).toLocaleString(FG.locale);

  function itemName({ item, check }) {
    if (check === null) return FG.isolated(item);
    return t("{item} (hidden: {check})", { item, check: CHECKS[check] });
  }

  function noteTable({ total, latest }) {
    const rows = latest.map((note) => [
      itemName(note),
      PAGES[note.page],
      note.annotator,
      timeOf(note.created),
      noteWords(note),
      el("span", { class: "text", dir: "auto" }, note.text ? FG.visible(note.text) : NONE),
    ]);
    const shown = { n: latest.length, total };
    const title =
      total > latest.length
        ? t("Skips, flags and comments: the latest {n} of {total}", shown)
        : t("Skips, flags and comments: {total}", shown);
    const heads = [t("Item"), t("Page"), t("Annotator"), t("Time"), t("What"), t("Text")];
    return table(title, heads, rows);
  }

  function releaseButton({ annotator, item, number }) {
    const label = t("Release the lease of {annotator} on {item}", { annotator, item });
    return el("button", { type: "button", "data-release": `${number}`, "aria-label": label }, t("Release"));
  }

  function openTable(open, mayRelease) {
    const rows = open.map((one) => {
      const minutes = Math.round(Math.abs(one.seconds_left) / 60);
      const held = one.seconds_left > 0;
      return [
        itemName(one),
        PAGES[one.page],
        one.annotator,
        held ? t("held for {minutes} more min", { minutes }) : t("ended {minutes} min ago", { minutes }),
        one.has_draft ? t("yes") : t("no"),
        held && mayRelease ? releaseButton(one) : NONE,
      ];
    });
    const heads = [t("Item"), t("Page"), t("Annotator"), t("Lease"), t("Draft")];
    const title = t("Items that are open");
    if (mayRelease) return table(title, [...heads, t("Action")], rows);
    return table(title, heads, rows.map((cells) => cells.slice(0, heads.length)));
  }

  function contents(study) {
    const parts = study.pages.map((part) => pageSection(part, study.per_item));
    const add = (label, content) => parts.push(el("section", { "aria-label": label }, content));
    if (study.pace.length) add(t("Pace"), paceTable(study.pace));
    if (study.agreement.length) add(t("Agreement"), agreementTable(study.agreement));
    if (study.ratings.length) add(t("Agreement of ratings"), ratingTable(study.ratings));
    if (study.notes.total) add(t("Notes"), noteTable(study.notes));
    if (study.open.length) add(t("Leases"), openTable(study.open, study.may_release));
    return parts;
  }

  // ---- refreshing --------------------------------------------------------------------------------------------
  async function refresh() {
    try {
      const study = await call("GET", "/api/lead");
      $("title").textContent = t("{title}: progress", { title: study.title });
      FG.morph($("lead"), contents(study)); // touches only what differs: focus and scrolling stay
      FG.notice("");
    } catch (error) {
      FG.notice(t("Not up to date: {reason}.", { reason: error.message }));
    }
  }

  async function onClick(event) {
    const assignment = event.target.dataset.release;
    if (!assignment) return;
    try {
      await call("POST", "/api/lead/release", { assignment: Number(assignment) });
    } catch (error) {
      FG.notice(t("Not released: {reason}.", { reason: error.message }));
      return;
    }
    await refresh();
  }

  async function run() {
    if (!document.hidden) await refresh();
    setTimeout(run, PERIOD);
  }

  FG.lead = { call, table };
  takeToken();
  $("lead").addEventListener("click", onClick);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  run();
})(window.FG);
