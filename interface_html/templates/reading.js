// What was in view of each output of a comparison, and whether that was enough to read it.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const SKIM = 80; // characters a second: faster than anyone reads
  const WHOLE = 0.99; // share of an output's height; the rest is rounding

  // Measures for each output how long it was in view, and how far down. It continues `seen`, [{seconds, share}].
  FG.Reading = class {
    constructor(seen, now, isVisible) {
      this.seen = seen;
      this.inView = seen.map(() => false);
      this.watch = new FG.Stopwatch(now, isVisible);
    }

    // The page at `now`. `reached`: for each output, how far down it is in view, as a share of its height; null if no part
    // is. The time since the last look counts for the outputs that were in view then; long gaps count as 30 seconds.
    look(now, reached, isVisible) {
      const seconds = this.watch.act(now);
      this.seen.forEach((entry, i) => {
        if (this.inView[i]) entry.seconds += seconds;
        if (isVisible && reached[i] !== null) entry.share = Math.max(entry.share, reached[i]);
      });
      this.inView = reached.map((share) => isVisible && share !== null);
      if (!isVisible) this.watch.pause();
    }
  };

  // How far down an element is in view above the line `bottom` of the window: a share of its height, or null.
  FG.reached = function (node, bottom) {
    const box = node.getBoundingClientRect(),
      end = Math.min(box.bottom, bottom);
    return box.height > 0 && box.bottom > 0 && end > box.top ? (end - box.top) / box.height : null;
  };

  // The indices of the texts whose end was not in view, or that were in view for less time than skimming takes.
  FG.unread = (seen, texts) =>
    [...texts.keys()].filter(
      (i) => seen[i].share < WHOLE || seen[i].seconds < FG.points(texts[i]).length / SKIM,
    );
})(window.FG);
