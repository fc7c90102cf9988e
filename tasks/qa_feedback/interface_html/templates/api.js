// Served pages keep their work at the server. Pages opened from disk do not get past the first line.
"use strict";
(function () {
  if (!/^https?:$/.test(location.protocol) || document.getElementById("items")) return;
})();
