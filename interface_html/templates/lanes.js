// The marks of several people in one text: a line below the words for each person, in the person's colour.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const STEP = 6; // pixels from one line to the next
  // Colours that people with colour blindness can tell apart (Okabe and Ito), one for each person.
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

  FG.personColour = (i) => COLOURS[i % COLOURS.length];

  const overlaps = (unit, { start, end }) => unit[0] < end && start < unit[1];

  // A line for each person below a node: `has` tells who has a mark on it, and "liked" who likes it. The others have a
  // thin track, so that the place of a line tells whose it is.
  function paint(node, has) {
    node.classList.toggle("laned", has !== null);
    if (has === null) return;
    const layers = has.map((mark, i) => {
      const mixed = `color-mix(in srgb, ${FG.personColour(i)} 75%, var(--ink))`,
        place = `0 calc(100% - var(--below) - ${(has.length - 1 - i) * STEP}px)`;
      if (!mark) return `linear-gradient(var(--line), var(--line)) ${place} / 100% 1px no-repeat`;
      const line =
        mark === "liked"
          ? `repeating-linear-gradient(90deg, ${mixed} 0 4px, transparent 4px 7px)`
          : `linear-gradient(${mixed}, ${mixed})`;
      return `${line} ${place} / 100% 4px no-repeat`;
    });
    node.style.setProperty("--lanes", layers.join(", "));
    node.style.setProperty("--lanes-depth", `${has.length * STEP}px`);
  }

  // Show in a TextView what people marked at some places.
  // places: [{start, end, number, marks}], where `marks` has for each person the marks [{start, end, liked}], and
  // `number` is shown after the last word of a place; null shows none.
  FG.paintLanes = function (view, places) {
    const placeOf = (unit) => places.find((place) => overlaps(unit, place));
    view.units.forEach((unit, i) => {
      const place = placeOf(unit),
        following = view.units[i + 1],
        isLast = !following || placeOf(following) !== place,
        markOn = (marks, test) => {
          const mark = marks.find(test);
          return mark ? (mark.liked ? "liked" : "marked") : null;
        };
      paint(view.spans[i], place ? place.marks.map((marks) => markOn(marks, (mark) => overlaps(unit, mark))) : null);
      const isInside = (mark) => overlaps(unit, mark) && overlaps(following, mark);
      paint(view.gaps[i], place && !isLast ? place.marks.map((marks) => markOn(marks, isInside)) : null);
      if (place && isLast && place.number) view.spans[i].dataset.difference = String(place.number);
      else delete view.spans[i].dataset.difference;
    });
  };
})(window.FG);
