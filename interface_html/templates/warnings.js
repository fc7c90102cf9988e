// Warnings about a correction. They never prevent a submission.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t, tn } = FG;
  const MOST_LOST = 5; // unmarked words that a correction may leave out without a warning: editing moves and joins text
  const MOST_QUOTED = 8;

  // The name of an error as in its badge: the letter of its kind and its number.
  FG.badgeText = (kind, index) => FG.letterOf(kind) + (index + 1);

  // A word without case and punctuation.
  const bare = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}\p{M}]/gu, "");

  // Whether a change of the text is inside a span, or an insertion next to it.
  function touches(change, error) {
    if (change.start === change.end) return change.start >= error.start - 1 && change.start <= error.end + 1;
    return change.start < error.end && change.end > error.start;
  }

  // The unmarked words of the text that the correction no longer has.
  function lostWords(points, corrected, changes, errors) {
    const after = FG.points(corrected),
      kept = new Set(FG.units(after).map(([start, end]) => bare(FG.cut(after, start, end))));
    const removed = changes.filter((part) => part.op === "del");
    return FG.units(points).filter(([start, end]) => {
      const word = bare(FG.cut(points, start, end));
      if (!word || kept.has(word)) return false;
      const isRemoved = removed.some((part) => part.start < end && start < part.end);
      return isRemoved && FG.overlapOf(errors, start, end) < 0;
    });
  }

  FG.correctionWarnings = function (schema, row, doc) {
    const text = row[FG.textKey(schema)],
      { noun, reference } = schema.fields,
      corrected = doc["corrected-prediction"];
    if (!schema.correction || corrected === text) return [];
    if (!FG.strip(corrected)) return [t("The correction is blank. Is there nothing in the {noun} to keep?", { noun })];
    if (reference && FG.strip(corrected) === FG.strip(row[reference.key] || ""))
      return [
        t(
          "The correction is a copy of the reference. Correct the {noun} itself, with as few changes as possible.",
          { noun },
        ),
      ];
    if (!FG.countErrors(schema, doc)) return [t("The {noun} was changed, but no error is marked.", { noun })];
    const points = FG.points(text),
      changes = FG.diff(text, corrected, true).filter((part) => part.op !== "same"),
      sentences = [];
    const unchanged = doc.errors.flatMap((error, i) =>
      FG.isLiked(schema, error) || FG.sideOf(error) === FG.SOURCE || changes.some((change) => touches(change, error))
        ? []
        : [FG.badgeText(FG.kind(schema, error["error type"]), i)],
    );
    if (unchanged.length)
      sentences.push(
        tn(
          "{errors} is marked, but unchanged in the correction.",
          "{errors} are marked, but unchanged in the correction.",
          { n: unchanged.length, errors: unchanged.join(", ") },
        ),
      );
    const lost = lostWords(points, corrected, changes, FG.errorsOf(schema, doc));
    if (lost.length > MOST_LOST) {
      const quoted = lost.slice(0, MOST_QUOTED).map(([start, end]) => FG.cut(points, start, end));
      const rest = lost.length > MOST_QUOTED ? " …" : "";
      sentences.push(
        tn(
          "{n} word without a mark is not in the correction: “{words}”.",
          "{n} words without a mark are not in the correction: “{words}”.",
          { n: lost.length, words: `${quoted.join(" ")}${rest}` },
        ),
      );
    }
    return sentences.length ? [sentences.join(" ")] : [];
  };
})(window.FG);
