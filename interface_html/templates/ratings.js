// Ratings of outputs on scales: the same rules and fields as in ratings.py, and their form in rows.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  FG.RATINGS = "output ratings"; // key in the row of an item
  FG.scales = (schema) => schema.ratings || [];
  FG.lowest = (scale) => (scale.scale === "likert" ? 1 : 0);
  FG.highest = (scale) => (scale.scale === "likert" ? scale.points || 5 : 100);

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  // All rules that the ratings {output: {scale: value}} break: [{field, reason}].
  FG.ratingProblems = function (schema, ratings) {
    const { outputs } = schema.fields,
      scales = FG.scales(schema),
      names = scales.map(({ name }) => name);
    const problems = [],
      add = (field, reason) => problems.push({ field: `ratings.${field}`, reason });
    for (const key of Object.keys(ratings)) if (!outputs.includes(key)) add(key, "is not known");
    for (const output of outputs) {
      const values = ratings[output];
      if (!isObject(values)) {
        add(output, output in ratings ? "must be an object" : "missing");
        continue;
      }
      for (const name of Object.keys(values)) if (!names.includes(name)) add(`${output}.${name}`, "is not known");
      for (const scale of scales) {
        const value = values[scale.name],
          [low, high] = [FG.lowest(scale), FG.highest(scale)];
        if (!(scale.name in values)) add(`${output}.${scale.name}`, "missing");
        else if (!(Number.isInteger(value) && value >= low && value <= high))
          add(`${output}.${scale.name}`, `${JSON.stringify(value)} is no whole number from ${low} to ${high}`);
      }
    }
    return problems;
  };

  // ---- rows of the default format: a list in the order of the outputs ----------------------------------------
  FG.ratingsOfRow = function (schema, list) {
    const { outputs } = schema.fields;
    if (!Array.isArray(list) || list.length !== outputs.length)
      throw new Error(`\`ratings\` must be a list of ${outputs.length}: one for each output`);
    return Object.fromEntries(outputs.map((output, i) => [output, list[i]]));
  };

  FG.rowOfRatings = (schema, ratings) =>
    schema.fields.outputs.map((output) =>
      Object.fromEntries(FG.scales(schema).map(({ name }) => [name, ratings[output][name]])),
    );
})(window.FG);
