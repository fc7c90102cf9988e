// Titles that are conversations, shown as turns. The same as conversations.py and fgrlhf/models/dialogs.py.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t, tn } = FG;
  const SPEAKERS = { system: "System", user: "Human", assistant: "Assistant" };
  const ROLES = { System: "system", Human: "user", Assistant: "assistant" };
  const NAMES = { system: t("System"), user: t("User"), assistant: t("Assistant") }; // as shown
  const NEXT_TURN = "\n\nAssistant:";

  const isMessage = (message) =>
    message !== null &&
    typeof message === "object" &&
    Object.hasOwn(SPEAKERS, message.role) &&
    typeof message.content === "string";
  const isConversation = (value) => Array.isArray(value) && value.length > 0 && value.every(isMessage);

  // The text of a conversation [{role, content}]: of one message by the user, that message.
  function textOf(messages) {
    if (messages.length === 1 && messages[0].role === "user") return messages[0].content;
    const turns = messages.map(({ role, content }) => `\n\n${SPEAKERS[role]}: ${content}`);
    return turns.join("") + NEXT_TURN;
  }

  // The messages of a dialog in the form of HH-RLHF; [] for other texts.
  FG.messagesIn = function (text) {
    const turns = [...text.matchAll(/\n\n(System|Human|Assistant):/g)];
    if (!turns.length || FG.strip(text.slice(0, turns[0].index))) return [];
    if (!FG.strip(`.${text}`).endsWith(NEXT_TURN)) return [];
    const messages = [];
    for (let i = 0; i + 1 < turns.length; i++) {
      const role = ROLES[turns[i][1]];
      const content = FG.strip(text.slice(turns[i].index + turns[i][0].length, turns[i + 1].index));
      const last = messages[messages.length - 1];
      if (last && last.role === role) last.content += `\n\n${content}`;
      else messages.push({ role, content });
    }
    const first = messages.find(({ role }) => role !== "system");
    return first && first.role === "user" ? messages : [];
  };

  // The title's text and {messages} of a file's `prompt`, a text or a conversation.
  FG.titleOf = function (row) {
    if (!Array.isArray(row.prompt)) return [row.prompt, {}];
    if (!isConversation(row.prompt))
      throw new Error(t("`prompt` must be text, or a conversation: a list of {role, content}"));
    if ("messages" in row)
      throw new Error(t("`messages` must not be there if `prompt` is a conversation: remove it, or rename it"));
    return [textOf(row.prompt), { messages: row.prompt }];
  };

  // The messages of an item's row whose title is their text; null for any other row.
  FG.titleMessages = function (schema, row) {
    const { messages } = row;
    if (schema.row.includes("messages") || !isConversation(messages)) return null;
    return textOf(messages) === row[schema.fields.title] ? messages : null;
  };

  // ---- on the pages --------------------------------------------------------------------------------------------
  // Show the title of an item: its text, or the turns of a conversation.
  FG.showTitle = function (schema, row) {
    const text = row[schema.fields.title],
      given = FG.titleMessages(schema, row),
      messages = given && given.length > 1 ? given : FG.messagesIn(text),
      turns = FG.$("turns");
    const isDialog = messages.length > 0;
    turns.hidden = !isDialog;
    // a prompt of several lines is read as a text, not as a heading
    FG.$("item-title").classList.toggle("long", !isDialog && (text.length > 300 || text.includes("\n")));
    FG.$("item-title").replaceChildren(
      ...(isDialog ? [tn("Conversation, {n} turn", "Conversation, {n} turns", { n: messages.length })] : FG.visible(text)),
    );
    turns.replaceChildren(...(isDialog ? messages.map(turnNode) : []));
    turns.scrollTop = turns.scrollHeight; // the last turn is the one to answer
  };

  function turnNode({ role, content }) {
    return FG.el(
      "div",
      { class: `turn ${role}` },
      FG.el("p", { class: "role" }, NAMES[role]),
      FG.el("p", { class: "said", dir: "auto" }, FG.visible(content)),
    );
  }

  // Keys that scroll the turns are no keys of the page.
  const SCROLLING = ["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " "];
  document.getElementById("turns").addEventListener("keydown", (event) => {
    if (SCROLLING.includes(event.key)) event.stopPropagation();
  });
})(window.FG);
